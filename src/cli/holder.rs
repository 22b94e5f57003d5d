//! The holder: a small process that keeps a mount alive when its daemon, the **worker**, dies, and
//! starts another, which takes over (docs/adr/0009-the-mount-outlives-its-daemon.md).
//!
//! It holds descriptors and does nothing with them: `/dev/fuse`, without which the connection would
//! end; the backing directory, to which no path leads below the mount; the ledger, in which a
//! worker writes what the next must know; and open files that have no name. Requests of the kernel
//! wait while there is no worker.
//!
//! The two talk over a socket that keeps messages whole: a letter, and what belongs to it.
//!
//! ```text
//!   to the worker     S count time                      serve: mount
//!                     T count time [ledger, device, root, control?]   take over; then
//!                     O number [file]                   an open file without a name, any number of times
//!                     t store [ledger, device, root, control?]   a branch, any number of times; its O follow
//!                     E                                 that is all
//!                     m                                 these are held
//!   from the worker   M [ledger, device, root, control?, log?]   it is mounted: hold these; the letter l follows if there is a log
//!                     R                                 it serves
//!                     K number [file], D number         hold this, let go of it
//!                     H store [ledger, device, root, control?]   a branch is mounted: hold these
//!                     L store                           its mount is gone, or nobody will serve it: let go
//!                     k store number [file], d store number   as K and D, of a branch
//!                     B                                 it ends in order: let go of all, and end first
//! ```
//!
//! A branch is named by the number of its store: one is served once at a time. Nobody else can say
//! anything here: the socket has no name, and the worker's end is its stdin.

mod link;
mod words;

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

pub use self::link::{Before, Link, meet};
use self::words::{MESSAGE_MAX, TreeFds, about, branch_in, number_in, numbered, send_patiently};
use super::daemon;
use super::error::{Failure, On, Outcome};
use super::launch::program;
use crate::engine::api::VerbResult;
use crate::store::layout::StoreId;
use crate::sys::host;
use crate::sys::{self, Signals, SysResult};

/// A worker that died sooner than this after it began to serve made no difference.
const BRIEF: Duration = Duration::from_millis(250);
/// So many in a row that made none, and the holder gives up.
const BRIEF_MAX: u32 = 5;
/// So many in [`OFTEN`], and it gives up too.
const OFTEN_MAX: usize = 60;
const OFTEN: Duration = Duration::from_secs(60);
/// A worker whose descriptors are closed is waited for so long: what is left of it may wait for the
/// mount, and so for the next worker.
const REAP_TIMEOUT: Duration = Duration::from_millis(500);
const REAP_PAUSE: Duration = Duration::from_millis(1);

/// What the holder holds of a tree for the next worker.
struct Held {
    fds: TreeFds,
    /// Open files without a name, by their inodes.
    files: HashMap<u64, OwnedFd>,
}

impl Held {
    fn of(fds: Vec<OwnedFd>) -> Option<Held> {
        Some(Held {
            fds: TreeFds::of(fds)?,
            files: HashMap::new(),
        })
    }

    /// Tells a worker of the files.
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

/// How a worker's time went.
#[derive(Default)]
struct Served {
    since: Option<Instant>,
    in_order: bool,
}

struct Holder {
    arguments: daemon::Args,
    signals: Signals,
    held: Option<Held>,
    /// What it holds of the tree's branches, and of theirs.
    branches: HashMap<StoreId, Held>,
    takeovers: u32,
    taken_over: String,
    deaths: VecDeque<Instant>,
    brief: u32,
}

/// Holds a mount: starts a worker, and another when that one dies. Returns when the mount is gone.
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
            // What went wrong was told by it.
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
    /// Starts a worker, and stays with it until it is gone.
    fn one_worker(&mut self) -> VerbResult<(Served, Option<ExitStatus>)> {
        let (ours, theirs) = sys::message_pair().on("starting the daemon")?;
        let mut worker = self.spawn(theirs).on("starting the daemon")?;
        let mut served = Served::default();
        if self.brief_it(&ours).is_ok() {
            self.listen(&ours, &worker, &mut served);
        }
        // One that ends in order waits for our end.
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

    /// Tells a new worker what it finds.
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

    /// Does what the worker says until it is gone, and hands signals on to it.
    fn listen(&mut self, socket: &OwnedFd, worker: &Child, served: &mut Served) {
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
        served: &mut Served,
    ) {
        let number = number_in(message).unwrap_or(0);
        match (message.first(), &mut self.held) {
            (Some(b'M'), _) if fds.len() >= 3 => {
                let log = if message.ends_with(b"l") {
                    fds.pop()
                } else {
                    None
                };
                self.held = Held::of(fds);
                if let Some(log) = log {
                    let_go_of_terminal(&log);
                }
                // If it does not hear it, it has died, and that will be seen.
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
            (b'H', ..) => match Held::of(fds) {
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

    /// Whether another worker may do better than those before.
    fn is_worth_it(&mut self, served: &Served) -> bool {
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

/// How a worker ended; `None` if threads of it wait for something still.
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

/// From the first mount on, what there is to say goes to the log.
fn let_go_of_terminal(log: &OwnedFd) {
    let Ok(null) = null() else {
        return;
    };
    for (number, to) in [(0, null.as_fd()), (1, null.as_fd()), (2, log.as_fd())] {
        let _ = host::redirect_stdio(number, to);
    }
}

/// What takes the place of a terminal.
pub fn null() -> std::io::Result<File> {
    File::options().read(true).write(true).open("/dev/null")
}
