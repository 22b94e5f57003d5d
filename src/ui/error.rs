//! Failures of verbs, and how they are printed.

use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;

use crate::output::Out;
use ckptfs_api::{Code, VerbError};
pub use ckptfs_api::{ErrorContext, error, hinted, io_error, plain};

/// Exit status of a verb that found damage.
const DAMAGE_STATUS: u8 = 4;

/// Exit status of a wrong command line, equal to clap's.
const USAGE_STATUS: u8 = 2;

/// Exit status of a verb that returns the status of a command, when the verb itself failed; as in
/// env(1) and timeout(1).
pub const UNABLE_STATUS: u8 = 125;

/// Result of a verb, whose output is already printed.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Reason for the failure of a verb.
#[derive(Debug)]
pub enum Failure {
    /// An error with a message for the user.
    Verb(VerbError),
    /// stdout cannot be written.
    Output(io::Error),
    /// The result is negative; all messages are printed.
    No,
    /// The history is damaged; all messages are printed.
    Damage,
    /// A command ended with this status; all messages are printed.
    Status(u8),
    /// A verb that returns the status of a command failed itself.
    Unable(VerbError),
}

impl From<VerbError> for Failure {
    fn from(error: VerbError) -> Failure {
        Failure::Verb(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Output(error)
    }
}

impl Failure {
    /// Prints the failure to stderr and returns the exit status.
    pub fn report(&self, out: &Out) -> ExitCode {
        match self {
            Failure::Verb(error) => {
                tell(error, out);
                if error.code == Code::Usage {
                    return ExitCode::from(USAGE_STATUS);
                }
            }
            // The reader closed the pipe: `ckptfs log | head -1`.
            Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                return ExitCode::SUCCESS;
            }
            Failure::Output(error) => tell(
                &io_error(
                    "standard output",
                    io::Error::new(error.kind(), error.to_string()),
                ),
                out,
            ),
            Failure::No => {}
            Failure::Damage => return ExitCode::from(DAMAGE_STATUS),
            Failure::Status(status) => return ExitCode::from(*status),
            Failure::Unable(error) => {
                tell(error, out);
                return ExitCode::from(UNABLE_STATUS);
            }
        }
        ExitCode::FAILURE
    }
}

fn tell(error: &VerbError, out: &Out) {
    #[derive(Serialize)]
    struct Line<'a> {
        error: &'a VerbError,
    }
    let mut stderr = io::stderr().lock();
    // A closed stderr cannot be reported.
    let _ = if out.json {
        serde_json::to_writer(&mut stderr, &Line { error })
            .map_err(io::Error::from)
            .and_then(|()| stderr.write_all(b"\n"))
    } else {
        let message = out.talk_text(&error.message);
        let told = writeln!(stderr, "{} {message}", out.talk_label("Error:"));
        match &error.hint {
            Some(hint) => told.and_then(|()| {
                writeln!(
                    stderr,
                    "{} {}",
                    out.talk_label("Hint:"),
                    out.talk_text(hint)
                )
            }),
            None => told,
        }
    };
}
