//! The daemon: starts and stops the engine, the FUSE session and the control socket.
//!
//! **Order.** The backing directory is opened, and the socket bound, before the mount covers them.
//! The parent is notified when the mount serves. At the end, whatever its reason, the session ends
//! first, then the engine closes its store, then the process exits. The exit closes the connections
//! of clients that wait for it.
//!
//! The daemon never accesses a path below its mount: it would wait for itself.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::control_socket::{EndReason, bind, lacks_room, start_threads};
use super::launch::{DaemonReady, Handshake, tell, tell_on};
use super::logging::log_to_stderr;
use super::mount_users::{MountUser, VisibleTree, WritableFile};
use super::serving::{Io, OthersIo, Seal, ServeOptions, Snapdir, SnapdirNames, Writes};
use super::trees::{BranchHandover, BranchServer};
use super::{git_guard, holder, mount_users, nested, serving, size};
use crate::dead_mounts;
use ckptfs_api::SOCKET_NAME;
use ckptfs_api::display::word;
use ckptfs_api::*;
use ckptfs_core::engine::branches::{BranchOps, UnmountMode};
use ckptfs_core::engine::request::Service;
use ckptfs_core::engine::{Config, Engine, IoChoice, SealerMode};
use ckptfs_fuse::{MountConfig, Session, Xattrs};
use ckptfs_sys::{self as sys, Errno, host};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{ErrorContext, Outcome, hinted, plain};

/// Name of the log in the store.
const LOG_NAME: &str = "daemon.log";

/// A larger log is renamed when the daemon starts, and replaces the one renamed before.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// Time for the session to end after a signal.
const SESSION_END_TIMEOUT: Duration = Duration::from_secs(10);

/// Default number of threads that read the kernel's requests: one per CPU, within these bounds.
const READERS: RangeInclusive<usize> = 2..=4;

/// Time to complete the requests in progress at the end.
const ANSWERS_TIMEOUT: Duration = Duration::from_secs(5);

/// The daemon of a mount; started by `ckptfs mount`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[arg(long)]
    pub backing: PathBuf,
    #[arg(long)]
    pub mountpoint: PathBuf,
    #[command(flatten)]
    pub serving: ServeOptions,
    #[arg(long)]
    pub allow_other: bool,
    #[arg(long)]
    pub foreground: bool,
    /// No process takes over if the daemon dies.
    #[arg(long)]
    pub no_holder: bool,
    /// Started by a holder, which is at the other end of stdin.
    #[arg(long)]
    pub worker: bool,
    /// Stay if the parent exits before the mount serves: the next driver finds the mount.
    #[arg(long)]
    pub stays: bool,
}

impl Args {
    /// Returns the command line for these arguments.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec![
            "daemon".into(),
            "--backing".into(),
            self.backing.clone().into(),
        ];
        arguments.extend(["--mountpoint".into(), self.mountpoint.clone().into()]);
        arguments.extend(self.serving.arguments());
        arguments.extend(self.allow_other.then(|| "--allow-other".into()));
        arguments.extend(self.foreground.then(|| "--foreground".into()));
        arguments.extend(self.no_holder.then(|| "--no-holder".into()));
        arguments.extend(self.worker.then(|| "--worker".into()));
        arguments.extend(self.stays.then(|| "--stays".into()));
        arguments
    }
}

/// With a lower RLIMIT_FSIZE nothing can be served.
const FILE_SIZE_MIN: u64 = 128 << 20;

/// Serves until the mount is gone, directly or as its holder.
pub fn run(args: Args, _: &mut Context) -> Outcome {
    let fits = check_limit(sys::shed_limits());
    if fits.is_ok() && !args.worker && !args.no_holder && cfg!(target_os = "linux") {
        return holder::hold(args);
    }
    match fits.and_then(|()| serve_tree(&args)) {
        Ok(()) => Ok(()),
        Err(error) if args.foreground => Err(error.into()),
        Err(error) => {
            tell(&Handshake::Error(error))?;
            Err(ckptfs_ui::error::Failure::No)
        }
    }
}

/// Makes the repository of the project ignore the store, and reports whether it does. The engine is
/// not open yet, so this write is not a change of the mount.
fn is_excluded(root: impl AsFd) -> bool {
    git_guard::exclude_store(root).unwrap_or_else(|error| {
        tracing::debug!(%error, "git does not know of the store");
        false
    })
}

/// Rejects a limit with which the daemon could not even write its own files.
fn check_limit(file_size: Option<u64>) -> VerbResult<()> {
    match file_size.filter(|bytes| *bytes < FILE_SIZE_MIN) {
        None => Ok(()),
        Some(bytes) => Err(hinted(
            Code::MountFailed,
            format!(
                "the limit on file sizes is too low for the daemon: {} (ulimit -f)",
                size::human(bytes)
            ),
            "mount from a shell without that limit, or as a user who may lift it (CAP_SYS_RESOURCE)",
        )),
    }
}

/// Opens the engine, and protects the store of a project from `git clean`.
fn open_engine(config: Config, resumed: bool) -> VerbResult<Arc<Engine>> {
    let excluded = !resumed && is_excluded(&config.root);
    let engine = Engine::open(config)?;
    if excluded && let Err(error) = git_guard::make_repository(engine.store_fd()) {
        tracing::debug!(%error, "git clean may remove the store");
    }
    Ok(engine)
}

fn warn_of_limit(engine: &Engine) {
    if let Some(bytes) = sys::shed_limits() {
        engine.warn(format!(
            "the daemon has the limit on file sizes of the process that mounted, {} (ulimit -f): larger files cannot be written in the mount",
            size::human(bytes)
        ));
    }
}

fn serve_tree(args: &Args) -> VerbResult<()> {
    let (tell_end, ends) = channel();
    let tell_signal = tell_end.clone();
    prepare(args, move |signal| {
        // Without a receiver the daemon is ending already.
        let _ = tell_signal.send(EndReason::Signal(signal));
    })?;
    let (holding, mut before) = if args.worker { hear()? } else { (None, None) };
    let link = holding.as_ref().map(|holding| Arc::clone(&holding.link));
    let control = before.as_mut().and_then(|before| before.control.take());
    let device = before
        .as_ref()
        .map(|before| before.device.try_clone())
        .transpose()
        .on("/dev/fuse")?;
    let resumed = device.is_some();
    let config = config(args, link.as_ref(), before)?;
    let engine = open_engine(config, resumed)?;
    let listener = listen(&engine, control)?;
    let nested = (!resumed).then(|| nested::below(&args.backing));
    let nested = nested.transpose()?.unwrap_or_default();
    let session = start_session(args, &engine, device).map_err(|cause| {
        engine.close();
        engine.unmake();
        mount_error(args, &cause)
    })?;
    if let Some(link) = link.as_ref().filter(|_| !resumed) {
        hand_over(args, link, &engine, &session, listener.as_ref())?;
    }
    engine.set_caches(session.caches());
    let trees = BranchServer::serve_branches_of(&engine, args, holding.clone());
    if resumed {
        // First, because any verb on a branch may need its mount.
        BranchOps::new(&engine).go_on();
    }
    let answers = Arc::default();
    let tell_end = move |end| drop(tell_end.send(end));
    let started = start_threads(args, &engine, listener, session, &answers, tell_end);
    let below = if resumed {
        Vec::new()
    } else {
        watch_below(args, &engine)
    };
    if started.is_ok() {
        BranchOps::new(&engine).mount_all();
    }
    if let Some(holding) = &holding {
        holding.let_go_of_rest();
    }
    warn_of_limit(&engine);
    start_push(args, &engine);
    let bind = |()| nested::bind(nested, &args.mountpoint);
    let nested = started.as_ref().copied().ok().and_then(bind);
    let announced = started.and_then(|()| announce(args, &engine, resumed, (below, nested)));
    if let Some(link) = &link {
        link.serves();
    }
    let how = wait_end(&engine, announced.is_ok(), &ends);
    end_branches(&engine, &trees, how);
    engine.close();
    if let Some(answers) = answers.get().filter(|_| announced.is_ok()) {
        answers.wait_given(ANSWERS_TIMEOUT);
    }
    remove_socket(&engine);
    if let Some(link) = &link {
        link.end();
    }
    tracing::info!("the daemon ends");
    announced
}

/// Starts to push each checkpoint, if configured.
#[cfg(feature = "remote")]
fn start_push(args: &Args, engine: &Arc<Engine>) {
    if let Some(to) = &args.serving.push
        && let Err(cause) = super::remote::auto::start(to, &args.mountpoint, engine)
    {
        engine.warn(format!("checkpoints are not pushed: {cause}"));
    }
}

#[cfg(not(feature = "remote"))]
fn start_push(_: &Args, _: &Arc<Engine>) {}

/// Connects to the holder and returns the state of the branches and of the tree that it keeps.
fn hear() -> VerbResult<(Option<Arc<BranchHandover>>, Option<holder::InheritedTree>)> {
    let (link, left) = holder::meet()?;
    let (before, branches) = match left {
        Some(left) => (Some(left.tree), left.branches),
        None => (None, HashMap::new()),
    };
    Ok((Some(BranchHandover::new(&link, branches)), before))
}

/// Returns the control socket: that of a worker that died, or a new one. `None` if the disk has no
/// room for one.
pub fn listen(engine: &Engine, left: Option<OwnedFd>) -> VerbResult<Option<UnixListener>> {
    match left.map_or_else(|| bind(engine), |socket| Ok(socket.into())) {
        // The tree is served in any case: removing files makes room.
        Err(cause) if lacks_room(&cause) => {
            engine.warn("the filesystem is full: the verbs work once there is room for the control socket; remove something".into());
            Ok(None)
        }
        bound => bound.on("the control socket").map(Some),
    }
}

/// Removes the control socket; a stale one would only refuse connections. On a full disk it stays,
/// because its inode is needed for the next socket.
fn remove_socket(engine: &Engine) {
    if !engine.is_full() {
        let _ = sys::unlink_at(engine.store_fd(), SOCKET_NAME.as_bytes());
    }
}

/// Makes this process a daemon.
fn prepare(args: &Args, on_signal: impl FnOnce(i32) + Send + 'static) -> VerbResult<()> {
    #[cfg(debug_assertions)]
    if let Some(plan) = std::env::var("CKPTFS_FAULT_FOR_TESTS")
        .ok()
        .and_then(|plan| serde_json::from_str(&plan).ok())
    {
        sys::fault::arm_process(plan);
    }
    log_to_stderr(Some("warn,fuser=error"));
    // A worker is in the session of its holder.
    if !args.foreground && !args.worker {
        sys::setsid().on("setsid")?;
    }
    sys::umask0();
    sys::raise_nofile();
    sys::shed_priority();
    sys::keep_no_large_blocks();
    std::env::set_current_dir("/").on("/")?;
    sys::on_terminate(on_signal)
        .on("waiting for signals")
        .map(drop)
}

/// Mounts, or continues the mount of a worker that died.
pub fn start_session(
    args: &Args,
    engine: &Arc<Engine>,
    device: Option<OwnedFd>,
) -> std::io::Result<Session> {
    let service = Arc::clone(engine) as Arc<dyn Service>;
    let config = mount_config(args, engine);
    match device {
        Some(device) => Session::resume(service, &config, device),
        None => Session::mount(service, &config),
    }
}

/// Passes the descriptors that the next worker needs to the holder.
fn hand_over(
    args: &Args,
    link: &holder::HolderConnection,
    engine: &Engine,
    session: &Session,
    listener: Option<&UnixListener>,
) -> VerbResult<()> {
    let device = session.device().on("handing over to the holder")?;
    let log = if args.foreground {
        None
    } else {
        Some(open_log(engine)?)
    };
    let (control, log) = (listener.map(AsFd::as_fd), log.as_ref().map(AsFd::as_fd));
    let ledger = engine.ledger().ok_or(Errno::EINVAL);
    let ledger = ledger.on("handing over to the holder")?;
    link.mounted(
        [ledger.fd(), device.as_fd(), engine.root_fd()],
        control,
        log,
    )
    .on("handing over to the holder")
}

fn config(
    args: &Args,
    link: Option<&Arc<holder::HolderConnection>>,
    mut before: Option<holder::InheritedTree>,
) -> VerbResult<Config> {
    let succession = link
        .map(|link| link.succession(None, before.as_mut()))
        .transpose()?;
    let root = match before {
        // The path leads to the mount.
        Some(before) => before.root,
        None => sys::open_root(&args.backing).on(args.backing.display())?,
    };
    let serving = &args.serving;
    Ok(Config {
        succession,
        origin: super::origin::of(&root, (serving.cache, serving.no_fetch))?,
        ..config_of(args, root)
    })
}

/// Returns the configuration of a tree with the backing directory `root`.
pub fn config_of(args: &Args, root: OwnedFd) -> Config {
    let io = match args.serving.io.unwrap_or_default() {
        Io::Auto => IoChoice::Auto,
        Io::Passthrough => IoChoice::Passthrough,
        Io::Daemon => IoChoice::Daemon,
    };
    Config {
        root,
        backing: args.backing.clone(),
        mount: args.mountpoint.clone(),
        io,
        io_for_all: args
            .serving
            .others_io
            .map_or(io == IoChoice::Passthrough, |who| who == OthersIo::Kernel),
        strict_writes: args.serving.writes == Some(Writes::Daemon),
        snapdir_name: args.serving.snapdir_name.clone(),
        snapdir_visible: args.serving.snapdir == Some(Snapdir::Visible),
        snapdir_times: args.serving.snapdir_names == Some(SnapdirNames::Gmt),
        succession: None,
        seal: match args.serving.seal.unwrap_or_default() {
            Seal::Off => SealerMode::Off,
            Seal::Hash => SealerMode::Hash,
        },
        snapdir_mode: args.serving.snapdir_mode,
        auto: args.serving.auto(),
        hooks: args.serving.hooks(),
        #[cfg(feature = "remote")]
        before_unmount: Some(super::remote::auto::end),
        #[cfg(not(feature = "remote"))]
        before_unmount: None,
        base: None,
        inherits: None,
        origin: None,
    }
}

/// Returns the number of readers for the CPUs of this process. With a single reader, every request
/// waits for the one in progress. More than two on two CPUs compete for them with other processes.
fn readers() -> usize {
    let cpus = std::thread::available_parallelism().map_or(*READERS.end(), usize::from);
    cpus.clamp(*READERS.start(), *READERS.end())
}

/// Returns the configuration of the mount.
pub fn mount_config(args: &Args, engine: &Engine) -> MountConfig {
    MountConfig {
        mountpoint: args.mountpoint.clone(),
        source: sys::mount_source(&args.backing),
        passthrough: engine.wants_passthrough(),
        allow_other: args.allow_other,
        read_only: args.serving.read_only(),
        dev: args.serving.dev(),
        suid: args.serving.suid(),
        exec: args.serving.exec(),
        xattrs: match args.serving.xattrs.unwrap_or_default() {
            serving::Xattrs::All => Xattrs::All,
            serving::Xattrs::User => Xattrs::User,
            serving::Xattrs::Off => Xattrs::Off,
        },
        readers: args.serving.readers.map_or_else(readers, usize::from),
    }
}

fn open_log(engine: &Engine) -> VerbResult<File> {
    let (store, log) = (engine.store_fd(), LOG_NAME.as_bytes());
    if host::size_in(store, LOG_NAME) > LOG_BYTES_MAX {
        let aside = engine.with_last_room(|| {
            Ok(sys::rename_at(
                store,
                log,
                store,
                b"daemon.log.1",
                sys::RenameMode::Replace,
            )?)
        });
        aside.on("the daemon's log")?;
    }
    match engine.with_last_room(|| Ok(host::open_log(store, LOG_NAME)?)) {
        // On a full disk the log could not be written either.
        Err(cause) if lacks_room(&cause) => OpenOptions::new().write(true).open("/dev/null"),
        opened => opened,
    }
    .on("the daemon's log")
}

/// Passes the files that processes can write to past the mount to the engine. Returns the processes
/// with open files or mappings below the mount.
pub fn watch_below(args: &Args, engine: &Engine) -> Vec<MountUser> {
    let Some(tree) = VisibleTree::below(&args.backing) else {
        return Vec::new();
    };
    let elsewhere = tree.is_elsewhere();
    let found = tree.users(
        &[std::os::unix::process::parent_id()],
        mount_users::THOROUGH,
    );
    engine.watch_held(
        found
            .files
            .iter()
            .map(|WritableFile { ino, path }| (path.as_os_str().as_bytes(), *ino)),
    );
    engine.tell_below(elsewhere || !found.holders.is_empty(), found.complete);
    found.holders
}

/// Notifies the parent that the mount serves, and detaches from it: from then on stderr is the log.
/// `nested`: warning about the mounts inside.
fn announce(
    args: &Args,
    engine: &Engine,
    resumed: bool,
    (below, nested): (Vec<MountUser>, Option<String>),
) -> VerbResult<()> {
    if args.foreground || resumed {
        if !below.is_empty() {
            tracing::warn!("{}", mount_users::passed_by(below.iter()));
        }
        if let Some(nested) = nested {
            tracing::warn!("{nested}");
        }
        tracing::info!(mount = %args.mountpoint.display(), "serving");
        return Ok(());
    }
    let log = open_log(engine)?;
    let null = holder::null().on("the daemon's log")?;
    let (io, writes) = engine.io();
    let (absence, mut warnings) = (engine.absence(), engine.warnings());
    warnings.extend(nested);
    // After the notification the caller may check that the daemon holds no descriptor of the
    // caller. Only this copy is left, and it is closed at once.
    let mut pipe = std::fs::File::from(
        std::io::stdout()
            .as_fd()
            .try_clone_to_owned()
            .on("the daemon's log")?,
    );
    for (number, to) in [(0, &null), (1, &null), (2, &log)] {
        host::redirect_stdio(number, to).on("the daemon's log")?;
    }
    let ready = DaemonReady {
        pid: std::process::id(),
        io: io.to_owned(),
        writes: writes.to_owned(),
        absence,
        warnings,
        below,
    };
    let told = tell_on(&mut pipe, &Handshake::Ready(ready));
    if args.stays { Ok(()) } else { told }
}

/// Ends the remaining branches, before the tree that they look through to.
fn end_branches(engine: &Engine, trees: &BranchServer, how: UnmountMode) {
    if let Err(error) = BranchOps::new(engine).end_all(how) {
        tracing::warn!(%error, "a branch does not end");
    }
    if how == UnmountMode::Lazy {
        trees.wait_all();
    }
}

/// Waits for the end, or ends at once if the mount does not serve; unmounts after a signal. Returns
/// how branches in use end.
fn wait_end(engine: &Engine, serves: bool, ends: &Receiver<EndReason>) -> UnmountMode {
    if !serves {
        detach(engine);
        return UnmountMode::Forced;
    }
    match ends.recv() {
        Ok(EndReason::Signal(signal)) => {
            tracing::info!(signal, "asked to end");
            engine.hush();
            let at = &engine.place().mount();
            nested::end_at(at);
            match dead_mounts::unmount(at, false) {
                Ok(()) => {
                    let _ = ends.recv_timeout(SESSION_END_TIMEOUT);
                }
                Err(error) => {
                    tracing::warn!(%error, "the mount is in use; it is detached anyway");
                    detach(engine);
                }
            }
            UnmountMode::Forced
        }
        Ok(EndReason::Session) => UnmountMode::Lazy,
        Ok(EndReason::Asked) | Err(_) => UnmountMode::Forced,
    }
}

/// Detaches the mount; its users get ENOTCONN once this process has ended.
fn detach(engine: &Engine) {
    if let Err(error) = dead_mounts::unmount(&engine.place().mount(), true) {
        tracing::error!(%error, "the mount stays, without a daemon; `ckptfs mount` repairs it");
    }
}

/// Returns the error for a failed mount.
pub fn mount_error(args: &Args, cause: &std::io::Error) -> VerbError {
    let at = args.mountpoint.display();
    let doctor = format!(
        "to see what is missing: ckptfs doctor {}",
        word(args.backing.display())
    );
    match cause.kind() {
        std::io::ErrorKind::NotFound => hinted(
            Code::NoFuse,
            format!(
                "{at} cannot be mounted: FUSE is not available ({})",
                plain(cause)
            ),
            doctor,
        ),
        std::io::ErrorKind::PermissionDenied => hinted(
            Code::NoPermission,
            format!(
                "{at} cannot be mounted: no permission to use FUSE ({})",
                plain(cause)
            ),
            doctor,
        ),
        _ => hinted(
            Code::MountFailed,
            format!("{at} cannot be mounted: {}", plain(cause)),
            doctor,
        ),
    }
}
