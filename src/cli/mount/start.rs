//! Startup of a daemon while an earlier one may still be terminating.

use std::path::Path;
use std::time::{Duration, Instant};

use super::super::detached;
use super::super::launch::{self, DaemonParent, DaemonReady};
use super::{PreparedMount, check_unserved};
use ckptfs_api::{Client, Code, GetStatus, StoreDir, VerbError, VerbResult};
use ckptfs_sys as sys;
use ckptfs_ui::error::hinted;

/// Limit of the wait for the exit of an unmounted daemon: it closes its store, or was killed and
/// waits for the kernel's writeback.
const LEAVING_MAX: Duration = Duration::from_secs(60);
/// Usual limit of that exit; it is exceeded after a lazy unmount while files are open.
const LEAVING_USUAL: Duration = Duration::from_secs(2);
const LEAVING_PAUSE: Duration = Duration::from_millis(50);

/// Starts the daemon, which serves on return. Waits for an earlier daemon that is unmounted but
/// still holds the store's lock; `waits` is called before each wait.
///
/// # Errors
/// Those of the daemon.
pub fn start(
    prepared: &PreparedMount,
    starter: DaemonParent,
    mut waits: impl FnMut(),
) -> VerbResult<DaemonReady> {
    let (began, daemon) = (Instant::now(), &prepared.daemon);
    let mut is_leaving = || {
        waits();
        began.elapsed() < LEAVING_MAX && is_leaving(&daemon.backing)
    };
    loop {
        match launch::launch(
            daemon.arguments(),
            prepared.origin.password.as_deref(),
            starter,
        ) {
            Err(error) if error.code == Code::InUse && is_leaving() => {}
            // Another process may have mounted the directory since.
            Err(error) => {
                return check_unserved(&daemon.backing, &mut 0)
                    .and(Err(
                        still_served(&daemon.backing).map_or(error, |(error, _)| error)
                    ));
            }
            ready => return ready,
        }
    }
}

/// Returns whether the daemon that holds a store's lock is about to exit: it is unmounted, and has
/// ended within [`LEAVING_USUAL`] or has no visible users.
fn is_leaving(backing: &Path) -> bool {
    let client = |store| Client::of(&store).ok();
    let Some(mut client) = StoreDir::of(backing).ok().flatten().and_then(client) else {
        // Its socket is closed.
        std::thread::sleep(LEAVING_PAUSE);
        return true;
    };
    // The kernel's mount table lists its mount, without a request to the daemon.
    let is_mounted =
        || !sys::mounts_of_all(|mount| mount.serves(backing)).is_ok_and(|all| all.is_empty());
    if is_mounted() {
        return false;
    }
    client.wait_ended(LEAVING_USUAL) || still_served(backing).is_none_or(|(_, users)| users == 0)
}

/// Returns the error for a directory that is in use without a visible mount, because of a lazy
/// unmount, and the number of its visible users.
fn still_served(backing: &Path) -> Option<(VerbError, usize)> {
    let store = StoreDir::of(backing).ok()??;
    let status = Client::of(&store).ok()?.ask(GetStatus).ok()?;
    let found = detached::served(&status)?;
    let (message, hint) = detached::explained(&status, &found);
    Some((hinted(Code::InUse, message, hint), found.holders.len()))
}
