//! Starts the daemon: this program once more, with nothing of its caller's but a pipe to say "it
//! serves" or why not.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde::{Deserialize, Serialize};

use super::error::{On, error, hinted};
use super::holders::Holder;
use super::output::hand_on;
use crate::engine::api::{AbsenceInfo, Code, VerbError, VerbResult};
use crate::engine::origin::TYPED_PASSWORD;
use crate::sys::host;
use crate::volumes::tool;

/// What the daemon tells its parent, as one line of JSON. Every other line is talk.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Handshake {
    /// It serves.
    Ready(Ready),
    /// It does not, and ends.
    Error(VerbError),
}

/// What a daemon that serves says of itself.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ready {
    /// Its process.
    pub pid: u32,
    /// Who does reads.
    pub io: String,
    /// Who does writes.
    pub writes: String,
    /// What somebody should know.
    pub warnings: Vec<String>,
    /// What was changed while nothing was mounted.
    #[serde(default)]
    pub absence: Option<AbsenceInfo>,
    /// Who has something of the directory below the mount.
    #[serde(default)]
    pub below: Vec<Holder>,
}

/// What the daemon says before it serves is kept up to so many bytes.
const TALK_BYTES_MAX: usize = 64 << 10;

/// Who starts a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Starter {
    /// A verb, which ends when the daemon serves: what the daemon says until then is said to the
    /// user.
    Verb,
    /// Somebody who goes on, and waits for the end of what it has started; it has a log.
    Driver,
}

impl Starter {
    fn hand_on(self, said: &[u8]) {
        match self {
            Starter::Verb => hand_on(said),
            Starter::Driver if said.is_empty() => {}
            Starter::Driver => {
                tracing::debug!(said = %String::from_utf8_lossy(said), "a daemon begins")
            }
        }
    }

    fn leave(self, mut child: Child) {
        if self == Starter::Driver {
            // Without a thread it is nobody's, until whoever started it ends.
            drop(
                std::thread::Builder::new()
                    .name("daemon".into())
                    .spawn(move || child.wait()),
            );
        }
    }
}

/// Starts the daemon with `arguments`, and waits until it serves. No time limit: an index may have
/// to be rebuilt first. `password`: that of a remote, which goes to the daemon by its environment
/// alone.
pub fn launch(
    mut arguments: Vec<OsString>,
    password: Option<&str>,
    starter: Starter,
) -> VerbResult<Ready> {
    arguments.extend((starter == Starter::Driver).then(|| "--stays".into()));
    let (ours, theirs) = UnixStream::pair().on("starting the daemon")?;
    let mut child = spawn(arguments, password, theirs.into()).on("starting the daemon")?;
    let served = wait(&mut child, ours, starter);
    starter.leave(child);
    served
}

fn spawn(
    arguments: Vec<OsString>,
    password: Option<&str>,
    pipe: OwnedFd,
) -> std::io::Result<Child> {
    host::close_on_exec();
    let mut command = Command::new(program());
    tool::clean(&mut command);
    if let Some(password) = password {
        command.env(TYPED_PASSWORD, password);
    }
    command
        .arg0("ckptfs")
        .args(arguments)
        .stdout(Stdio::from(pipe.try_clone()?))
        .stderr(Stdio::from(pipe))
        .spawn()
}

/// This program, also when its file was replaced since.
pub fn program() -> PathBuf {
    match std::env::current_exe() {
        Ok(path) if path.exists() => path,
        _ => PathBuf::from("/proc/self/exe"),
    }
}

fn wait(child: &mut Child, pipe: UnixStream, starter: Starter) -> VerbResult<Ready> {
    let mut talk = Vec::new();
    for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
        match serde_json::from_slice::<Handshake>(&line) {
            Ok(Handshake::Ready(ready)) => {
                starter.hand_on(&talk);
                return Ok(ready);
            }
            Ok(Handshake::Error(error)) => {
                starter.hand_on(&talk);
                return Err(error);
            }
            Err(_) if talk.len() + line.len() < TALK_BYTES_MAX => {
                talk.extend_from_slice(&line);
                talk.push(b'\n');
            }
            Err(_) => {}
        }
    }
    starter.hand_on(&talk);
    let end = child
        .wait()
        .map_or_else(|cause| cause.to_string(), |status| status.to_string());
    Err(hinted(
        Code::DaemonLost,
        format!("the daemon exited before the mount was ready ({end})"),
        "for details: CKPTFS_LOG=debug ckptfs mount ...",
    ))
}

/// In the daemon: tells the parent, through what is its stdout.
pub fn tell(handshake: &Handshake) -> VerbResult<()> {
    tell_on(&mut std::io::stdout().lock(), handshake)
}

/// In the daemon: tells the parent, through a copy of what was its stdout.
pub fn tell_on(pipe: &mut impl Write, handshake: &Handshake) -> VerbResult<()> {
    let mut line =
        serde_json::to_vec(handshake).map_err(|cause| error(Code::Internal, cause.to_string()))?;
    line.push(b'\n');
    pipe.write_all(&line)
        .and_then(|()| pipe.flush())
        .on("telling the parent")
}
