//! Starts the daemon: this program again, without descriptors of its caller except a pipe for the
//! handshake.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde::{Deserialize, Serialize};

use super::mount_users::MountUser;
use ckptfs_api::{AbsenceInfo, Code, VerbError, VerbResult};
use ckptfs_core::engine::origin::TYPED_PASSWORD;
use ckptfs_sys::host;
use ckptfs_ui::error::{ErrorContext, error, hinted};
use ckptfs_ui::output::hand_on;
use ckptfs_volumes::tool;

/// The message from the daemon to its parent, as one line of JSON. All other lines are its output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Handshake {
    /// The mount serves.
    Ready(DaemonReady),
    /// The mount failed, and the daemon exits.
    Error(VerbError),
}

/// State of a daemon that serves.
#[derive(Debug, Serialize, Deserialize)]
pub struct DaemonReady {
    /// Its process id.
    pub pid: u32,
    /// I/O path of reads.
    pub io: String,
    /// I/O path of writes.
    pub writes: String,
    /// Warnings for the user.
    pub warnings: Vec<String>,
    /// Changes made while nothing was mounted.
    #[serde(default)]
    pub absence: Option<AbsenceInfo>,
    /// Processes that use the directory below the mount.
    #[serde(default)]
    pub below: Vec<MountUser>,
}

/// Limit of the output that is buffered before the daemon serves.
const TALK_BYTES_MAX: usize = 64 << 10;

/// The parent of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonParent {
    /// A verb, which exits when the daemon serves. The output of the daemon until then is printed
    /// for the user.
    Verb,
    /// A driver, which continues, and reaps its children; it has a log.
    Driver,
}

impl DaemonParent {
    fn hand_on(self, said: &[u8]) {
        match self {
            DaemonParent::Verb => hand_on(said),
            DaemonParent::Driver if said.is_empty() => {}
            DaemonParent::Driver => {
                tracing::debug!(said = %String::from_utf8_lossy(said), "a daemon begins")
            }
        }
    }

    fn leave(self, mut child: Child) {
        if self == DaemonParent::Driver {
            // Without a thread it stays a zombie until this process ends.
            drop(
                std::thread::Builder::new()
                    .name("daemon".into())
                    .spawn(move || child.wait()),
            );
        }
    }
}

/// Starts the daemon with `arguments`, and waits until it serves. No time limit: an index may have
/// to be rebuilt first. `password`: of a remote; it is passed only in the environment.
pub fn launch(
    mut arguments: Vec<OsString>,
    password: Option<&str>,
    starter: DaemonParent,
) -> VerbResult<DaemonReady> {
    arguments.extend((starter == DaemonParent::Driver).then(|| "--stays".into()));
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

/// Returns the path of this program, even if its file was replaced since.
pub fn program() -> PathBuf {
    match std::env::current_exe() {
        Ok(path) if path.exists() => path,
        _ => PathBuf::from("/proc/self/exe"),
    }
}

fn wait(child: &mut Child, pipe: UnixStream, starter: DaemonParent) -> VerbResult<DaemonReady> {
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

/// In the daemon: notifies the parent on stdout.
pub fn tell(handshake: &Handshake) -> VerbResult<()> {
    tell_on(&mut std::io::stdout().lock(), handshake)
}

/// In the daemon: notifies the parent on a copy of the original stdout.
pub fn tell_on(pipe: &mut impl Write, handshake: &Handshake) -> VerbResult<()> {
    let mut line =
        serde_json::to_vec(handshake).map_err(|cause| error(Code::Internal, cause.to_string()))?;
    line.push(b'\n');
    pipe.write_all(&line)
        .and_then(|()| pipe.flush())
        .on("telling the parent")
}
