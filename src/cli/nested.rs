//! Mounts and subvolumes inside a directory that is mounted. They are not part of the history. The
//! mount hides them, so each is bound over its place in the mount, and removed before the mount
//! ends.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::dead_mounts;
use ckptfs_api::display::word;
use ckptfs_api::{Code, STORE_NAME, VerbResult};
use ckptfs_sys::{self as sys, Errno, MountPoint, OpenKind, SysResult, host};
use ckptfs_ui::error::{ErrorContext, hinted};
use ckptfs_ui::mounts;

/// Limit of the paths in a message.
const SHOWN_MAX: usize = 8;

/// A mount or subvolume inside the directory.
pub struct NestedMount {
    /// Its path, relative to the directory.
    inside: PathBuf,
    /// A copy that can be attached; `None`: the caller may not make one.
    copy: Option<OwnedFd>,
}

/// Returns the paths of the topmost mounts on a mount, relative to its root. Subvolumes are among
/// them, because they are bound.
pub fn in_mount(table: &[MountPoint], mount: &MountPoint) -> Vec<PathBuf> {
    let on_it = table.iter().filter(|other| other.parent == mount.id);
    let inside = on_it.filter_map(|other| other.at.strip_prefix(&mount.at).ok());
    let mut found: Vec<PathBuf> = inside
        .filter(|path| !path.as_os_str().is_empty())
        .map(Path::to_owned)
        .collect();
    found.sort();
    found.dedup();
    found
}

/// Returns the mounts and subvolumes in a directory, with a copy of each.
///
/// # Errors
/// Those of reading the mount table and the directory.
pub fn below(backing: &Path) -> VerbResult<Vec<NestedMount>> {
    let table = mounts::all()?;
    let mut found: Vec<PathBuf> = table
        .iter()
        .filter_map(|mount| mount.at.strip_prefix(backing).ok())
        .filter(|path| !path.as_os_str().is_empty())
        .map(Path::to_owned)
        .collect();
    let root = sys::open_root(backing).on(backing.display())?;
    found.extend(sys::subvolumes_below(&root).unwrap_or_else(|errno| {
        tracing::warn!(%errno, "subvolumes cannot be listed");
        Vec::new()
    }));
    found.sort();
    found.dedup_by(|path, above| path.starts_with(above));
    found.retain(|path| !path.starts_with(STORE_NAME));
    let copied = |inside: PathBuf| {
        let copy = named_by(&root, &inside).and_then(sys::copy_mount).ok();
        NestedMount { inside, copy }
    };
    Ok(found.into_iter().map(copied).collect())
}

/// Opens a path in a directory (`O_PATH`), without following a link.
fn named_by(root: impl AsFd, inside: &Path) -> SysResult<OwnedFd> {
    sys::open_beneath(root, inside.as_os_str().as_bytes(), OpenKind::Path)
}

/// Attaches a copy over a path in a directory.
fn attach(copy: OwnedFd, (root, inside): (impl AsFd, &Path)) -> SysResult<()> {
    sys::attach_mount(copy, named_by(root, inside)?)
}

/// Binds the copies over their places in the mount. Returns a warning that lists the bound and the
/// hidden ones.
pub fn bind(places: Vec<NestedMount>, mountpoint: &Path) -> Option<String> {
    let (mut bound, mut hidden) = (Vec::new(), Vec::new());
    let root = host::open_dir_path(mountpoint);
    for NestedMount { inside, copy } in places {
        let attached = copy
            .zip(root.as_ref().ok())
            .map(|(copy, root)| attach(copy, (root, &inside)));
        match attached {
            Some(Ok(())) => bound.push(inside),
            failed => {
                tracing::warn!(at = %inside.display(), ?failed, "a mount inside the directory is hidden");
                hidden.push(inside);
            }
        }
    }
    let part = |paths: &[PathBuf], end: &str| (!paths.is_empty()).then(|| named(paths) + end);
    let parts = [
        part(&bound, ""),
        part(&hidden, " (hidden until this mount ends)"),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| {
        format!(
            "mounts and subvolumes inside the directory are not in checkpoints: {}",
            parts.join(", ")
        )
    })
}

/// Formats the first of some paths, and the number of the others.
pub fn named(paths: &[PathBuf]) -> String {
    let shown = paths.iter().take(SHOWN_MAX);
    let shown: Vec<String> = shown.map(|path| path.display().to_string()).collect();
    match paths.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Mounts that were removed from a mount that is about to end, and can be attached again.
pub struct DetachedMounts<'a> {
    mount: &'a MountPoint,
    copies: Vec<(PathBuf, OwnedFd)>,
}

impl DetachedMounts<'_> {
    /// Attaches them again: the mount stays.
    pub fn put_back(self) {
        let root = host::open_dir_path(&self.mount.at);
        for (inside, copy) in self.copies {
            let attached = root
                .as_ref()
                .map_err(|errno| *errno)
                .and_then(|root| attach(copy, (root, &inside)));
            if let Err(errno) = attached {
                tracing::warn!(at = %inside.display(), %errno, "a mount inside the directory is not put back");
            }
        }
    }
}

/// Removes the mounts that are bound over their own places in a mount. Below the mount they are
/// visible again.
///
/// # Errors
/// `busy` if one is in use; then all are attached again.
pub fn take_away(mount: &MountPoint) -> VerbResult<DetachedMounts<'_>> {
    let table = mounts::all()?;
    let mut taken = DetachedMounts {
        mount,
        copies: Vec::new(),
    };
    let Some(backing) = mount.backing() else {
        return Ok(taken);
    };
    for inside in in_mount(&table, mount) {
        let at = mount.at.join(&inside);
        let bound = mounts::top(&table, &at);
        // Over the directory itself its path is right, while the source may be an earlier name.
        let is_bound = |bound: &MountPoint| {
            let below = [&mount.at, &backing].map(|dir| dir.join(&inside));
            below
                .iter()
                .any(|path| shows(bound, &table, path, mount.dev))
        };
        if !bound.is_some_and(is_bound) {
            continue;
        }
        if let Err(errno) = end(mount, &table, (&inside, &mut taken)) {
            taken.put_back();
            return Err(match errno {
                Errno::EBUSY => hinted(
                    Code::Busy,
                    format!(
                        "{}, which is mounted inside {}, is in use",
                        inside.display(),
                        mount.at.display()
                    ),
                    format!("to see by which process: fuser -vm {}", word(at.display())),
                ),
                errno => dead_mounts::unmount_error(&at, errno),
            });
        }
    }
    Ok(taken)
}

/// Like [`take_away`], for the mount at a path, which ends in any case.
pub fn end_at(mountpoint: &Path) {
    let table = mounts::all().unwrap_or_default();
    let mount = mounts::top(&table, mountpoint).filter(|mount| mount.is_ours());
    if let Some(Err(error)) = mount.map(take_away) {
        tracing::warn!(error = error.message, "a mount inside the directory stays");
    }
}

/// Unmounts everything at and below a path in a mount.
fn end(
    mount: &MountPoint,
    table: &[MountPoint],
    (inside, taken): (&Path, &mut DetachedMounts<'_>),
) -> SysResult<()> {
    let root = host::open_dir_path(&mount.at)?;
    let copy = sys::copy_mount(named_by(&root, inside)?)?;
    let at = mount.at.join(inside);
    let all = table
        .iter()
        .filter(|other| other.at.starts_with(&at) && is_on(other, mount.id, table));
    // The uppermost were mounted last.
    let all: Vec<&MountPoint> = all.collect();
    let (mut ended, mut count) = (Ok(()), 0);
    for mounted in all.into_iter().rev() {
        let path = mounted.at.strip_prefix(&mount.at).unwrap_or(inside);
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            continue;
        };
        let dir = match above.as_os_str().is_empty() {
            true => host::open_dir_path(&mount.at),
            false => named_by(&root, above),
        };
        ended = dir.and_then(|dir| sys::unmount_in(dir, name));
        if ended.is_err() {
            break;
        }
        count += 1;
    }
    // Mounts on top of it may be gone even after a failure; the copy contains them.
    if ended.is_ok() || count > 0 {
        taken.copies.push((inside.to_owned(), copy));
    }
    ended
}

/// Reports whether a mount shows a path of the tree below the mount of this device.
fn shows(bound: &MountPoint, table: &[MountPoint], path: &Path, dev: u64) -> bool {
    let lower = path.ancestors().find_map(|dir| {
        let there = |mount: &&MountPoint| mount.at == dir && mount.dev != dev;
        let mut mounts = table.iter().filter(there);
        mounts.find(|mount| mount.id != bound.id)
    });
    lower.is_some_and(|lower| {
        let inside = path.strip_prefix(&lower.at).unwrap_or(Path::new(""));
        bound.dev == lower.dev && bound.root == lower.root.join(inside)
    })
}

/// Reports whether a mount is on another mount, directly or not.
fn is_on(mount: &MountPoint, below: u64, table: &[MountPoint]) -> bool {
    let mut parent = mount.parent;
    for _ in 0..table.len() {
        if parent == below {
            return true;
        }
        match table.iter().find(|other| other.id == parent) {
            Some(other) if other.parent != parent => parent = other.parent,
            _ => return false,
        }
    }
    false
}
