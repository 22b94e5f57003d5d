//! `ckptfs umount`.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::hang_watch::{self, ServingProcess, is_daemon};
use super::mount_users::{self, MountUsers, Use, VisibleTree};
use super::{detached, nested, transient_users};
use crate::dead_mounts;
use ckptfs_api::display::{count, word};
use ckptfs_api::{
    Client, Code, GetStatus, STORE_NAME, SavePolicy, Status, StoreDir, Unmount, VerbError,
    VerbResult, host_path,
};
use ckptfs_store::layout::branches::branches_of;
use ckptfs_store::layout::{noted_unhashed, noted_unkept};
use ckptfs_sys::{self as sys, MountPoint};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{ErrorContext, Outcome, error, hinted};
use ckptfs_ui::locate::TreeLocation;
use ckptfs_ui::progress::Spinner;
use ckptfs_ui::tree_path::{beyond_links, normal};
use ckptfs_ui::{locate, mounts};

/// Time for a daemon to close its store.
const END_TIMEOUT: Duration = Duration::from_secs(120);

/// Signal that ends a daemon.
const SIGTERM: i32 = 15;

/// Period of the check for other processes with the filesystem mounted, for which the daemon
/// continues. Many have it for a moment only, because a new mount namespace copies all mounts.
const LOOK_EVERY: Duration = Duration::from_secs(8);

/// Time for a lazily unmounted daemon to end at once.
const LAZY_TIMEOUT: Duration = Duration::from_millis(500);

/// Unmount; leaves an ordinary directory, with its history in .ckptfs
///
/// Returns when the daemon has exited. Shells that run this command do not keep the mount busy.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The mountpoint, or the directory that is mounted; by default the mount that contains the
    /// working directory
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Unmount even if in use; the daemon exits when the last open file is closed
    #[arg(short, long)]
    lazy: bool,
    /// End the daemon even if processes have files open in the mount, or in one that was unmounted
    /// lazily: they get errors
    #[arg(short, long, conflicts_with = "lazy")]
    force: bool,
    /// How much content to save against changes while nothing is mounted: content that checkpoints
    /// share with the live files; by default the setting umount.keep, or as much as fits in two
    /// seconds
    #[arg(long, value_enum, value_name = "HOW")]
    keep: Option<KeepWord>,
}

/// `--keep`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum KeepWord {
    /// As much as can be cloned in two seconds; without reflink, copies of small files
    Some,
    /// Nothing
    None,
    /// Everything, however long it takes
    All,
}

impl From<KeepWord> for SavePolicy {
    fn from(word: KeepWord) -> SavePolicy {
        match word {
            KeepWord::Some => SavePolicy::Some,
            KeepWord::None => SavePolicy::None,
            KeepWord::All => SavePolicy::All,
        }
    }
}

/// Output of `--json`.
#[derive(Serialize)]
struct Unmounted<'a> {
    #[serde(serialize_with = "host_path::serialize")]
    unmounted: &'a Path,
    daemon_ended: bool,
    /// Files whose content is not saved: a change now destroys it for the checkpoints that show it.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_kept: Option<u64>,
    /// Versions without a hash: damage before the next mount is not detected.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_hashed: Option<u64>,
    /// A process that has the filesystem mounted elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    mounted_for: Option<u32>,
}

/// Result of an unmount.
#[derive(Clone, Debug, PartialEq, Eq)]
enum UnmountResult {
    /// The daemon has ended.
    All,
    /// The daemon ends when the last open file is closed.
    Lazily,
    /// The daemon continues for this process, which has the filesystem in its mount table.
    Elsewhere(u32, PathBuf),
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let cwd = locate::start(context.dir())?;
    let table = mounts::all()?;
    let mount = match &args.dir {
        Some(dir) => named(&table, &cwd.join(dir), dir),
        None => around(&table, &cwd),
    };
    let mount = match mount {
        Err(error) if error.code == Code::NotMounted => {
            let path = args
                .dir
                .as_ref()
                .map_or_else(|| cwd.clone(), |dir| real(&cwd.join(dir)));
            return out_of_sight(&path, &args, context).unwrap_or(Err(error.into()));
        }
        mount => mount?,
    };
    check_on_top(&table, mount)?;
    if args.force
        && !hang_watch::answers(&mount.at)
        && let Some(daemon) = ServingProcess::of(mount)
        && daemon.end(END_TIMEOUT)?
    {
        return tell_ended(&mount.at, context);
    }
    if args.force && !mounts::is_dead(&mount.at) {
        let mut served = locate::served(Some(&mount.at))?;
        let status = served.client.ask(GetStatus)?;
        return end_now(&mut served.client, &status, context);
    }
    // Our own working directory must not keep the mount busy.
    let shell = std::env::current_dir();
    std::env::set_current_dir("/").map_err(|cause| ckptfs_ui::error::io_error("/", cause))?;
    // The daemon may save content that only the tree has, as `keep` specifies.
    let spinner = Spinner::start(&context.out, "unmounting");
    let warnings = RefCell::new(Vec::<String>::new());
    let ended = take_away(
        mount,
        args.lazy,
        args.keep.map(SavePolicy::from),
        &|warning| {
            warnings.borrow_mut().push(warning.to_owned());
        },
    );
    spinner.stop();
    for warning in warnings.into_inner() {
        context.out.warn(&warning);
    }
    let ended = ended?;
    tell(mount, &ended, context)?;
    if shell.is_ok_and(|shell| shell.starts_with(&mount.at)) {
        context
            .out
            .talk("this shell is still in the old mount; to enter the plain directory: cd .");
    }
    Ok(())
}

/// Ends the daemon of the tree at `path` whose mount is not visible here: it is in another
/// namespace, which lives as long as the daemon. `None`: no such daemon.
fn out_of_sight(path: &Path, args: &Args, context: &mut Context) -> Option<Outcome> {
    let Ok(TreeLocation::Served(mut served)) = locate::locate(path.to_owned()) else {
        return None;
    };
    let status = served.client.ask(GetStatus).ok()?;
    if let Some(found) = detached::served(&status).filter(|_| served.root == path) {
        if args.force {
            return Some(end_now(&mut served.client, &status, context));
        }
        let (message, hint) = detached::explained(&status, &found);
        return Some(Err(hinted(Code::Busy, message, hint).into()));
    }
    let serves = |mount: &MountPoint| served.root == path && mount.serves(path);
    // Nothing else of the other mount table is shown: the creator of the namespace controls it.
    let mount = MountPoint {
        at: path.to_owned(),
        ..sys::mounts_of_all(serves).ok()?.into_iter().next()?.1
    };
    let unmounted = served
        .client
        .ask(Unmount {
            lazy: args.lazy,
            leave: false,
            keep: args.keep.map(SavePolicy::from),
        })
        .map_err(|error| busy(&mount, error));
    let ended = unmounted.and_then(|()| wait(&mut served.client, &mount, args.lazy));
    Some(
        ended
            .map_err(Into::into)
            .and_then(|ended| tell(&mount, &ended, context)),
    )
}

/// Ends a daemon, even if its mount is in use.
fn end_now(client: &mut Client, status: &Status, context: &mut Context) -> Outcome {
    let pid = i32::try_from(status.daemon.pid).unwrap_or(0);
    let tree = client.store().and_then(StoreDir::tree);
    if !tree.is_some_and(|tree| is_daemon(status.daemon.pid, tree)) {
        return Err(hinted(
            Code::Busy,
            format!("the daemon is not process {pid} here: it runs in another pid namespace"),
            "end it there, in its container",
        )
        .into());
    }
    sys::kill(pid, SIGTERM).on(format!("process {pid}"))?;
    if !client.wait_ended(END_TIMEOUT) {
        let message = format!("the daemon (pid {pid}) has not exited");
        return Err(hinted(Code::Busy, message, "see .ckptfs/daemon.log").into());
    }
    tell_ended(&status.mount, context)
}

/// Prints that a mount and its daemon are gone.
fn tell_ended(at: &Path, context: &mut Context) -> Outcome {
    if context.out.json {
        return Ok(context.out.json(&Unmounted {
            unmounted: at,
            daemon_ended: true,
            not_kept: None,
            not_hashed: None,
            mounted_for: None,
        })?);
    }
    let at = at.display();
    context
        .out
        .talk(&format!("{at} is unmounted, and its daemon has ended"));
    Ok(())
}

/// Prints the result of an unmount.
fn tell(mount: &MountPoint, ended: &UnmountResult, context: &mut Context) -> Outcome {
    let (not_kept, not_hashed) = match ended {
        UnmountResult::All => noted(mount),
        _ => (None, None),
    };
    if context.out.json {
        let mounted_for = if let UnmountResult::Elsewhere(pid, _) = ended {
            Some(*pid)
        } else {
            None
        };
        return Ok(context.out.json(&Unmounted {
            unmounted: &mount.at,
            daemon_ended: *ended == UnmountResult::All,
            not_kept,
            not_hashed,
            mounted_for,
        })?);
    }
    let at = mount.at.display();
    context.out.talk(&match ended {
        UnmountResult::All => format!("{at} is unmounted"),
        UnmountResult::Lazily => format!("{at} is unmounted; the daemon exits when the last open file is closed"),
        UnmountResult::Elsewhere(pid, place) => {
            let place = place.display();
            format!("{at} is unmounted here; process {pid} has it mounted too, at {place}, and the daemon runs until that is unmounted too")
        }
    });
    if let Some(files) = not_kept {
        context.out.talk(&format!(
            "the content of {} is not saved: if changed while nothing is mounted, checkpoints lose it; to save all: ckptfs umount --keep all",
            count(files, "file")
        ));
    }
    if let Some(versions) = not_hashed {
        context.out.talk(&format!(
            "{} without a hash: damage to them before the next mount is not detected",
            count(versions, "version")
        ));
    }
    Ok(())
}

/// Returns the number of files whose content the daemon has not saved, and of versions without a
/// hash, if not 0.
fn noted(mount: &MountPoint) -> (Option<u64>, Option<u64>) {
    let Some(root) = directory(mount) else {
        return (None, None);
    };
    let some = |count: &u64| *count > 0;
    (
        noted_unkept(&root).filter(some),
        noted_unhashed(&root).filter(some),
    )
}

/// Opens the directory that an ended mount served: at the mountpoint, if it covered the directory,
/// because a directory above may have been renamed since.
fn directory(mount: &MountPoint) -> Option<OwnedFd> {
    let places = [Some(mount.at.clone()), mount.backing()];
    let mut roots = places
        .into_iter()
        .flatten()
        .filter_map(|at| sys::open_root(&at).ok());
    roots.find(|root| sys::stat_at(root, STORE_NAME.as_bytes()).is_ok())
}

/// Returns the mount of ckptfs that is at `path`, or serves it.
fn named<'a>(table: &'a [MountPoint], path: &Path, shown: &Path) -> VerbResult<&'a MountPoint> {
    // A stopped daemon does not answer requests for its mountpoint.
    let mount_at = |path: &Path| mounts::top(table, path).filter(|mount| mount.says_ours());
    let is_plain = path.components().all(|part| part != Component::ParentDir);
    if let Some(mount) = mount_at(path).filter(|_| is_plain) {
        return Ok(mount);
    }
    let path = real(path);
    if let Some(mount) = mount_at(&path) {
        return Ok(mount);
    }
    if let Some(mount) = table.iter().rev().find(|mount| mount.serves(&path)) {
        return Ok(mount);
    }
    let shown = shown.display();
    match mounts::containing(table, &path).filter(|mount| mount.says_ours()) {
        Some(mount) => {
            let at = mount.at.display();
            Err(hinted(
                Code::NotMounted,
                format!("{shown} is inside a mount, but is not one"),
                format!("ckptfs umount {}", word(at)),
            ))
        }
        None => Err(error(
            Code::NotMounted,
            format!("{shown} is not mounted by ckptfs"),
        )),
    }
}

/// Returns the mount of ckptfs that contains `cwd`, or serves a directory above it.
fn around<'a>(table: &'a [MountPoint], cwd: &Path) -> VerbResult<&'a MountPoint> {
    let containing = mounts::containing(table, cwd).filter(|mount| mount.says_ours());
    let serving = || {
        cwd.ancestors()
            .find_map(|dir| table.iter().rev().find(|mount| mount.serves(dir)))
    };
    containing.or_else(serving).ok_or_else(|| {
        hinted(
            Code::NotMounted,
            format!(
                "{} is not inside a directory mounted by ckptfs",
                cwd.display()
            ),
            "name the mount: ckptfs umount DIR",
        )
    })
}

/// Returns `path` without links, even if a mount there is dead.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| {
        let path = normal(path);
        beyond_links(&path).unwrap_or(path)
    })
}

/// Unmounts the mount of ckptfs at a path.
///
/// # Errors
/// A message for the user.
pub fn unmount(at: &Path) -> VerbResult<()> {
    let table = mounts::all()?;
    let mount = named(&table, at, at)?;
    check_on_top(&table, mount)?;
    take_away(mount, false, None, &|warning| tracing::warn!("{warning}")).map(drop)
}

/// Unmounts, and removes dead mounts below it.
fn take_away(
    mount: &MountPoint,
    lazy: bool,
    keep: Option<SavePolicy>,
    warn: &dyn Fn(&str),
) -> VerbResult<UnmountResult> {
    let nested = (!lazy && mount.is_ours() && !mounts::is_dead(&mount.at))
        .then(|| nested::take_away(mount))
        .transpose()?;
    let ended = take_top(mount, lazy, keep, warn);
    if ended.is_err() {
        nested
            .into_iter()
            .for_each(nested::DetachedMounts::put_back);
    }
    dead_mounts::repair(&mount.at)?;
    ended
}

fn take_top(
    mount: &MountPoint,
    lazy: bool,
    keep: Option<SavePolicy>,
    warn: &dyn Fn(&str),
) -> VerbResult<UnmountResult> {
    let (at, (uid, _)) = (&mount.at, sys::ids());
    if let Some(owner) = mount.owner.filter(|owner| uid != 0 && *owner != uid) {
        return Err(not_theirs(mount, owner));
    }
    let unasked = || {
        dead_mounts::unmount(at, lazy)
            .map_err(|cause| busy(mount, dead_mounts::unmount_error(at, cause)))?;
        Ok(if lazy {
            UnmountResult::Lazily
        } else {
            UnmountResult::All
        })
    };
    if !mount.is_ours() {
        // Its daemon belongs to another user: it receives no request, and is not waited for.
        return unasked();
    }
    if mounts::is_dead(at) {
        dead_mounts::repair(at)?;
        return repair_branches(directory(mount)).map(|()| UnmountResult::All);
    }
    let client = match locate::locate(at.clone()) {
        Ok(TreeLocation::Served(served)) if served.root == *at => Some(served.client),
        _ => None,
    };
    let Some(mut client) = client else {
        // The daemon does not listen.
        return unasked();
    };
    let unmount = Unmount {
        lazy,
        leave: false,
        keep,
    };
    // Shells that run this command stay, and are no reason to wait.
    let brief = || {
        let found = users(mount);
        (!only_ours(&found)).then_some(found.holders)
    };
    match transient_users::outlast(Code::Busy, brief, || client.ask(unmount)) {
        Ok(()) => wait(&mut client, mount, lazy),
        Err(error) if error.code == Code::Busy && !lazy && only_ours(&users(mount)) => {
            client.ask(Unmount {
                lazy: true,
                leave: true,
                keep,
            })?;
            wait(&mut client, mount, false)
        }
        Err(error) if error.code == Code::ProtocolVersion || error.code == Code::Protocol => {
            warn(&error.message);
            unasked()?;
            wait(&mut client, mount, lazy)
        }
        Err(error) => Err(busy(mount, error)),
    }
}

/// Removes the mounts of branches that died with the daemon of the tree in `root`.
fn repair_branches(root: Option<OwnedFd>) -> VerbResult<()> {
    let mut open = Vec::from_iter(root);
    while let Some(root) = open.pop() {
        // The next mount reports a registry that cannot be read.
        let Ok((there, _)) = branches_of(&root) else {
            continue;
        };
        let beside = sys::path_of(&root).ok();
        for branch in there.entries {
            for at in branch.places(beside.as_deref()) {
                if dead_mounts::repair(&at)? > 0 {
                    open.extend(sys::open_root(&at));
                }
            }
        }
    }
    Ok(())
}

/// Rejects a mount that is covered, because a path leads to the mount on top.
fn check_on_top(table: &[MountPoint], mount: &MountPoint) -> VerbResult<()> {
    match mounts::top(table, &mount.at) {
        Some(top) if !std::ptr::eq(top, mount) => {
            let (at, who) = (
                mount.at.display(),
                top.owner
                    .map_or(String::new(), |owner| format!(", of user {owner}")),
            );
            let message = format!("{at} is hidden: another filesystem{who} is mounted over it");
            Err(hinted(
                Code::Covered,
                message,
                format!(
                    "unmount that first (umount {}), then: ckptfs umount {}",
                    word(&at),
                    word(&at)
                ),
            ))
        }
        _ => Ok(()),
    }
}

/// Returns the error for a mount of another user.
fn not_theirs(mount: &MountPoint, owner: u32) -> VerbError {
    let (at, who) = (
        mount.at.display(),
        if owner == 0 {
            "root".to_owned()
        } else {
            format!("user {owner}")
        },
    );
    let hint =
        "only root and the user who mounted it may unmount it; ask them, or do it as root (sudo)";
    hinted(
        Code::NoPermission,
        format!("{at} was mounted by another user, {who}"),
        hint,
    )
}

fn wait(client: &mut Client, mount: &MountPoint, lazy: bool) -> VerbResult<UnmountResult> {
    if lazy {
        return Ok(if client.wait_ended(LAZY_TIMEOUT) {
            UnmountResult::All
        } else {
            UnmountResult::Lazily
        });
    }
    let began = Instant::now();
    while began.elapsed() < END_TIMEOUT {
        if client.wait_ended(LOOK_EVERY) {
            return Ok(UnmountResult::All);
        }
        if let Some((pid, at)) = elsewhere(mount) {
            return Ok(UnmountResult::Elsewhere(pid, at));
        }
    }
    let message = format!(
        "the directory is unmounted, but the daemon has not exited within {} s",
        END_TIMEOUT.as_secs()
    );
    Err(hinted(
        Code::DaemonBusy,
        message,
        "it may still be writing to the store; see .ckptfs/daemon.log",
    ))
}

/// Returns a process that has the filesystem of `mount` in its mount table: in a copied namespace,
/// in a container, or at another place.
fn elsewhere(mount: &MountPoint) -> Option<(u32, PathBuf)> {
    let same = |other: &MountPoint| other.dev == mount.dev && other.source == mount.source;
    sys::mounts_of_all(same)
        .ok()?
        .into_iter()
        .next()
        .map(|(pid, other)| (pid, other.at))
}

fn users(mount: &MountPoint) -> MountUsers {
    VisibleTree::on(mount).users(&[], mount_users::THOROUGH)
}

/// Reports whether only processes that wait for this program use the mount, and only as their
/// working directory.
fn only_ours(users: &MountUsers) -> bool {
    let ancestors = mount_users::ancestors();
    users.complete
        && !users.holders.is_empty()
        && users
            .holders
            .iter()
            .all(|user| user.by == Use::WorkingDirectory && ancestors.contains(&user.pid))
}

/// Adds the users of the mount to the error.
fn busy(mount: &MountPoint, mut error: VerbError) -> VerbError {
    if error.code != Code::Busy {
        return error;
    }
    let users = users(mount).holders;
    if !users.is_empty() {
        error.message = format!("{}: {}", error.message, mount_users::named(users.iter()));
    }
    error
}
