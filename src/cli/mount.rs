//! `ckptfs mount`.

mod pseudo_fs;
mod start;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::Serialize;

pub use self::start::start;
use super::launch::{DaemonParent, DaemonReady};
use super::mount_users::{self, MountUser};
use super::origin::{self, OriginInputs};
use super::serving::{MountFlag, OthersIo, ServeOptions, Snapdir};
use super::{caches, daemon};
use crate::dead_mounts;
use ckptfs_api::display::word;
use ckptfs_api::{
    AbsenceInfo, CheckpointOptions, Client, Code, STORE_NAME, StoreDir, VerbResult, host_path,
    is_same,
};
use ckptfs_sys::{self as sys, MountPoint};
use ckptfs_transfer::import::record_files;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{ErrorContext, Outcome, error, hinted, io_error};
use ckptfs_ui::progress::Spinner;
use ckptfs_ui::tree_path::{beyond_links, normal};
use ckptfs_ui::{changes, locate, mounts, past};
use ckptfs_volumes::VolumePlace;
use ckptfs_volumes::options::Options;

/// Serve a directory, in place or at another mountpoint, from a daemon in the background
///
/// Returns when the mount serves. A mount whose daemon has died is repaired.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory to serve; its history is stored in DIR/.ckptfs
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The mountpoint; DIR itself by default
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: Option<PathBuf>,
    /// Mount a checkpoint of a remote (`ckptfs remote`) in DIR, which is empty or does not exist:
    /// usable at once, content is fetched when it is opened. ID as for `ckptfs pull`; default: the
    /// newest. Later mounts need only DIR
    #[arg(long, value_name = "REMOTE[:ID]")]
    from: Option<String>,
    #[command(flatten)]
    serving: ServeOptions,
    /// If the daemon dies, leave a dead mount; by default another daemon takes over, and programs
    /// continue
    #[arg(long)]
    no_holder: bool,
    /// Stay in the foreground; log to stderr
    #[arg(long)]
    foreground: bool,
    /// Allow access by other users (permissions still apply); the default where permitted
    #[arg(long, overrides_with = "no_allow_other")]
    allow_other: bool,
    /// Deny access by other users, even root
    #[arg(long)]
    no_allow_other: bool,
}

/// Output of `--json`.
#[derive(Serialize)]
struct Mounted<'a> {
    #[serde(serialize_with = "host_path::serialize")]
    mount: &'a Path,
    #[serde(serialize_with = "host_path::serialize")]
    backing: &'a Path,
    #[serde(serialize_with = "host_path::serialize")]
    store: &'a Path,
    io: &'a str,
    writes: &'a str,
    pid: u32,
    repaired: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    absence: Option<&'a AbsenceInfo>,
    warnings: &'a [String],
    /// Processes that use the directory below the mount.
    below: &'a [MountUser],
}

/// A mount that passed all checks that are possible without its daemon.
pub struct PreparedMount {
    daemon: daemon::Args,
    origin: OriginInputs,
    /// Number of dead mounts that were removed.
    repaired: usize,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let cwd = locate::start(context.dir())?;
    let dest = cwd.join(&args.dir);
    let begun = match &args.from {
        // A mount of ckptfs, live or dead, is handled below.
        Some(from)
            if !mounts::top(&mounts::all()?, &normal(&dest)).is_some_and(MountPoint::is_ours) =>
        {
            Some(origin::begin(from, &dest, context)?)
        }
        _ => None,
    };
    let mut prepared = prepare(args, &cwd)?;
    check_snapdir(&prepared.daemon)?;
    prepared.origin = match begun {
        Some(begun) => begun,
        None => {
            let root = &prepared.daemon.backing;
            origin::goes_on(sys::open_root(root).on(root.display())?, context)?
        }
    };
    let PreparedMount {
        daemon, repaired, ..
    } = &prepared;
    if *repaired > 0 {
        context.out.talk(&format!(
            "removed {repaired} dead mount{} first",
            if *repaired == 1 { "" } else { "s" }
        ));
    }
    if daemon.foreground {
        if prepared.origin.password.is_some() {
            return Err(hinted(
                Code::NoTerminal,
                "a daemon in the foreground asks for no password",
                "set CKPTFS_REMOTE_PASSWORD",
            )
            .into());
        }
        return daemon::run(prepared.daemon, context);
    }
    let is_first = daemon.backing.join(STORE_NAME).symlink_metadata().is_err();
    let mut spinner = None;
    let ready = start(&prepared, DaemonParent::Verb, || {
        let what = "waiting for the daemon of the last mount to end";
        spinner.get_or_insert_with(|| Spinner::start(&context.out, what));
    });
    spinner.into_iter().for_each(Spinner::stop);
    let ready = ready?;
    if let Some(note) = &prepared.origin.note {
        first_checkpoint(&daemon.backing, note)?;
    }
    report(daemon, &ready, *repaired, context)?;
    for linker in caches::linkers(&daemon.backing).filter(|_| is_first) {
        let (does, setting) = (linker.does, linker.setting);
        context
            .out
            .talk(&format!("{does}; to change that: {setting}"));
    }
    Ok(())
}

impl Args {
    /// Returns the arguments for a container volume.
    ///
    /// # Errors
    /// A variable of the environment is invalid.
    pub fn of_volume(place: &VolumePlace, options: &Options) -> VerbResult<Args> {
        let serving = ServeOptions {
            // The containers of one volume are one party, whatever users they run as.
            others_io: Some(OthersIo::Kernel),
            snapdir: options
                .snapdir
                .and_then(|word| Snapdir::from_str(word, false).ok()),
            auto_every: options.auto.every,
            options: options
                .readonly
                .then_some(MountFlag::Ro)
                .into_iter()
                .collect(),
            ..ServeOptions::of_environment()?
        };
        let mountpoint = (place.point != place.backing).then(|| place.point.clone());
        let (no_holder, foreground, allow_other, no_allow_other) = (false, false, true, false);
        Ok(Args {
            dir: place.backing.clone(),
            mountpoint,
            from: None,
            serving,
            no_holder,
            foreground,
            allow_other,
            no_allow_other,
        })
    }
}

/// Makes a checkpoint of the initial tree.
fn first_checkpoint(backing: &Path, note: &str) -> VerbResult<()> {
    let store = StoreDir::of(backing).on(backing.join(STORE_NAME).display())?;
    let store = store.ok_or_else(|| error(Code::DaemonLost, "the daemon is gone"))?;
    let options = CheckpointOptions {
        note: note.to_owned(),
        ..CheckpointOptions::default()
    };
    let mut client = Client::of(&store).on("the daemon")?;
    client.ask(options).map(drop)
}

/// Checks whether a directory can be mounted, and removes dead mounts that are in the way.
///
/// # Errors
/// A message for the user.
pub fn prepare(mut args: Args, cwd: &Path) -> VerbResult<PreparedMount> {
    let mut repaired = 0;
    let backing = directory(&cwd.join(&args.dir), &args.dir, &mut repaired)?;
    let mountpoint = match &args.mountpoint {
        Some(mountpoint) => directory(&cwd.join(mountpoint), mountpoint, &mut repaired)?,
        None => backing.clone(),
    };
    check_mounts(&backing, &mountpoint, &mut repaired)?;
    // The cause may be a mount that another process has made since.
    check_store(&backing).or_else(|error| check_unserved(&backing, &mut 0).and(Err(error)))?;
    check_flags(&args.serving)?;
    let allow_other = allow_other(&args)?;
    args.serving.hooks = args
        .serving
        .hooks
        .map(|dir| hooks_dir(&cwd.join(&dir), &[&backing, &mountpoint]))
        .transpose()?;
    let serving = args.serving.or(&super::config::settings_of(&backing)?)?;
    let (foreground, no_holder) = (args.foreground, args.no_holder);
    let daemon = daemon::Args {
        backing,
        mountpoint,
        serving,
        allow_other,
        foreground,
        no_holder,
        worker: false,
        stays: false,
    };
    Ok(PreparedMount {
        daemon,
        origin: OriginInputs::default(),
        repaired,
    })
}

/// Returns the real path of a directory on the command line, and removes dead mounts on the way to
/// it.
fn directory(path: &Path, shown: &Path, repaired: &mut usize) -> VerbResult<PathBuf> {
    let shown = shown.display();
    let unlinked = normal(path);
    let real = beyond_links(&unlinked).unwrap_or(unlinked);
    *repaired += dead_mounts::repair_above(&real)?;
    let mut found = std::fs::metadata(path);
    if found.as_ref().is_err_and(locate::is_disconnected) {
        // Its daemon has died since.
        *repaired += dead_mounts::repair_above(&real)?;
        found = std::fs::metadata(path);
    }
    match found {
        Ok(metadata) if metadata.is_dir() => path.canonicalize().on(&shown),
        Ok(_) => Err(error(
            Code::NotADirectory,
            format!("{shown} is not a directory"),
        )),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Err(hinted(
            Code::NotFound,
            format!("{shown} does not exist"),
            format!("mkdir {}", word(shown)),
        )),
        Err(cause) => Err(io_error(&shown, cause)),
    }
}

/// Rejects mountpoints that conflict with existing mounts.
fn check_mounts(backing: &Path, mountpoint: &Path, repaired: &mut usize) -> VerbResult<()> {
    if [backing, mountpoint].contains(&Path::new("/")) {
        let message = "/ cannot be mounted: every running process would stay below the mount";
        return Err(hinted(
            Code::BadMountpoint,
            message,
            "mount just the directories that you want checkpoints of",
        ));
    }
    check_unserved(backing, repaired)?;
    let table = mounts::all()?;
    pseudo_fs::check_filesystem(&table, backing)?;
    check_around(&table, backing, mountpoint)?;
    if mountpoint != backing && mountpoint.starts_with(backing) {
        let message = format!(
            "the mountpoint {} is inside {}: the tree would contain itself",
            mountpoint.display(),
            backing.display()
        );
        return Err(hinted(
            Code::BadMountpoint,
            message,
            format!(
                "mount it in place: ckptfs mount {}",
                word(backing.display())
            ),
        ));
    }
    Ok(())
}

/// Rejects a directory that is already served; a dead mount is removed instead.
fn check_unserved(backing: &Path, repaired: &mut usize) -> VerbResult<()> {
    let table = mounts::all()?;
    for mount in table.iter().filter(|mount| is_of(mount, backing)) {
        let dead = dead_mounts::repair(&mount.at)?;
        *repaired += dead;
        if dead == 0
            && mounts::top(&mounts::all()?, &mount.at).is_some_and(|top| is_of(top, backing))
        {
            let at = mount.at.display();
            let message = if mount.at == backing {
                format!("{at} is already mounted")
            } else {
                format!("{} is already mounted at {at}", backing.display())
            };
            return Err(hinted(
                Code::AlreadyMounted,
                message,
                format!(
                    "to see it: ckptfs -C {0} status; to end it: ckptfs umount {0}",
                    word(at)
                ),
            ));
        }
    }
    Ok(())
}

/// Reports whether a mount serves a directory: it covers it, or its source names it and the stores
/// are the same. A source is the path at the start, and a directory above may have been renamed
/// since.
fn is_of(mount: &MountPoint, backing: &Path) -> bool {
    if mount.at == backing {
        return mount.is_ours() && mount.root == Path::new("/");
    }
    let is_same = || {
        let (there, here) = (StoreDir::of(&mount.at).ok()??, StoreDir::of(backing).ok()??);
        is_same(there.dir(), here.dir()).ok()
    };
    mount.serves(backing) && (mounts::is_dead(&mount.at) || is_same() == Some(true))
}

/// Rejects a directory inside a mount of ckptfs, or with such a mount inside.
fn check_around(table: &[MountPoint], backing: &Path, mountpoint: &Path) -> VerbResult<()> {
    for path in [backing, mountpoint] {
        if let Some(mount) = mounts::containing(table, path).filter(|mount| mount.is_ours()) {
            let (path, at) = (path.display(), mount.at.display());
            let message = format!(
                "{path} is inside the mount at {at}, whose checkpoints include it: a restore there would change the store here"
            );
            return Err(hinted(
                Code::AlreadyMounted,
                message,
                format!("unmount it first: ckptfs umount {}", word(at)),
            ));
        }
    }
    if let Some(nested) = [backing, mountpoint]
        .iter()
        .find_map(|dir| inside(table, dir).find(|mount| mount.is_ours()))
    {
        let at = nested.at.display();
        let message = format!(
            "{at} is mounted inside {}: the mount would hide it, and its history",
            backing.display()
        );
        return Err(hinted(
            Code::AlreadyMounted,
            message,
            format!("unmount it first: ckptfs umount {}", word(at)),
        ));
    }
    Ok(())
}

/// Returns the mounts inside a directory.
fn inside<'a>(table: &'a [MountPoint], dir: &Path) -> impl Iterator<Item = &'a MountPoint> {
    table
        .iter()
        .filter(move |mount| mount.at != dir && mount.at.starts_with(dir))
}

/// Rejects a store that cannot work, before a daemon is started.
pub fn check_store(backing: &Path) -> VerbResult<()> {
    let trusted = StoreDir::of(backing).on(backing.join(STORE_NAME).display())?;
    if trusted.is_some_and(|store| record_files::is_unfinished(store.dir())) {
        let message = format!("an import into {} was not finished", backing.display());
        return Err(hinted(
            Code::Unfinished,
            message,
            "run the same ckptfs import again to finish it, or remove the directory",
        ));
    }
    let store = backing.join(STORE_NAME);
    let found = match std::fs::symlink_metadata(&store) {
        Ok(found) => found,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(io_error(store.display(), cause)),
    };
    if !found.is_dir() {
        let hint = "the history is stored under this name: move it out of the way";
        return Err(hinted(
            Code::BadStore,
            format!("{} is not a directory", store.display()),
            hint,
        ));
    }
    let root = std::fs::metadata(backing).on(backing.display())?;
    if root.dev() != found.dev() {
        let message = format!(
            "the store {} is on another filesystem than {}",
            store.display(),
            backing.display()
        );
        let hint = format!(
            "versions are stored by reflink and rename, within one filesystem: unmount {}",
            store.display()
        );
        return Err(hinted(Code::StoreElsewhere, message, hint));
    }
    Ok(())
}

/// Rejects a tree that has an entry with the name of the snapshot directory: the mount would hide
/// it, and no checkpoint would contain it.
fn check_snapdir(daemon: &daemon::Args) -> VerbResult<()> {
    let store = StoreDir::of(&daemon.backing).ok().flatten();
    let asked = daemon.serving.snapdir_name.clone();
    let name = asked.unwrap_or_else(|| past::snapdir(store.as_ref()));
    let there = daemon.backing.join(&name);
    if std::fs::symlink_metadata(&there).is_err() {
        return Ok(());
    }
    let message = format!(
        "{} is there already, and ckptfs shows the checkpoints of a tree under this name",
        there.display()
    );
    let other = [".past", ".history"]
        .into_iter()
        .find(|other| *other != name);
    let hint = format!(
        "to give these another name: ckptfs mount {} --snapdir-name {}",
        word(daemon.backing.display()),
        word(other.unwrap_or_default())
    );
    Err(hinted(Code::BadMountpoint, message, hint))
}

/// Returns the real path of the hooks directory, which must be outside of the tree: users who may
/// write there must not choose the programs that the daemon runs.
fn hooks_dir(path: &Path, trees: &[&Path]) -> VerbResult<PathBuf> {
    let real = path.canonicalize().on(path.display())?;
    if trees.iter().any(|tree| real.starts_with(tree)) {
        let message = format!(
            "the hooks directory {} is inside the tree, where others may write",
            real.display()
        );
        return Err(hinted(
            Code::BadHooks,
            message,
            "choose a directory outside of it",
        ));
    }
    if !real.is_dir() {
        return Err(error(
            Code::NotADirectory,
            format!("{} is not a directory", path.display()),
        ));
    }
    Ok(real)
}

/// Rejects options that only root may use: fusermount would drop them with a warning.
fn check_flags(serving: &ServeOptions) -> VerbResult<()> {
    if (serving.dev() || serving.suid()) && sys::ids().0 != 0 {
        let message = "only root may mount with the options dev or suid";
        return Err(hinted(
            Code::NoPermission,
            message,
            "leave the option out, or mount as root",
        ));
    }
    Ok(())
}

/// Reports whether other users have access.
fn allow_other(args: &Args) -> VerbResult<bool> {
    let permitted = sys::ids().0 == 0 || user_allow_other();
    match (args.allow_other, args.no_allow_other) {
        (true, _) if !permitted => Err(hinted(
            Code::NoPermission,
            "unprivileged users may not let others into a FUSE mount on this machine",
            "root can allow it: echo user_allow_other >> /etc/fuse.conf",
        )),
        (true, _) => Ok(true),
        (false, true) => Ok(false),
        (false, false) => Ok(permitted),
    }
}

/// Reports whether fuse.conf(5) permits `allow_other` to ordinary users.
pub fn user_allow_other() -> bool {
    std::fs::read_to_string("/etc/fuse.conf")
        .is_ok_and(|conf| conf.lines().any(|line| line.trim() == "user_allow_other"))
}

/// Prints the result of the mount.
fn report(
    daemon: &daemon::Args,
    ready: &DaemonReady,
    repaired: usize,
    context: &mut Context,
) -> Outcome {
    let (mount, backing, store) = (
        &daemon.mountpoint,
        &daemon.backing,
        &daemon.backing.join(STORE_NAME),
    );
    let DaemonReady {
        pid,
        io,
        writes,
        absence,
        warnings,
        below,
    } = ready;
    let out = &mut context.out;
    let below: Vec<MountUser> = below
        .iter()
        .filter(|holder| holder.pid != std::process::id())
        .cloned()
        .collect();
    if out.json {
        let absence = absence.as_ref();
        return Ok(out.json(&Mounted {
            mount,
            backing,
            store,
            io,
            writes,
            pid: *pid,
            repaired,
            absence,
            warnings,
            below: &below,
        })?);
    }
    out.talk(&format!(
        "{} is mounted (io: {io}, writes: {writes})",
        mount.display()
    ));
    if let Some(absence) = absence {
        out.talk(&changes::absence(absence));
    }
    for warning in warnings {
        out.warn(warning);
    }
    mount_users::warn(&below, out);
    let inside = std::env::current_dir().is_ok_and(|cwd| cwd.starts_with(mount));
    if inside {
        out.warn("this shell is still in the directory under the mount; to enter the mount: cd .");
    }
    Ok(())
}
