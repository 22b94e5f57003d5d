//! `ckptfs run --at`: moves this process into a mount namespace of its own, in which the tree is
//! that of a checkpoint.
//!
//! A directory in memory, for changes, covers the mount, and an overlay of it and the view of the
//! checkpoint covers both: nothing is copied in advance. The mounts end with the last process in
//! the namespace.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use super::hang_watch;
use ckptfs_api::{CheckpointInfo, Code, VerbError, VerbResult};
use ckptfs_sys::{self as sys, Errno, host};
use ckptfs_ui::error::{ErrorContext, hinted};
use ckptfs_ui::locate::ServedTree;
use ckptfs_ui::past::StateTree;
use ckptfs_ui::tree_path::{beyond_links, normal};

/// The work directory of an overlay, removed on drop.
pub struct OverlayWorkDir {
    work: Option<PathBuf>,
}

impl Drop for OverlayWorkDir {
    fn drop(&mut self) {
        if let Some(work) = &self.work {
            // Files that stay there are useless, and harmless.
            let _ = fs::remove_dir_all(work);
        }
    }
}

/// Enters the tree of `checkpoint`, with the working directory. Changes go to `keep`, or are
/// discarded.
pub fn enter(
    served: &mut ServedTree,
    checkpoint: &CheckpointInfo,
    keep: Option<&Path>,
) -> VerbResult<OverlayWorkDir> {
    let mount = served.mount()?;
    let at = served.root.clone();
    let kept = keep
        .map(|keep| kept_dirs(keep, &[&mount, &at], &served.cwd))
        .transpose()?;
    let past = OverlayWorkDir {
        work: kept.as_ref().map(|(_, work)| work.clone()),
    };
    let user = own_mounts("cannot run a command in the past")?;
    // Opened in this namespace, because an overlay cannot use a mount of another one.
    let lower = StateTree::at(served, Some(checkpoint))?.into_root();
    let was = sys::stat_fd(&lower).on(at.display())?;
    let cannot = |cause: Errno| no_overlay(&at, cause);
    let (upper, work) = match &kept {
        Some((upper, work)) => (upper.clone(), work.clone()),
        None => {
            sys::mount_scratch(&at).map_err(cannot)?;
            let dirs = (at.join("upper"), at.join("work"));
            for dir in [&dirs.0, &dirs.1] {
                fs::DirBuilder::new()
                    .mode(0o700)
                    .create(dir)
                    .on(dir.display())?;
            }
            dirs
        }
    };
    // The root of an overlay has the attributes of its upper directory.
    let given = chown(&upper, Some(was.uid), Some(was.gid))
        .and_then(|()| fs::set_permissions(&upper, fs::Permissions::from_mode(was.mode)));
    given
        .or_else(|cause| if user { Ok(()) } else { Err(cause) })
        .on(upper.display())?;
    let open = |path: &Path| host::open_dir_path(path).on(path.display());
    let (upper, work_dir) = (open(&upper)?, open(&work)?);
    sys::mount_overlay(&at, lower.as_fd(), upper.as_fd(), work_dir.as_fd(), user)
        .map_err(cannot)?;
    if mount != at {
        // A tree that is mounted elsewhere is visible at both places.
        sys::mount_bind(&at, &mount).map_err(cannot)?;
    }
    let then = format!("as it was at checkpoint {}", checkpoint.id);
    enter_again(&served.cwd, &at, &then)?;
    Ok(past)
}

/// Returns the directory for changes, which is created or empty, and a work directory next to it.
fn kept_dirs(keep: &Path, trees: &[&Path], cwd: &Path) -> VerbResult<(PathBuf, PathBuf)> {
    let path = normal(&cwd.join(keep));
    let path = beyond_links(&path).unwrap_or(path);
    let shown = keep.display();
    if trees.iter().any(|tree| path.starts_with(tree)) {
        return Err(hinted(
            Code::BadDirectory,
            format!("{shown} is inside the tree"),
            "choose a directory outside of it",
        ));
    }
    if !path.is_dir() {
        fs::create_dir(&path).on(&shown)?;
    } else if fs::read_dir(&path).on(&shown)?.next().is_some() {
        return Err(hinted(
            Code::NotEmpty,
            format!("{shown} is not empty"),
            "name a new directory",
        ));
    }
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".work-{}", std::process::id()));
    let work = path.with_file_name(name);
    fs::DirBuilder::new()
        .mode(0o700)
        .create(&work)
        .on(work.display())?;
    Ok((path, work))
}

/// Moves this process into a mount namespace of its own (`sys::private_mounts`); returns whether it
/// is also in a user namespace of its own. `cannot`: the operation that fails without it.
///
/// # Errors
/// `no-namespace`.
pub fn own_mounts(cannot: &str) -> VerbResult<bool> {
    hang_watch::end_watch();
    sys::private_mounts().map_err(|cause| {
        let hint = match cause {
            Errno::ENOSYS => "this needs Linux",
            Errno::ENOSPC => "raise sysctl user.max_mnt_namespaces and user.max_user_namespaces",
            _ => {
                "run it as root, or allow user namespaces: sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0"
            }
        };
        hinted(
            Code::NoNamespace,
            format!("{cannot}: a new mount namespace cannot be created ({cause})"),
            hint,
        )
    })
}

/// Enters the working directory again by its path, which now leads to the tree at `at`; `how`
/// describes the state of that tree, for the error.
///
/// # Errors
/// `no-directory`.
pub fn enter_again(cwd: &Path, at: &Path, how: &str) -> VerbResult<()> {
    std::env::set_current_dir(cwd).map_err(|cause| {
        let message = format!(
            "{} cannot be entered {how}: {}",
            cwd.display(),
            ckptfs_ui::error::plain(&cause)
        );
        hinted(
            Code::NoDirectory,
            message,
            format!(
                "start from a directory that exists there, such as {}",
                at.display()
            ),
        )
    })
}

fn no_overlay(at: &Path, cause: Errno) -> VerbError {
    let hint = match cause {
        Errno::ENODEV => "load the kernel module: modprobe overlay",
        Errno::EINVAL => {
            "the --keep-changes directory must be on a filesystem that overlayfs can write to (ext4, xfs, btrfs, tmpfs); the kernel log may say more"
        }
        _ => "run it as root",
    };
    hinted(
        Code::NoOverlay,
        format!(
            "cannot run a command in the past: overlayfs cannot be mounted at {} ({cause})",
            at.display()
        ),
        hint,
    )
}
