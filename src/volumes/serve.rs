//! The driver: a socket, a thread that reads requests, and worker threads.
//!
//! **Survival.** Mounts outlive the driver, which may be killed at any time: an engine retries for
//! about 15 seconds, and the next driver finds all state on disk and in the kernel's tables. The
//! socket is put in place by a rename, which replaces one left by a dead driver. A socket of the
//! service manager (`LISTEN_FDS`) exists before the driver and stays.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::http::Request;
use super::pool::Pool;
use super::{http, image, metrics, mount_facts, protocol};
use ckptfs_api::{Code, ErrorContext, VerbResult, error, hinted, io_error};
use ckptfs_sys as sys;

/// Interval of the sweep.
const SWEEP_PAUSE: Duration = Duration::from_secs(30);
/// Pause before a locked volume is swept again. The kubelet doubles its wait for a volume that a
/// killed driver left mounted at two places.
const BUSY_PAUSE: Duration = Duration::from_secs(1);
/// Maximum time for pending responses at the end.
const ANSWERS_TIMEOUT: Duration = Duration::from_secs(10);

/// Image with the filesystem of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolImage {
    /// The image file.
    pub file: PathBuf,
    /// Its size in bytes, if it may be created.
    pub bytes: Option<u64>,
}

/// Mounts the image of a pool at `root`, creating it if missing.
///
/// # Errors
/// `no-image`: the image does not exist, and no size is given.
pub fn mount_image(wanted: &PoolImage, root: &Path) -> VerbResult<()> {
    let PoolImage { file, bytes } = wanted;
    fs::create_dir_all(root).on(root.display())?;
    let root = root.canonicalize().on(root.display())?;
    if mount_facts::is_mounted(&root)? {
        return Ok(());
    }
    match bytes {
        _ if file.exists() => {}
        Some(bytes) => image::make(file, *bytes)?,
        None => {
            return Err(hinted(
                Code::NoImage,
                format!("{} does not exist", file.display()),
                "--pool-size sets its size",
            ));
        }
    }
    image::mount(file, &root)
}

/// The socket of the driver.
struct Socket {
    /// Its listener.
    listener: UnixListener,
    /// Its path and inode, if we must remove it.
    made: Option<(PathBuf, u64)>,
}

impl Socket {
    /// Returns the socket of the service manager, or creates one at `path`.
    ///
    /// # Errors
    /// `not-a-socket`: the path is something else.
    fn open(path: &Path) -> VerbResult<Socket> {
        if let Some(listener) = sys::host::activated_listener() {
            return Ok(Socket {
                listener,
                made: None,
            });
        }
        let dir = path.parent().unwrap_or(Path::new("/"));
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(dir)
            .on(dir.display())?;
        if fs::symlink_metadata(path)
            .is_ok_and(|found| !std::os::unix::fs::FileTypeExt::is_socket(&found.file_type()))
        {
            return Err(error(
                Code::NotASocket,
                format!("{} exists, and is not a socket", path.display()),
            ));
        }
        // An engine treats every file with the extension of a socket as a plugin, so the temporary
        // name has another one.
        let new = dir.join(format!(".{}.new", std::process::id()));
        let _ = fs::remove_file(&new);
        let listener = UnixListener::bind(&new).on(new.display())?;
        let placed = (|| {
            fs::set_permissions(&new, fs::Permissions::from_mode(0o600))?;
            let inode = fs::symlink_metadata(&new)?.ino();
            fs::rename(&new, path).map(|()| inode)
        })();
        match placed {
            Ok(inode) => Ok(Socket {
                listener,
                made: Some((path.to_owned(), inode)),
            }),
            Err(cause) => {
                let _ = fs::remove_file(&new);
                Err(io_error(path.display(), cause))
            }
        }
    }

    fn listen(&self) -> std::io::Result<tokio::net::UnixListener> {
        let listener = self.listener.try_clone()?;
        listener.set_nonblocking(true)?;
        tokio::net::UnixListener::from_std(listener)
    }

    /// Removes the socket; a stale one delays every request of an engine by 15 seconds.
    fn remove(&self) {
        if let Some((path, inode)) = &self.made
            && fs::symlink_metadata(path).is_ok_and(|there| there.ino() == *inode)
        {
            let _ = fs::remove_file(path);
        }
    }
}

/// Serves until a signal. Mounts stay.
///
/// # Errors
/// `in-use`: another driver serves this pool; the socket cannot be created.
pub fn serve(pool: Pool, path: &Path, told: impl FnOnce(&[String])) -> VerbResult<()> {
    let (served, warnings) = (pool.clone(), protocol::warnings(&pool));
    drive(
        &pool,
        path,
        http::CONNECTIONS_MAX,
        async move |listener, ended| {
            told(&warnings);
            let collector = metrics::Collector::default();
            let answer = move |request: &Request, asker| {
                if metrics::are_asked(request) {
                    collector.answer(&served)
                } else {
                    protocol::answer(&served, request, asker)
                }
            };
            http::serve(listener, async { drop(ended.await) }, Arc::new(answer)).await;
            Ok(())
        },
    )
}

/// Runs the only driver of a pool at a socket until a signal. `serve` answers requests, and stops
/// when notified. `threads` is the maximum number of blocking calls.
///
/// # Errors
/// `in-use`: another driver serves this pool; the socket cannot be created.
pub fn drive(
    pool: &Pool,
    path: &Path,
    threads: usize,
    serve: impl AsyncFnOnce(tokio::net::UnixListener, oneshot::Receiver<()>) -> VerbResult<()>,
) -> VerbResult<()> {
    let cannot = |what: &'static str| move |cause: std::io::Error| io_error(what, cause);
    let (tell, asked) = oneshot::channel();
    sys::on_terminate(move |signal| {
        let _ = tell.send(signal);
    })
    .on("waiting for signals")?;
    sys::raise_nofile();
    let _only = only_driver(pool)?;
    let since = jiff::Timestamp::now().as_second();
    let socket = Socket::open(path)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(threads)
        .build();
    let runtime = runtime.map_err(cannot("starting"))?;
    keep_order(pool.clone(), since)?;
    let until = Cell::new(None);
    let served = runtime.block_on(async {
        let listener = socket.listen().map_err(cannot("listening"))?;
        let (stop, stopping) = oneshot::channel();
        let end = async {
            // After a signal, or the loss of its thread, pending requests are completed.
            let _ = asked.await;
            until.set(Some(Instant::now() + ANSWERS_TIMEOUT));
            socket.remove();
            let _ = stop.send(());
            tokio::time::sleep(ANSWERS_TIMEOUT).await;
        };
        tokio::select! {
            served = serve(listener, stopping) => served,
            () = end => Ok(()),
        }
    });
    // `serve` may have ended by itself.
    socket.remove();
    runtime.shutdown_timeout(until.get().map_or(ANSWERS_TIMEOUT, |until| {
        until.saturating_duration_since(Instant::now())
    }));
    served
}

/// Locks the pool for this driver while the returned file is open.
fn only_driver(pool: &Pool) -> VerbResult<fs::File> {
    let path = pool.registry().root().join("driver.lock");
    let lock = fs::File::create(&path).on(path.display())?;
    if !sys::flock_exclusive(&lock).on(path.display())? {
        return Err(hinted(
            Code::InUse,
            format!(
                "another driver is serving the pool {}",
                pool.registry().root().display()
            ),
            "stop that one first",
        ));
    }
    Ok(lock)
}

/// Sweeps the pool periodically in a separate thread, so that a hung mount does not block the end
/// of the driver.
fn keep_order(pool: Pool, since: i64) -> VerbResult<()> {
    let sweep = move || loop {
        let next = Instant::now() + SWEEP_PAUSE;
        let mut busy = pool.sweep(since);
        while !busy.is_empty() && Instant::now() < next {
            std::thread::sleep(BUSY_PAUSE);
            busy = pool.sweep_volumes(&busy, since);
        }
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    };
    std::thread::Builder::new()
        .name("sweep".into())
        .spawn(sweep)
        .map(drop)
        .on("starting threads")
}
