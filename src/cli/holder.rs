//! The holder: a small process that keeps a mount alive when its daemon, the **worker**, dies, and
//! starts a successor, which takes over (docs/adr/0009-the-mount-outlives-its-daemon.md).
//!
//! It keeps descriptors open without using them: `/dev/fuse`, because its close would end the
//! connection, and the backing directory, which no path below the mount reaches. It also keeps the
//! ledger, in which a worker stores the state for its successor, and open files without a name.
//! Requests of the kernel wait while no worker runs.
//!
//! The two communicate over a socket that preserves message boundaries. A message is a letter and
//! its arguments.
//!
//! ```text
//!   to the worker     S count time                      serve: mount
//!                     T count time [ledger, device, root, control?]   take over; followed by
//!                     O number [file]                   an open file without a name, repeated
//!                     t store [ledger, device, root, control?]   a branch, repeated; followed by its O
//!                     E                                 end of the state
//!                     m                                 the descriptors of M are stored
//!   from the worker   M [ledger, device, root, control?, log?]   mounted: store these; the letter l follows if there is a log
//!                     R                                 serving
//!                     K number [file], D number         store this file, discard it
//!                     H store [ledger, device, root, control?]   a branch is mounted: store these
//!                     L store                           its mount is gone, or will not be served: discard
//!                     k store number [file], d store number   as K and D, of a branch
//!                     B                                 orderly end: discard all, and exit first
//! ```
//!
//! A branch is identified by the number of its store: a store is served once at a time. No other
//! process can send a message: the socket has no name, and the worker's end is its stdin.

mod messages;
mod worker_end;

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use self::messages::{MESSAGE_MAX, TreeFds, about, branch_in, number_in, numbered, send_patiently};
pub use self::worker_end::{HolderConnection, InheritedTree, meet};
use super::daemon;
use super::launch::program;
use ckptfs_api::VerbResult;
use ckptfs_store::layout::StoreId;
use ckptfs_sys::{self as sys, Signals, SysResult, host};
use ckptfs_ui::error::{ErrorContext, Failure, Outcome};

/// A worker that dies within this time after it began to serve counts as brief.
const BRIEF: Duration = Duration::from_millis(250);
/// After this many brief workers in a row the holder gives up.
const BRIEF_MAX: u32 = 5;
/// After more deaths than this within [`OFTEN`] the holder gives up.
const OFTEN_MAX: usize = 60;
const OFTEN: Duration = Duration::from_secs(60);
/// Limit of the wait for a worker whose descriptors are closed: its remaining threads may wait for
/// the mount, and therefore for the next worker.
const REAP_TIMEOUT: Duration = Duration::from_millis(500);
const REAP_PAUSE: Duration = Duration::from_millis(1);

/// State of a tree for the next worker.
struct HeldTree {
    fds: TreeFds,
    /// Open files without a name, by inode number.
    files: HashMap<u64, OwnedFd>,
}

impl HeldTree {
    fn of(fds: Vec<OwnedFd>) -> Option<HeldTree> {
        Some(HeldTree {
            fds: TreeFds::of(fds)?,
            files: HashMap::new(),
        })
    }

    /// Sends the files to a worker.
    fn hand_on_files(&self, socket: &OwnedFd) -> SysResult<()> {
        self.files.iter().try_for_each(|(number, file)| {
            send_patiently(
                socket,
                &numbered(b'O', None, *number),
                &[file.as_fd()],
                None,
            )
        })
    }
}

/// Outcome of a worker.
#[derive(Default)]
struct WorkerOutcome {
    since: Option<Instant>,
    in_order: bool,
}

struct Holder {
    arguments: daemon::Args,
    signals: Signals,
    held: Option<HeldTree>,
    /// State of the tree's branches, and of their branches.
    branches: HashMap<StoreId, HeldTree>,
    takeovers: u32,
    taken_over: String,
    deaths: VecDeque<Instant>,
    brief: u32,
}

/// Keeps a mount alive: starts a worker, and a successor when it dies. Returns when the mount is
/// gone.
pub fn hold(args: daemon::Args) -> Outcome {
    super::logging::log_to_stderr(Some("warn,fuser=error"));
    if !args.foreground {
        sys::setsid().on("setsid")?;
    }
    sys::raise_nofile();
    sys::shed_priority();
    std::env::set_current_dir("/").on("/")?;
    let signals = Signals::new().on("waiting for signals")?;
    let arguments = daemon::Args {
        worker: true,
        ..args
    };
    let (takeovers, taken_over, deaths, brief) = (0, String::new(), VecDeque::new(), 0);
    let mut holder = Holder {
        arguments,
        signals,
        held: None,
        branches: HashMap::new(),
        takeovers,
        taken_over,
        deaths,
        brief,
    };
    loop {
        let (served, status) = holder.one_worker()?;
        match status {
            _ if served.in_order => return Ok(()),
            Some(status) if holder.held.is_none() && status.success() => return Ok(()),
            // The worker reported the error.
            _ if holder.held.is_none() => return Err(Failure::No),
            _ => {}
        }
        if !holder.is_worth_it(&served) {
            tracing::error!(
                "the daemon keeps dying: no other takes over, and the mount is dead (`ckptfs mount` repairs it)"
            );
            return Err(Failure::No);
        }
        holder.takeovers += 1;
        holder.taken_over = jiff::Timestamp::now().to_string();
        tracing::warn!(
            ?status,
            takeover = holder.takeovers,
            "the daemon died; another takes over"
        );
    }
}

impl Holder {
    /// Starts a worker, and serves it until it is gone.
    fn one_worker(&mut self) -> VerbResult<(WorkerOutcome, Option<ExitStatus>)> {
        let (ours, theirs) = sys::message_pair().on("starting the daemon")?;
        let mut worker = self.spawn(theirs).on("starting the daemon")?;
        let mut served = WorkerOutcome::default();
        if self.brief_it(&ours).is_ok() {
            self.listen(&ours, &worker, &mut served);
        }
        // A worker that ends in order waits for the end of the holder.
        let status = if served.in_order {
            None
        } else {
            reap(&mut worker)
        };
        Ok((served, status))
    }

    fn spawn(&self, socket: OwnedFd) -> std::io::Result<Child> {
        host::close_on_exec();
        let mut command = Command::new(program());
        command
            .arg0("ckptfs")
            .args(self.arguments.arguments())
            .current_dir("/")
            .stdin(Stdio::from(socket));
        command.spawn()
    }

    /// Sends the state to a new worker.
    fn brief_it(&self, socket: &OwnedFd) -> SysResult<()> {
        let mut message = vec![if self.held.is_some() { b'T' } else { b'S' }];
        message.extend(self.takeovers.to_le_bytes());
        message.extend(self.taken_over.bytes());
        let Some(held) = &self.held else {
            return sys::send_message(socket, &message, &[]);
        };
        sys::send_message(socket, &message, &held.fds.all())?;
        held.hand_on_files(socket)?;
        for (id, held) in &self.branches {
            send_patiently(socket, &about(b't', Some(*id)), &held.fds.all(), None)?;
            held.hand_on_files(socket)?;
        }
        send_patiently(socket, b"E", &[], None)
    }

    /// Processes the messages of the worker until it is gone, and forwards signals to it.
    fn listen(&mut self, socket: &OwnedFd, worker: &Child, served: &mut WorkerOutcome) {
        let mut buffer = [0; MESSAGE_MAX];
        loop {
            let Ok([said, signalled]) =
                sys::wait_readable([socket.as_fd(), self.signals.as_fd()], None)
            else {
                return;
            };
            if signalled {
                while let Some(signal) = self.signals.take() {
                    let pid = i32::try_from(worker.id()).unwrap_or(0);
                    let _ = sys::kill(pid, signal);
                }
            }
            if said {
                match sys::receive_message(socket, &mut buffer) {
                    Ok((0, _)) | Err(_) => return,
                    Ok((length, fds)) => self.take(
                        socket,
                        buffer.get(..length).unwrap_or_default(),
                        fds,
                        served,
                    ),
                }
                if served.in_order {
                    return;
                }
            }
        }
    }

    fn take(
        &mut self,
        socket: &OwnedFd,
        message: &[u8],
        mut fds: Vec<OwnedFd>,
        served: &mut WorkerOutcome,
    ) {
        let number = number_in(message).unwrap_or(0);
        match (message.first(), &mut self.held) {
            (Some(b'M'), _) if fds.len() >= 3 => {
                let log = if message.ends_with(b"l") {
                    fds.pop()
                } else {
                    None
                };
                self.held = HeldTree::of(fds);
                if let Some(log) = log {
                    let_go_of_terminal(&log);
                }
                // A failure means that the worker died, which is detected later.
                let _ = sys::send_message(socket, b"m", &[]);
            }
            (Some(b'R'), _) => served.since = Some(Instant::now()),
            (Some(b'K'), Some(held)) => held.files.extend(fds.pop().map(|file| (number, file))),
            (Some(b'D'), Some(held)) => drop(held.files.remove(&number)),
            (Some(b'B'), _) => {
                served.in_order = true;
                self.held = None;
                self.branches.clear();
            }
            (Some(letter), Some(_)) => self.take_of_branch(*letter, message, fds),
            _ => {}
        }
    }

    fn take_of_branch(&mut self, letter: u8, message: &[u8], mut fds: Vec<OwnedFd>) {
        let Some((id, number)) = branch_in(message) else {
            return;
        };
        let held = self.branches.get_mut(&id);
        match (letter, held, number) {
            (b'H', ..) => match HeldTree::of(fds) {
                Some(held) => drop(self.branches.insert(id, held)),
                None => tracing::warn!(
                    "there is no room for the descriptors of a branch: it dies with the daemon"
                ),
            },
            (b'L', ..) => drop(self.branches.remove(&id)),
            (b'k', Some(held), Some(number)) => {
                held.files.extend(fds.pop().map(|file| (number, file)));
            }
            (b'd', Some(held), Some(number)) => drop(held.files.remove(&number)),
            _ => {}
        }
    }

    /// Reports whether another worker should be started.
    fn is_worth_it(&mut self, served: &WorkerOutcome) -> bool {
        let now = Instant::now();
        self.brief = if served.since.is_some_and(|since| since.elapsed() > BRIEF) {
            0
        } else {
            self.brief + 1
        };
        self.deaths.push_back(now);
        self.deaths
            .retain(|death| now.duration_since(*death) < OFTEN);
        self.brief < BRIEF_MAX && self.deaths.len() <= OFTEN_MAX
    }
}

/// Returns the exit status of a worker; `None` if threads of it still wait.
fn reap(worker: &mut Child) -> Option<ExitStatus> {
    let started = Instant::now();
    loop {
        match worker.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if started.elapsed() < REAP_TIMEOUT => std::thread::sleep(REAP_PAUSE),
            Ok(None) | Err(_) => return None,
        }
    }
}

/// Redirects messages from the terminal to the log, from the first mount on.
fn let_go_of_terminal(log: &OwnedFd) {
    let Ok(null) = null() else {
        return;
    };
    for (number, to) in [(0, null.as_fd()), (1, null.as_fd()), (2, log.as_fd())] {
        let _ = host::redirect_stdio(number, to);
    }
}

/// Opens the replacement of a terminal.
pub fn null() -> std::io::Result<File> {
    File::options().read(true).write(true).open("/dev/null")
}
