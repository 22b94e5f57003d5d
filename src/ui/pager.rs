//! The pager: the output of a verb on a terminal goes through it, as in git.
//!
//! It starts at the first printed byte. Therefore a verb that fails shows its error without an
//! empty page, and Ctrl-C ends a verb that still waits for the daemon. After the start a signal
//! waits for the pager, which has the terminal.

use std::ffi::OsString;
use std::io::{self, BufWriter, Stdout, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::interrupt::SIGNAL_STATUS;
use ckptfs_sys as sys;

/// The default pager.
const DEFAULT: &str = "less";
/// Default of `LESS`: exit at once if everything fits on the screen (F), show colors (R), and leave
/// the text on the screen (X).
const LESS: &str = "FRX";
const SHELL: &str = "/bin/sh";
/// Characters that require a shell.
const OF_SHELL: &[u8] = b"|&;<>()$`\\\"' \t\n*?[#~=%";
/// Exit status of a shell that has not found the command.
const NOT_FOUND: i32 = 127;

/// Returns the user's pager: `CKPTFS_PAGER`, else `PAGER`, else `less`; `None` if it is empty or
/// `cat`.
pub fn wanted() -> Option<OsString> {
    let of = |name| std::env::var_os(name);
    let command = of("CKPTFS_PAGER")
        .or_else(|| of("PAGER"))
        .unwrap_or_else(|| DEFAULT.into());
    (!command.is_empty() && command != "cat").then_some(command)
}

/// Destination of the data of a paged verb.
#[derive(Debug)]
pub struct Pager {
    command: OsString,
    to: PagerSink,
}

#[derive(Debug)]
enum PagerSink {
    /// Nothing was printed yet.
    Nothing,
    Pager(Child, BufWriter<ChildStdin>),
    /// The pager cannot be started.
    Stdout(BufWriter<Stdout>),
}

impl Pager {
    /// Returns a pager that is not started yet.
    pub fn new(command: OsString) -> Pager {
        Pager {
            command,
            to: PagerSink::Nothing,
        }
    }

    /// Reports whether the pager runs, and has the terminal.
    pub fn is_running(&self) -> bool {
        matches!(self.to, PagerSink::Pager(..))
    }

    /// Closes the pipe to the pager, and waits until the user leaves it. Returns a warning if the
    /// command was not found.
    pub fn end(self) -> Option<String> {
        let PagerSink::Pager(mut child, input) = self.to else {
            return None;
        };
        // Callers that need the result of a flush have flushed before; here the pipe is closed.
        drop(input.into_parts());
        let ended = child.wait();
        let missing = ended.is_ok_and(|status| status.code() == Some(NOT_FOUND));
        missing.then(|| {
            format!(
                "the pager {:?} cannot be run: set CKPTFS_PAGER or PAGER, or use --no-pager",
                self.command.to_string_lossy()
            )
        })
    }

    /// Returns the destination, and starts the pager if necessary.
    fn to(&mut self) -> &mut PagerSink {
        if matches!(self.to, PagerSink::Nothing) {
            self.to = match start(&self.command) {
                Ok((child, input)) => PagerSink::Pager(child, BufWriter::new(input)),
                // As without a pager: the user sees the data.
                Err(_) => PagerSink::Stdout(BufWriter::new(io::stdout())),
            };
        }
        &mut self.to
    }
}

impl Write for Pager {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match self.to() {
            PagerSink::Pager(_, input) => input.write(data),
            PagerSink::Stdout(stdout) => stdout.write(data),
            PagerSink::Nothing => Ok(0),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.to {
            PagerSink::Pager(_, input) => input.flush(),
            PagerSink::Stdout(stdout) => stdout.flush(),
            PagerSink::Nothing => Ok(()),
        }
    }
}

fn start(command: &OsString) -> io::Result<(Child, ChildStdin)> {
    let needs_shell = command
        .as_bytes()
        .iter()
        .any(|byte| OF_SHELL.contains(byte));
    let mut pager = if needs_shell {
        let mut shell = Command::new(SHELL);
        shell.arg("-c").arg(command);
        shell
    } else {
        Command::new(command)
    };
    if std::env::var_os("LESS").is_none() {
        pager.env("LESS", LESS);
    }
    sys::start_unblocked(&mut pager);
    let mut child = pager.stdin(Stdio::piped()).spawn()?;
    let input = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let pager = child.id();
    let end = move |signal| {
        // It may have ended, and been reaped, just now.
        let _ = sys::wait_ended(pager);
        std::process::exit(SIGNAL_STATUS + signal);
    };
    // Without this a signal would end this process and leave the pager with the terminal.
    let _ = sys::on_terminate(end);
    Ok((child, input))
}
