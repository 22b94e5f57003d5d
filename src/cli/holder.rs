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
//!                     E                                 that is all
//!                     m                                 these are held
//!   from the worker   M [ledger, device, root, control?, log?]   it is mounted: hold these; the letters c and l follow if those are there
//!                     R                                 it serves
//!                     K number [file], D number         hold this, let go of it
//!                     B                                 it ends in order: let go of all, and end first
//! ```

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::daemon;
use super::error::{Failure, On, Outcome, error};
use super::launch::program;
use crate::engine::api::{Code, VerbError, VerbResult};
use crate::engine::succession::Succession;
use crate::live::{Keeper, Orphans};
use crate::sys::host;
use crate::sys::{self, Errno, Ledger, Signals, SysResult};

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
/// Bytes of a message at most.
const MESSAGE_MAX: usize = 64;
/// How long a worker that ends waits until the holder has ended.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// What the holder holds for the next worker.
struct Held {
    ledger: OwnedFd,
    device: OwnedFd,
    root: OwnedFd,
    /// The socket that listens for verbs: whoever connects while there is no worker waits for the
    /// next, and nothing need be made on a full disk.
    control: Option<OwnedFd>,
    files: HashMap<u64, OwnedFd>,
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
                "the daemon dies again and again: nobody takes over, the mount is dead (`ckptfs mount` repairs it)"
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
        let fds = [&held.ledger, &held.device, &held.root]
            .into_iter()
            .chain(&held.control);
        sys::send_message(socket, &message, &fds.map(AsFd::as_fd).collect::<Vec<_>>())?;
        for (number, file) in &held.files {
            send_patiently(socket, &numbered(b'O', *number), &[file.as_fd()])?;
        }
        send_patiently(socket, b"E", &[])
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
                let control = if message.contains(&b'c') {
                    fds.pop()
                } else {
                    None
                };
                let mut fds = fds.into_iter();
                if let (Some(ledger), Some(device), Some(root)) =
                    (fds.next(), fds.next(), fds.next())
                {
                    self.held = Some(Held {
                        ledger,
                        device,
                        root,
                        control,
                        files: HashMap::new(),
                    });
                }
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
            }
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

fn numbered(letter: u8, number: u64) -> Vec<u8> {
    [&[letter][..], &number.to_le_bytes()].concat()
}

fn number_in(message: &[u8]) -> Option<u64> {
    let bytes = message.get(1..9)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*bytes))
}

/// Sends a message to somebody who will read it, or die.
fn send_patiently(socket: &OwnedFd, message: &[u8], fds: &[BorrowedFd<'_>]) -> SysResult<()> {
    loop {
        match sys::send_message(socket, message, fds) {
            Err(Errno::EAGAIN) => std::thread::sleep(REAP_PAUSE),
            sent => return sent,
        }
    }
}

/// What a worker that died has left.
pub struct Before {
    pub device: OwnedFd,
    pub root: OwnedFd,
    pub orphans: Orphans,
    pub control: Option<OwnedFd>,
    ledger: OwnedFd,
}

/// The worker's end.
pub struct Link {
    socket: OwnedFd,
    takeovers: u32,
    taken_over: Option<String>,
    ledger: std::sync::OnceLock<Arc<Ledger>>,
}

/// What the holder says to a worker.
struct Hearing {
    socket: OwnedFd,
    buffer: [u8; MESSAGE_MAX],
}

impl Hearing {
    fn next(&mut self) -> VerbResult<(Vec<u8>, Vec<OwnedFd>)> {
        let (length, fds) = sys::receive_message(&self.socket, &mut self.buffer).on(HEARING)?;
        let message = self.buffer.get(..length).unwrap_or_default();
        Ok((message.to_vec(), fds))
    }

    /// The open files without a name, up to the message that says that these are all.
    fn orphans(&mut self) -> VerbResult<Orphans> {
        let mut orphans = Orphans::new();
        loop {
            let (message, mut files) = self.next()?;
            match (message.first(), number_in(&message), files.pop()) {
                (Some(b'O'), Some(number), Some(file)) => drop(orphans.insert(number, file)),
                (Some(b'E'), ..) => return Ok(orphans),
                _ => return Err(not_understood()),
            }
        }
    }
}

const HEARING: &str = "hearing from the holder";

fn not_understood() -> VerbError {
    error(Code::Internal, "the holder says what nobody understands")
}

/// In a worker: takes the socket that is its stdin, and hears what there is to do.
pub fn meet() -> VerbResult<(Arc<Link>, Option<Before>)> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().on(HEARING)?;
    host::redirect_stdio(0, &null().on(HEARING)?).on(HEARING)?;
    let buffer = [0; MESSAGE_MAX];
    let mut hearing = Hearing { socket, buffer };
    let (first, fds) = hearing.next()?;
    let count = first.get(1..5).and_then(|bytes| bytes.first_chunk::<4>());
    let time = first
        .get(5..)
        .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        .filter(|time| !time.is_empty());
    let mut fds = fds.into_iter();
    let before = match (first.first(), fds.next(), fds.next(), fds.next()) {
        (Some(b'S'), ..) => None,
        (Some(b'T'), Some(ledger), Some(device), Some(root)) => Some(Before {
            device,
            root,
            control: fds.next(),
            orphans: hearing.orphans()?,
            ledger,
        }),
        _ => return Err(not_understood()),
    };
    let link = Link {
        socket: hearing.socket,
        takeovers: count.map_or(0, |bytes| u32::from_le_bytes(*bytes)),
        taken_over: time,
        ledger: std::sync::OnceLock::new(),
    };
    Ok((Arc::new(link), before))
}

impl Link {
    /// What the engine is to know of it; the orphans are to be added.
    pub fn succession(self: &Arc<Self>, before: Option<&Before>) -> VerbResult<Succession> {
        let ledger = match before {
            Some(before) => Ledger::open(before.ledger.try_clone().on("the ledger of the mount")?)
                .on("the ledger of the mount")?,
            None => Ledger::create().on("the ledger of the mount")?,
        };
        let ledger = Arc::clone(self.ledger.get_or_init(|| Arc::new(ledger)));
        let keeper = Arc::clone(self) as Arc<dyn Keeper>;
        let holder = std::os::unix::process::parent_id();
        Ok(Succession {
            ledger,
            keeper,
            orphans: None,
            holder,
            takeovers: self.takeovers,
            taken_over: self.taken_over.clone(),
        })
    }

    /// The mount is made: the holder is to hold what the next worker needs, and does when this
    /// returns.
    pub fn mounted(
        &self,
        device: BorrowedFd<'_>,
        root: BorrowedFd<'_>,
        control: Option<BorrowedFd<'_>>,
        log: Option<BorrowedFd<'_>>,
    ) -> SysResult<()> {
        let ledger = self.ledger.get().ok_or(Errno::EINVAL)?;
        let message: Vec<u8> = [Some(b'M'), control.map(|_| b'c'), log.map(|_| b'l')]
            .into_iter()
            .flatten()
            .collect();
        let fds: Vec<BorrowedFd<'_>> = [ledger.fd(), device, root]
            .into_iter()
            .chain(control)
            .chain(log)
            .collect();
        sys::send_message(&self.socket, &message, &fds)?;
        sys::receive_message(&self.socket, &mut [0; MESSAGE_MAX]).map(drop)
    }

    /// Requests are served.
    pub fn serves(&self) {
        self.say(b"R", &[]);
    }

    /// The mount is gone: waits until the holder is too, so that whoever waits for this process
    /// finds neither.
    pub fn end(&self) {
        self.say(b"B", &[]);
        let _ = sys::wait_readable([self.socket.as_fd()], Some(END_TIMEOUT));
    }

    /// Without a holder there is nobody to be told.
    fn say(&self, message: &[u8], fds: &[BorrowedFd<'_>]) {
        match sys::send_message(&self.socket, message, fds) {
            Ok(()) | Err(Errno::EPIPE | Errno::ECONNRESET) => {}
            Err(cause) => {
                tracing::warn!(%cause, "the holder was not told; what is open may be lost if this daemon dies")
            }
        }
    }
}

impl Keeper for Link {
    fn keep(&self, number: u64, fd: BorrowedFd<'_>) {
        self.say(&numbered(b'K', number), &[fd]);
    }

    fn let_go(&self, number: u64) {
        self.say(&numbered(b'D', number), &[]);
    }
}
