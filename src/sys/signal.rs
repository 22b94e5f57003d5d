//! Signals, taken by waiting for them: no handler runs, so nothing runs at a moment that nobody chose.

use std::mem::MaybeUninit;
use std::ptr;
use std::thread::{Builder, JoinHandle};

use super::name::check;
use super::types::{Errno, SysResult};

/// The signals that ask the daemon to end.
const TERMINATE: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// Keeps SIGTERM, SIGINT and SIGHUP pending in this thread and in all that it starts from now on.
///
/// Call it before any thread is started: a signal goes to whichever thread does not block it. Children started with
/// `std::process::Command` do not inherit it.
pub fn block_terminate() -> SysResult<()> {
    let set = terminate_set();
    // SAFETY: `set` is initialised and lives through the call; the old mask is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, ptr::null_mut()) } {
        0 => Ok(()),
        number => Err(Errno(number)),
    }
}

/// Waits until one of the signals of [`block_terminate`] comes, and gives its number (sigwait(3)).
pub fn wait_terminate() -> SysResult<i32> {
    let set = terminate_set();
    let mut signal = 0;
    loop {
        // SAFETY: `set` is initialised, `signal` may be written, and both live through the call.
        match unsafe { libc::sigwait(&set, &mut signal) } {
            0 => return Ok(signal),
            libc::EINTR => {}
            number => return Err(Errno(number)),
        }
    }
}

/// Blocks the signals as [`block_terminate`] does and starts a thread that calls `ask_to_end` with the first that comes.
///
/// Call it before other threads are started. The thread ends after the call; a later signal stays pending.
pub fn on_terminate(ask_to_end: impl FnOnce(i32) + Send + 'static) -> SysResult<JoinHandle<()>> {
    block_terminate()?;
    let wait = move || {
        if let Ok(signal) = wait_terminate() {
            ask_to_end(signal);
        }
    };
    Builder::new().name("signals".into()).spawn(wait).map_err(Errno::from)
}

/// Makes writes to a closed pipe or socket fail with EPIPE instead of ending the process.
pub fn ignore_sigpipe() -> SysResult<()> {
    ignore(libc::SIGPIPE)
}

/// Ignores SIGIO, which would end the process when somebody opens a file while [`super::lease_free`] holds its lease.
pub fn ignore_sigio() -> SysResult<()> {
    ignore(libc::SIGIO)
}

/// Sets a signal's disposition to "ignore", for the whole process.
fn ignore(signal: libc::c_int) -> SysResult<()> {
    // SAFETY: an all-zero sigaction is valid: no flags, an empty mask, and SIG_DFL, replaced below.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = libc::SIG_IGN;
    // SAFETY: `action` is initialised and lives through the call; SIG_IGN runs no code of ours.
    check(unsafe { libc::sigaction(signal, &action, ptr::null_mut()) }).map(|_| ())
}

/// The set of the signals in [`TERMINATE`].
fn terminate_set() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set it is given; sigaddset then changes that set, with valid signal numbers.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in TERMINATE {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}
