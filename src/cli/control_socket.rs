//! The control socket of a tree, its threads, and the callback at the end of the session.

use std::os::unix::net::UnixListener;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::daemon::Args;
use ckptfs_api::{SOCKET_NAME, VerbResult};
use ckptfs_core::engine::Engine;
use ckptfs_core::engine::verbs::RequestHandler;
use ckptfs_daemon::{ServerHandle, serve};
use ckptfs_fuse::Session;
use ckptfs_sys::{self as sys, Errno, host};
use ckptfs_ui::error::ErrorContext;

/// Limit of the wait for an inode on a full disk, and the pause between attempts.
const BIND_WAIT: Duration = Duration::from_millis(300);
const BIND_PAUSE: Duration = Duration::from_millis(10);
/// Period of attempts to create the control socket of a mount that serves without one.
const BIND_PERIOD: Duration = Duration::from_secs(1);
/// Idle threads at the control socket of a tree, and of a branch: a tree can have many branches.
const CONTROL_THREADS: usize = 2;
const CONTROL_THREADS_OF_BRANCH: usize = 1;

/// The reason why a tree stops being served.
#[derive(Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The session ended: the mount is gone.
    Session,
    /// A client requested the end although the (detached) mount is in use.
    Asked,
    /// A termination signal.
    Signal(i32),
}

/// Binds the control socket in the store and replaces that of an earlier daemon. That daemon no
/// longer runs, because this process holds the lock of the store.
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
            // XFS frees the inode of the removed socket asynchronously.
            Err(cause) if lacks_room(&cause) && started.elapsed() < BIND_WAIT => {
                std::thread::sleep(BIND_PAUSE)
            }
            bound => break bound?,
        }
    };
    host::chmod_in(store, SOCKET_NAME, 0o600)?;
    Ok(listener)
}

/// Starts the threads of the control socket and registers the callback of the session's end.
/// `tell_end` must not block. `answers` is set when the socket is served: without a listener, once
/// the disk has room for one.
pub fn start_threads(
    args: &Args,
    engine: &Arc<Engine>,
    listener: Option<UnixListener>,
    session: Session,
    answers: &Arc<OnceLock<ServerHandle>>,
    tell_end: impl Fn(EndReason) + Send + Sync + 'static,
) -> VerbResult<()> {
    let tell_end = Arc::new(tell_end);
    let tell_asked = Arc::clone(&tell_end);
    let leave = move || tell_asked(EndReason::Asked);
    let tree = sys::mount_source(&args.backing);
    let idle = match engine.branches().own_id() {
        Some(_) => CONTROL_THREADS_OF_BRANCH,
        None => CONTROL_THREADS,
    };
    let answerer = Arc::clone(engine) as Arc<dyn RequestHandler>;
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
    // Registered last: the receiver of the end stops the other threads.
    session.at_end(move |served| {
        if let Err(error) = served {
            tracing::error!(%error, "the session failed");
        }
        tell_end(EndReason::Session);
    });
    Ok(())
}

/// Binds the control socket once the disk has room for it.
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
