//! The driver: a socket in the engine's directory of plugins, and threads that answer.
//!
//! **Survival.** What the driver has mounted goes on without it. So it may be killed at any moment: an engine tries again for some 15 seconds, and the next
//! driver finds all that counts on disk and in the kernel's tables. The socket is put in place whole, by a rename, also over one that a dead driver left; a
//! socket of the service manager (`LISTEN_FDS`) is there before the driver is, and stays.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::asker::Asker;
use super::error::{error, failed, hinted};
use super::pool::Pool;
use super::{facts, http, image, protocol};
use crate::engine::api::VerbResult;
use crate::sys;

/// Connections at once; an engine uses as many as it has containers to start.
const CONNECTIONS_MAX: usize = 256;
/// How often the pool is put in order.
const SWEEP_PAUSE: Duration = Duration::from_secs(30);
/// Answers that are under way at the end have so long.
const ANSWERS_TIMEOUT: Duration = Duration::from_secs(10);
const ANSWERS_PAUSE: Duration = Duration::from_millis(5);

/// A filesystem of its own for the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolImage {
    /// The file.
    pub file: PathBuf,
    /// Its size, if it is to be made.
    pub bytes: Option<u64>,
}

/// Mounts a pool's own filesystem at `root`, and makes it if there is none.
///
/// # Errors
/// `no-image`: there is none, and no size.
pub fn mount_image(wanted: &PoolImage, root: &Path) -> VerbResult<()> {
    let PoolImage { file, bytes } = wanted;
    fs::create_dir_all(root).map_err(|cause| failed(root, cause))?;
    let root = root.canonicalize().map_err(|cause| failed(root, cause))?;
    if facts::is_mounted(&root)? {
        return Ok(());
    }
    match bytes {
        _ if file.exists() => {}
        Some(bytes) => image::make(file, *bytes)?,
        None => return Err(hinted("no-image", format!("{} does not exist", file.display()), "--pool-size says how large to make it")),
    }
    image::mount(file, &root)
}

/// The socket that callers are answered on.
pub struct Socket {
    /// Where they come.
    pub listener: UnixListener,
    /// Its path and inode, if it is ours to remove.
    made: Option<(PathBuf, u64)>,
}

impl Socket {
    /// The service manager's, or one that is put at `path`.
    ///
    /// # Errors
    /// `not-a-socket`: something else is there.
    pub fn open(path: &Path) -> VerbResult<Socket> {
        if let Some(listener) = sys::host::activated_listener() {
            return Ok(Socket { listener, made: None });
        }
        let cannot = |cause: std::io::Error| failed(path, cause);
        let dir = path.parent().unwrap_or(Path::new("/"));
        fs::DirBuilder::new().recursive(true).mode(0o755).create(dir).map_err(|cause| failed(dir, cause))?;
        if fs::symlink_metadata(path).is_ok_and(|found| !std::os::unix::fs::FileTypeExt::is_socket(&found.file_type())) {
            return Err(error("not-a-socket", format!("{} is there, and no socket", path.display())));
        }
        // An engine takes whatever ends so for a plugin: the new name must not.
        let new = dir.join(format!(".{}.new", std::process::id()));
        let _ = fs::remove_file(&new);
        let listener = UnixListener::bind(&new).map_err(|cause| failed(&new, cause))?;
        let placed = (|| {
            fs::set_permissions(&new, fs::Permissions::from_mode(0o600))?;
            let inode = fs::symlink_metadata(&new)?.ino();
            fs::rename(&new, path).map(|()| inode)
        })();
        match placed {
            Ok(inode) => Ok(Socket { listener, made: Some((path.to_owned(), inode)) }),
            Err(cause) => {
                let _ = fs::remove_file(&new);
                Err(cannot(cause))
            }
        }
    }

    /// A socket that is left makes every call of an engine wait 15 seconds.
    pub fn remove(&self) {
        if let Some((path, inode)) = &self.made
            && fs::symlink_metadata(path).is_ok_and(|there| there.ino() == *inode)
        {
            let _ = fs::remove_file(path);
        }
    }
}

/// Serves until a signal ends it. Mounts stay.
///
/// # Errors
/// `in-use`: another driver serves this pool; the socket cannot be made.
pub fn serve(pool: Pool, path: &Path, told: impl FnOnce(&[String])) -> VerbResult<()> {
    let (tell, asked) = mpsc::channel();
    sys::on_terminate(move |signal| {
        let _ = tell.send(signal);
    })
    .map_err(|cause| failed(Path::new("waiting for signals"), cause))?;
    sys::raise_nofile();
    let _only = only_driver(&pool)?;
    let since = jiff::Timestamp::now().as_second();
    let socket = Arc::new(Socket::open(path)?);
    let answers = Arc::new(AtomicUsize::new(0));
    let (accepting, counted, served) = (Arc::clone(&socket), Arc::clone(&answers), pool.clone());
    let accept = move || accept(&accepting.listener, &served, &counted);
    std::thread::Builder::new().name("accept".into()).spawn(accept).map_err(|cause| failed(Path::new("starting threads"), cause))?;
    told(&protocol::warnings(&pool));
    keep_order(pool, since)?;
    // A signal, or its thread is gone: either way it is over.
    let _ = asked.recv();
    socket.remove();
    let ended = Instant::now();
    while answers.load(Ordering::SeqCst) > 0 && ended.elapsed() < ANSWERS_TIMEOUT {
        std::thread::sleep(ANSWERS_PAUSE);
    }
    Ok(())
}

/// Makes this process the only driver of a pool, as long as what it gives is kept.
///
/// # Errors
/// `in-use`: there is another.
pub fn only_driver(pool: &Pool) -> VerbResult<fs::File> {
    let path = pool.registry().root().join("driver.lock");
    let lock = fs::File::create(&path).map_err(|cause| failed(&path, cause))?;
    if !sys::flock_exclusive(&lock).map_err(|cause| failed(&path, cause))? {
        return Err(hinted("in-use", format!("another driver serves the pool {}", pool.registry().root().display()), "end that one first"));
    }
    Ok(lock)
}

/// Puts the pool in order again and again, in a thread of its own: a mount that hangs must not keep the driver from ending.
///
/// # Errors
/// No thread can be started.
pub fn keep_order(pool: Pool, since: i64) -> VerbResult<()> {
    let sweep = move || loop {
        pool.sweep(since);
        std::thread::sleep(SWEEP_PAUSE);
    };
    std::thread::Builder::new().name("sweep".into()).spawn(sweep).map(drop).map_err(|cause| failed(Path::new("starting threads"), cause))
}

fn accept(listener: &UnixListener, pool: &Pool, answers: &Arc<AtomicUsize>) {
    let connections = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        match stream {
            Ok(stream) if connections.load(Ordering::SeqCst) < CONNECTIONS_MAX => start(stream, pool, answers, &connections),
            Ok(_) => tracing::warn!("more than {CONNECTIONS_MAX} connections: one was refused"),
            Err(error) => {
                tracing::warn!(%error, "a connection was lost");
                std::thread::sleep(ANSWERS_PAUSE);
            }
        }
    }
}

/// Counts as long as it lives, whatever becomes of its thread.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Counted {
        count.fetch_add(1, Ordering::SeqCst);
        Counted(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn start(stream: UnixStream, pool: &Pool, answers: &Arc<AtomicUsize>, connections: &Arc<AtomicUsize>) {
    let (pool, answers, counted) = (pool.clone(), Arc::clone(answers), Counted::new(connections));
    let converse = move || {
        let _counted = counted;
        let asker = Asker::of(&stream);
        let ended = http::converse(stream, |request| {
            let _under_way = Counted::new(&answers);
            tracing::debug!(call = request.path, "asked");
            protocol::answer(&pool, request, asker)
        });
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("engine".into()).spawn(converse) {
        tracing::warn!(%error, "no thread for a connection");
    }
}
