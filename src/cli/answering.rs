//! Who answers for a tree: its session, and the threads of its control socket.

use std::os::unix::net::UnixListener;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::daemon::Args;
use super::error::On;
use crate::control::{Answers, SOCKET_NAME, serve};
use crate::engine::Engine;
use crate::engine::api::VerbResult;
use crate::engine::verbs::Answerer;
use crate::fuse::Session;
use crate::sys::host;
use crate::sys::{self, Errno};

/// So long an inode is waited for on a full disk, for the control socket; and between two attempts.
const BIND_WAIT: Duration = Duration::from_millis(300);
const BIND_PAUSE: Duration = Duration::from_millis(10);
/// How often it is tried to make the control socket of a mount that serves without one.
const BIND_PERIOD: Duration = Duration::from_secs(1);
/// Threads that wait for somebody at the control socket of a tree, and at that of a branch, of which
/// there are many.
const CONTROL_THREADS: usize = 2;
const CONTROL_THREADS_OF_BRANCH: usize = 1;

/// Why a tree is served no longer.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The mount is gone.
    Session,
    /// It was asked to end although the (detached) mount is in use.
    Asked,
    /// A signal.
    Signal(i32),
}

/// Binds the control socket in the store, in place of what a daemon before left there: the store's
/// lock says that it runs no more.
pub fn bind(engine: &Engine) -> std::io::Result<UnixListener> {
    let store = engine.store_fd();
    match sys::unlink_at(store, SOCKET_NAME.as_bytes()) {
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(cause) => return Err(cause.into()),
    }
    let path = host::path_in(store, SOCKET_NAME)?;
    let started = Instant::now();
    let listener = loop {
        match engine.with_last_room(|| UnixListener::bind(&path)) {
            // XFS frees the inode of the one that was removed in its own time.
            Err(cause) if lacks_room(&cause) && started.elapsed() < BIND_WAIT => {
                std::thread::sleep(BIND_PAUSE)
            }
            bound => break bound?,
        }
    };
    host::chmod_in(store, SOCKET_NAME, 0o600)?;
    Ok(listener)
}

/// Starts what serves, and has `tell_end` hear why it is to end, in a thread that should not be kept.
/// Who answers is in `answers`: without a listener, as soon as there is room for one.
pub fn start_threads(
    args: &Args,
    engine: &Arc<Engine>,
    listener: Option<UnixListener>,
    session: Session,
    answers: &Arc<OnceLock<Answers>>,
    tell_end: impl Fn(End) + Send + Sync + 'static,
) -> VerbResult<()> {
    let tell_end = Arc::new(tell_end);
    let tell_asked = Arc::clone(&tell_end);
    let leave = move || tell_asked(End::Asked);
    let tree = sys::mount_source(&args.backing);
    let idle = match engine.branches().own_id() {
        Some(_) => CONTROL_THREADS_OF_BRANCH,
        None => CONTROL_THREADS,
    };
    let answerer = Arc::clone(engine) as Arc<dyn Answerer>;
    match listener {
        Some(listener) => {
            let served = serve(listener, answerer, tree, idle, leave).on("starting threads")?;
            drop(answers.set(served));
        }
        None => {
            let (engine, answers) = (Arc::clone(engine), Arc::clone(answers));
            let try_again = move || {
                let served =
                    bind_late(&engine).and_then(|bound| serve(bound, answerer, tree, idle, leave));
                match served {
                    Ok(served) => drop(answers.set(served)),
                    Err(error) => tracing::error!(%error, "the control socket cannot be made"),
                }
            };
            std::thread::Builder::new()
                .name("control".into())
                .spawn(try_again)
                .on("starting threads")?;
        }
    }
    // After the others: whoever hears of the end ends them.
    session.at_end(move |served| {
        if let Err(error) = served {
            tracing::error!(%error, "the session failed");
        }
        tell_end(End::Session);
    });
    Ok(())
}

/// Binds the control socket once there is room for it.
fn bind_late(engine: &Engine) -> std::io::Result<UnixListener> {
    loop {
        std::thread::sleep(BIND_PERIOD);
        match bind(engine) {
            Err(cause) if lacks_room(&cause) => {}
            bound => return bound,
        }
    }
}

pub fn lacks_room(cause: &std::io::Error) -> bool {
    cause
        .raw_os_error()
        .is_some_and(|number| Errno(number).is_no_room())
}
