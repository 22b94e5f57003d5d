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

#[cfg(test)]
mod tests {
    use std::os::unix::thread::JoinHandleExt;
    use std::sync::mpsc;

    use super::*;

    // Each signal goes to one thread that blocks it, so that the other tests of this process live on.

    #[test]
    fn a_blocked_signal_is_waited_for() {
        let thread = std::thread::spawn(|| {
            block_terminate().expect("block");
            // SAFETY: raise(3) takes a signal number and sends it to this thread, which blocks it.
            assert_eq!(unsafe { libc::raise(libc::SIGHUP) }, 0);
            assert_eq!(wait_terminate(), Ok(libc::SIGHUP));
        });
        thread.join().expect("thread");
    }

    #[test]
    fn the_callback_gets_the_signal() {
        let thread = std::thread::spawn(|| {
            let (sender, receiver) = mpsc::channel();
            let waiter = on_terminate(move |signal| sender.send(signal).expect("send")).expect("on_terminate");
            // SAFETY: the thread has not been joined, so its handle is valid, and it was started with the signal blocked.
            assert_eq!(unsafe { libc::pthread_kill(waiter.as_pthread_t(), libc::SIGTERM) }, 0);
            assert_eq!(receiver.recv(), Ok(libc::SIGTERM));
            waiter.join().expect("join");
        });
        thread.join().expect("thread");
        assert_eq!(ignore_sigpipe(), Ok(()));
    }
}
