//! `ckptfs umount`.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::context::Context;
use super::error::{Outcome, error, hinted};
use super::holders::{self, Found, Tree, Use};
use super::locate::Located;
use super::progress::Spinner;
use super::tree_path::{beyond_links, normal};
use super::{locate, mounts};
use crate::control::Client;
use crate::engine::Keep;
use crate::engine::api::{Code, Unmount, VerbError, VerbResult, host_path};
use crate::engine::word::{count, word};
use crate::store::layout::branches::branches_of;
use crate::store::layout::noted_unkept;
use crate::sys::{self, MountPoint};

/// How long a daemon may take to put its store in order.
const END_TIMEOUT: Duration = Duration::from_secs(120);

/// How often to see whether somebody else has the filesystem mounted, for whom the daemon goes on.
/// Many have it for a moment only: whoever makes a table of mounts of its own copies all there are.
const LOOK_EVERY: Duration = Duration::from_secs(8);

/// How long to see whether a lazily unmounted daemon ends at once.
const LAZY_TIMEOUT: Duration = Duration::from_millis(500);

/// Unmount; an ordinary directory is left, with the history beside it
///
/// Returns when the daemon has exited. Shells that this was called from do not keep the mount busy.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The mount, or the directory that is mounted; by default the one that contains the working
    /// directory
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Unmount although it is in use; the daemon exits when the last open file is closed
    #[arg(short, long)]
    lazy: bool,
    /// How much content to save against changes while nothing is mounted: what checkpoints share
    /// with the live files; by default as the setting umount.keep says, or as much as fits in two
    /// seconds
    #[arg(long, value_enum, value_name = "HOW")]
    keep: Option<KeepWord>,
}

/// `--keep`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum KeepWord {
    /// What can be cloned in two seconds; without reflink, copies of small files
    Some,
    /// Nothing
    None,
    /// Everything, however long it takes
    All,
}

impl From<KeepWord> for Keep {
    fn from(word: KeepWord) -> Keep {
        match word {
            KeepWord::Some => Keep::Some,
            KeepWord::None => Keep::None,
            KeepWord::All => Keep::All,
        }
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct Unmounted<'a> {
    #[serde(serialize_with = "host_path::serialize")]
    unmounted: &'a Path,
    daemon_ended: bool,
    /// Files whose content is not kept: if they are changed now, it is lost to the checkpoints that
    /// show it.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_kept: Option<u64>,
    /// A process that has the filesystem mounted elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    mounted_for: Option<u32>,
}

/// How a mount was taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ended {
    /// The daemon has ended.
    All,
    /// It ends when the last open file is closed.
    Lazily,
    /// It goes on for this process, in whose table of mounts the filesystem is.
    Elsewhere(u32, PathBuf),
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let cwd = locate::start(context.dir())?;
    let table = mounts::all()?;
    let (path, mount) = match &args.dir {
        Some(dir) => (real(&cwd.join(dir)), named(&table, &cwd.join(dir), dir)),
        None => (cwd.clone(), around(&table, &cwd)),
    };
    let mount = match mount {
        Err(error) if error.code == Code::NotMounted => {
            return out_of_sight(&path, &args, context).unwrap_or(Err(error.into()));
        }
        mount => mount?,
    };
    check_on_top(&table, mount)?;
    // Our own working directory must not be what keeps the mount busy.
    let shell = std::env::current_dir();
    std::env::set_current_dir("/").map_err(|cause| super::error::io_error("/", cause))?;
    // The daemon may keep content that only the tree has, as much as it is told to.
    let spinner = Spinner::start(&context.out, "unmounting");
    let warnings = RefCell::new(Vec::<String>::new());
    let ended = take_away(mount, args.lazy, args.keep.map(Keep::from), &|warning| {
        warnings.borrow_mut().push(warning.to_owned());
    });
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

/// Ends the daemon of the tree at `path` whose mount nobody sees from here: it is in a namespace of
/// its own, which lives for as long as the daemon does. `None`: there is none.
fn out_of_sight(path: &Path, args: &Args, context: &mut Context) -> Option<Outcome> {
    let Ok(Located::Served(mut served)) = locate::locate(path.to_owned()) else {
        return None;
    };
    let serves = |mount: &MountPoint| served.root == path && mount.serves(path);
    // Of the other's table of mounts nothing is shown: whoever made the namespace has written it.
    let mount = MountPoint {
        at: path.to_owned(),
        ..sys::mounts_of_all(serves).ok()?.into_iter().next()?.1
    };
    let unmounted = served
        .client
        .ask(Unmount {
            lazy: args.lazy,
            leave: false,
            keep: args.keep.map(Keep::from),
        })
        .map_err(|error| busy(&mount, error));
    let ended = unmounted.and_then(|()| wait(&mut served.client, &mount, args.lazy));
    Some(
        ended
            .map_err(Into::into)
            .and_then(|ended| tell(&mount, &ended, context)),
    )
}

/// Says how it went.
fn tell(mount: &MountPoint, ended: &Ended, context: &mut Context) -> Outcome {
    let not_kept = if *ended == Ended::All {
        not_kept(mount)
    } else {
        None
    };
    if context.out.json {
        let mounted_for = if let Ended::Elsewhere(pid, _) = ended {
            Some(*pid)
        } else {
            None
        };
        return Ok(context.out.json(&Unmounted {
            unmounted: &mount.at,
            daemon_ended: *ended == Ended::All,
            not_kept,
            mounted_for,
        })?);
    }
    let at = mount.at.display();
    context.out.talk(&match ended {
        Ended::All => format!("{at} is unmounted"),
        Ended::Lazily => format!("{at} is unmounted; the daemon exits when the last open file is closed"),
        Ended::Elsewhere(pid, place) => {
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
    Ok(())
}

/// Of how many files the daemon has not kept the content, if of any.
fn not_kept(mount: &MountPoint) -> Option<u64> {
    let root = sys::open_root(&mount.backing()?).ok()?;
    noted_unkept(root).filter(|files| *files > 0)
}

/// The mount of ours that is at `path`, or serves it.
fn named<'a>(table: &'a [MountPoint], path: &Path, shown: &Path) -> VerbResult<&'a MountPoint> {
    let path = real(path);
    if let Some(mount) = mounts::top(table, &path).filter(|mount| mount.says_ours()) {
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

/// The mount of ours that contains `cwd`, or serves a directory that does.
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

/// `path` without links, whether or not what is mounted there is alive.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| {
        let path = normal(path);
        beyond_links(&path).unwrap_or(path)
    })
}

/// Unmounts what is mounted by ckptfs at a place.
///
/// # Errors
/// In words for a person.
pub fn unmount(at: &Path) -> VerbResult<()> {
    let table = mounts::all()?;
    let mount = named(&table, at, at)?;
    check_on_top(&table, mount)?;
    take_away(mount, false, None, &|warning| tracing::warn!("{warning}")).map(drop)
}

/// Unmounts, and takes away dead mounts that were below.
fn take_away(
    mount: &MountPoint,
    lazy: bool,
    keep: Option<Keep>,
    warn: &dyn Fn(&str),
) -> VerbResult<Ended> {
    let ended = take_top(mount, lazy, keep, warn)?;
    mounts::repair(&mount.at)?;
    Ok(ended)
}

fn take_top(
    mount: &MountPoint,
    lazy: bool,
    keep: Option<Keep>,
    warn: &dyn Fn(&str),
) -> VerbResult<Ended> {
    let (at, (uid, _)) = (&mount.at, sys::ids());
    if let Some(owner) = mount.owner.filter(|owner| uid != 0 && *owner != uid) {
        return Err(not_theirs(mount, owner));
    }
    let unasked = || {
        mounts::unmount(at, lazy).map_err(|cause| busy(mount, mounts::unmount_error(at, cause)))?;
        Ok(if lazy { Ended::Lazily } else { Ended::All })
    };
    if !mount.is_ours() {
        // Somebody else answers for it, and is neither asked nor waited for.
        return unasked();
    }
    if mounts::is_dead(at) {
        mounts::repair(at)?;
        let backing = mount.backing().unwrap_or_else(|| at.clone());
        return repair_branches(backing).map(|()| Ended::All);
    }
    let client = match locate::locate(at.clone()) {
        Ok(Located::Served(served)) if served.root == *at => Some(served.client),
        _ => None,
    };
    let Some(mut client) = client else {
        // Nobody to ask: a daemon that does not listen.
        return unasked();
    };
    match client.ask(Unmount {
        lazy,
        leave: false,
        keep,
    }) {
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

/// Takes away the mounts of branches that have died with the daemon of the tree in `root`.
fn repair_branches(root: PathBuf) -> VerbResult<()> {
    let mut open = vec![root];
    while let Some(root) = open.pop() {
        let registered = sys::open_root(&root).map(branches_of);
        // What cannot be read the next mount tells of.
        let Ok(Ok((there, _))) = registered else {
            continue;
        };
        for branch in there.entries {
            if mounts::repair(&branch.path)? > 0 {
                open.push(branch.path);
            }
        }
    }
    Ok(())
}

/// What is asked of a mount by its place is asked of what is on top there.
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

/// Somebody else mounted it.
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

fn wait(client: &mut Client, mount: &MountPoint, lazy: bool) -> VerbResult<Ended> {
    if lazy {
        return Ok(if client.wait_ended(LAZY_TIMEOUT) {
            Ended::All
        } else {
            Ended::Lazily
        });
    }
    let began = Instant::now();
    while began.elapsed() < END_TIMEOUT {
        if client.wait_ended(LOOK_EVERY) {
            return Ok(Ended::All);
        }
        if let Some((pid, at)) = elsewhere(mount) {
            return Ok(Ended::Elsewhere(pid, at));
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

/// A process that has the filesystem of `mount` in its table of mounts: in a namespace that was
/// copied, in a container, or at another place.
fn elsewhere(mount: &MountPoint) -> Option<(u32, PathBuf)> {
    let same = |other: &MountPoint| other.dev == mount.dev && other.source == mount.source;
    sys::mounts_of_all(same)
        .ok()?
        .into_iter()
        .next()
        .map(|(pid, other)| (pid, other.at))
}

fn users(mount: &MountPoint) -> Found {
    Tree::on(mount).users(&[], holders::THOROUGH)
}

/// Whether nobody but those who wait for this program is in the mount, and they only with their
/// working directory.
fn only_ours(users: &Found) -> bool {
    let ancestors = holders::ancestors();
    users.complete
        && !users.holders.is_empty()
        && users
            .holders
            .iter()
            .all(|user| user.by == Use::WorkingDirectory && ancestors.contains(&user.pid))
}

/// Says who keeps the mount busy.
fn busy(mount: &MountPoint, mut error: VerbError) -> VerbError {
    if error.code != Code::Busy {
        return error;
    }
    let users = users(mount).holders;
    if !users.is_empty() {
        error.message = format!("{}: {}", error.message, holders::named(users.iter()));
    }
    error
}
