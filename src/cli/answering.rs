//! Who answers for a tree: the thread of its session, and those of its control socket.

use std::os::unix::net::UnixListener;
use std::sync::mpsc::Sender;
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

/// Starts what serves. Without a listener one is made as soon as there is room for it.
pub fn start_threads(
    args: &Args,
    engine: &Arc<Engine>,
    listener: Option<UnixListener>,
    session: Session,
    tell_end: &Sender<End>,
) -> VerbResult<Arc<OnceLock<Answers>>> {
    let tell_session = tell_end.clone();
    let wait = move || {
        if let Err(error) = session.wait() {
            tracing::error!(%error, "the session failed");
        }
        let _ = tell_session.send(End::Session);
    };
    std::thread::Builder::new()
        .name("session".into())
        .spawn(wait)
        .on("starting threads")?;
    let tell_asked = tell_end.clone();
    let leave = move || {
        let _ = tell_asked.send(End::Asked);
    };
    let tree = sys::mount_source(&args.backing);
    let answers = Arc::new(OnceLock::new());
    match listener {
        Some(listener) => drop(
            answers.set(
                serve(
                    listener,
                    Arc::clone(engine) as Arc<dyn Answerer>,
                    tree,
                    leave,
                )
                .on("starting threads")?,
            ),
        ),
        None => {
            let (engine, answers) = (Arc::clone(engine), Arc::clone(&answers));
            let try_again = move || {
                let served = loop {
                    std::thread::sleep(BIND_PERIOD);
                    match bind(&engine) {
                        Err(cause) if lacks_room(&cause) => {}
                        bound => {
                            break bound.and_then(|listener| {
                                serve(
                                    listener,
                                    Arc::clone(&engine) as Arc<dyn Answerer>,
                                    tree,
                                    leave,
                                )
                            });
                        }
                    }
                };
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
    Ok(answers)
}

pub fn lacks_room(cause: &std::io::Error) -> bool {
    cause
        .raw_os_error()
        .is_some_and(|number| Errno(number).is_no_room())
}
