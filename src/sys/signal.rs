//! Signals, received synchronously by waiting for them: no handler interrupts other code.

use std::mem::MaybeUninit;
use std::process::Command;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::{Builder, JoinHandle};

use super::name::check;
use super::types::{Errno, SysResult};

/// The signals that request termination of the daemon.
const TERMINATE: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// Blocks SIGTERM, SIGINT and SIGHUP in this thread and in all threads that it starts later.
///
/// Call it before any thread is started, because the kernel delivers a signal to any thread that
/// does not block it. Children inherit the mask, unless they are started with [`start_unblocked`].
pub fn block_terminate() -> SysResult<()> {
    let set = terminate_set();
    // SAFETY: `set` is initialised and lives through the call; the old mask is not requested.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, ptr::null_mut()) } {
        0 => Ok(()),
        number => Err(Errno(number)),
    }
}

/// Waits for one of the signals of [`block_terminate`] and returns its number (sigwait(3)).
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

/// Blocks the signals as [`block_terminate`] does and starts a thread that calls `ask_to_end` with
/// the first one received.
///
/// Call it before other threads are started. The thread ends after the call; later signals stay
/// pending.
pub fn on_terminate(ask_to_end: impl FnOnce(i32) + Send + 'static) -> SysResult<JoinHandle<()>> {
    block_terminate()?;
    let wait = move || {
        if let Ok(signal) = wait_terminate() {
            ask_to_end(signal);
        }
    };
    Builder::new()
        .name("signals".into())
        .spawn(wait)
        .map_err(Errno::from)
}

/// Signals forwarded to a command that the user runs through this process.
const PASSED_ON: [libc::c_int; 6] = [
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
];

/// Forwards signals sent to this process to the command that it runs, from a thread. `command`
/// holds the command's pid, or 0 if none runs. A signal received while none runs is stored there,
/// negated, and the caller forwards it to the next command. Signals from the terminal are not
/// forwarded: the command is in the same process group and receives them from the kernel.
///
/// Call it before other threads are started. SIGTSTP and SIGCONT are not blocked, because they must
/// stop and continue both processes.
pub fn pass_signals_on(command: Arc<AtomicI32>) -> SysResult<()> {
    let set = set_of(&PASSED_ON);
    // SAFETY: `set` is initialised and lives through the call; the old mask is not requested.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, ptr::null_mut()) } {
        0 => {}
        number => return Err(Errno(number)),
    }
    let pass_on = move || {
        while let Ok((signal, by_process)) = wait_for(&set) {
            if !by_process {
                continue;
            }
            // Without a command the signal is left for the next one.
            let leave = |pid| (pid <= 0).then_some(-signal);
            let found = command.fetch_update(Ordering::SeqCst, Ordering::SeqCst, leave);
            if let Err(pid) = found {
                // The command may have just ended, but it is not yet reaped, so its pid is not
                // reused.
                let _ = super::kill(pid, signal);
            }
        }
    };
    Builder::new()
        .name("signals".into())
        .spawn(pass_on)
        .map(drop)
        .map_err(Errno::from)
}

/// Starts a thread that receives no signals, independent of later masks: other threads receive the
/// signals of the process.
pub fn start_without_signals(
    run: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: sigfillset initialises its argument, which lives through both calls; the second one
    // stores the mask of this thread in `before`.
    let masked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr())
    };
    if masked != 0 {
        return Err(std::io::Error::from_raw_os_error(masked));
    }
    let started = Builder::new().spawn(run);
    // SAFETY: the call above has initialised `before`.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    started
}

/// Starts a command with no signal blocked. A child inherits the mask of this thread, which
/// `std::process::Command` does not change.
pub fn start_unblocked(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    let none = set_of(&[]);
    // SAFETY: the child makes one call between fork and exec. It is async-signal-safe
    // (signal-safety(7)), and the closure owns the set.
    unsafe {
        command.pre_exec(move || {
            match libc::pthread_sigmask(libc::SIG_SETMASK, &none, ptr::null_mut()) {
                0 => Ok(()),
                number => Err(std::io::Error::from_raw_os_error(number)),
            }
        });
    }
}

/// Kills a command when the thread that starts it ends, and ends it by SIGALRM after `seconds` in
/// any case.
pub fn end_with_us(command: &mut Command, seconds: u32) {
    use std::os::unix::process::CommandExt;
    let starter = std::process::id();
    // SAFETY: the child makes three system calls between fork and exec, which touch no memory of
    // this process (signal-safety(7)).
    unsafe {
        command.pre_exec(move || {
            #[cfg(target_os = "linux")]
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            // The parent may have ended before the setting took effect.
            let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
            if parent.map(i32::cast_unsigned) != Some(starter) {
                return Err(std::io::ErrorKind::BrokenPipe.into());
            }
            libc::alarm(seconds);
            Ok(())
        });
    }
}

/// Waits for a signal of a set, all of which are blocked. Returns its number, and whether a process
/// sent it rather than the kernel (the terminal).
#[cfg(target_os = "linux")]
fn wait_for(set: &libc::sigset_t) -> SysResult<(i32, bool)> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    loop {
        // SAFETY: both live through the call; a zeroed `info` is valid whether or not the call
        // fills it.
        let signal = unsafe { libc::sigwaitinfo(set, info.as_mut_ptr()) };
        match check(signal) {
            // SAFETY: a valid siginfo_t, see above. Signals of the kernel have a positive code
            // (sigaction(2)).
            Ok(_) => return Ok((signal, unsafe { info.assume_init_ref() }.si_code <= 0)),
            Err(Errno(libc::EINTR)) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// As on Linux. The sender is unknown here, so the two signals with terminal keys count as sent by
/// the terminal.
#[cfg(not(target_os = "linux"))]
fn wait_for(set: &libc::sigset_t) -> SysResult<(i32, bool)> {
    let mut signal = 0;
    loop {
        // SAFETY: `set` is initialised, `signal` may be written, and both live through the call.
        match unsafe { libc::sigwait(set, &mut signal) } {
            0 => return Ok((signal, ![libc::SIGINT, libc::SIGQUIT].contains(&signal))),
            libc::EINTR => {}
            number => return Err(Errno(number)),
        }
    }
}

/// Waits until a child has ended, without reaping it, so that its pid is not reused (waitid(2),
/// `WNOWAIT`).
pub fn wait_ended(child: u32) -> SysResult<()> {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
    let pid = i32::try_from(child)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or(Errno::EINVAL)?;
    loop {
        match waitid(
            WaitId::Pid(pid),
            WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
        ) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Ignores SIGIO, which would terminate the process if a file is opened while [`super::lease_free`]
/// holds its lease.
pub fn ignore_sigio() -> SysResult<()> {
    ignore(libc::SIGIO)
}

/// Ignores a signal in the whole process.
fn ignore(signal: libc::c_int) -> SysResult<()> {
    // SAFETY: an all-zero sigaction is valid: no flags, an empty mask, and SIG_DFL, replaced below.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = libc::SIG_IGN;
    // SAFETY: `action` is initialised and lives through the call; SIG_IGN installs no handler.
    check(unsafe { libc::sigaction(signal, &action, ptr::null_mut()) }).map(|_| ())
}

fn terminate_set() -> libc::sigset_t {
    set_of(&TERMINATE)
}

fn set_of(signals: &[libc::c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises its argument; sigaddset then changes that set, with valid
    // signal numbers.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::thread::JoinHandleExt;
    use std::sync::mpsc;

    use super::*;

    // Each signal is sent to one thread that blocks it, so that the other tests of this process
    // survive.

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
            let waiter = on_terminate(move |signal| sender.send(signal).expect("send"))
                .expect("on_terminate");
            // SAFETY: the thread has not been joined, so its handle is valid, and it was started
            // with the signal blocked.
            let sent = unsafe { libc::pthread_kill(waiter.as_pthread_t(), libc::SIGTERM) };
            assert_eq!(sent, 0);
            assert_eq!(receiver.recv(), Ok(libc::SIGTERM));
            waiter.join().expect("join");
        });
        thread.join().expect("thread");
    }
}
