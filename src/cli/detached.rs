//! A lazily detached mount: it is in no mount table, and its daemon serves the files still open in
//! it.

use std::path::Path;

use super::mount_users::{self, MountUsers, Use, VisibleTree};
use ckptfs_api::Status;
use ckptfs_api::display::word;
use ckptfs_sys as sys;
use ckptfs_ui::mounts;

/// Returns the processes that the daemon of a detached mount still serves. `None`: the mount is
/// attached, or its identity is unknown.
pub fn served(status: &Status) -> Option<MountUsers> {
    let (id, dev) = status.daemon.mounted_as?;
    let table = mounts::all().ok()?;
    let is_there = table.iter().any(|mount| mount.id == id && mount.dev == dev);
    let elsewhere = || sys::mounts_of_all(|mount| mount.dev == dev);
    if is_there || !elsewhere().is_ok_and(|others| others.is_empty()) {
        return None;
    }
    let daemon = [Some(status.daemon.pid), status.daemon.holder];
    let daemon: Vec<u32> = daemon.into_iter().flatten().collect();
    Some(users((id, dev), &status.mount, &daemon))
}

/// Returns the processes that use a detached mount, by its id and device.
pub fn users((id, dev): (u64, u64), at: &Path, except: &[u32]) -> MountUsers {
    // Once the mount is gone, the kernel reuses its id, and the users found are those of another
    // mount. That mount may end after the search or begin before it, so the id is checked on both
    // sides.
    let is_free = || sys::mounts_of_all(|mount| mount.id == id).is_ok_and(|all| all.is_empty());
    if !is_free() {
        return MountUsers::default();
    }
    let mut found = VisibleTree::on_detached((id, dev), at).users(except, mount_users::THOROUGH);
    if !is_free() {
        return MountUsers::default();
    }
    // The kernel reports paths from the root of the detached mount.
    for holder in &mut found.holders {
        if let Use::Open(path) | Use::Mapped(path) = &mut holder.by
            && let Ok(inside) = path.strip_prefix("/")
        {
            *path = at.join(inside);
        }
    }
    found
}

/// Returns the message about the users of a detached mount, and a hint.
pub fn explained(status: &Status, found: &MountUsers) -> (String, String) {
    let at = status.mount.display();
    let who = match found.holders.as_slice() {
        [] => "by processes that cannot be seen from here".to_owned(),
        all => mount_users::named(all.iter()),
    };
    (
        format!("{at} was unmounted lazily and is still in use: {who}"),
        format!(
            "stop these processes, or end the daemon (they get errors): ckptfs umount --force {}",
            word(at)
        ),
    )
}
