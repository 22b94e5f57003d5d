//! Starting a daemon where another may still be ending.

use std::path::Path;
use std::time::{Duration, Instant};

use super::super::detached;
use super::super::error::hinted;
use super::super::launch::{self, Ready, Starter};
use super::{Prepared, check_unserved};
use crate::control::{Client, Store};
use crate::engine::api::{Code, GetStatus, VerbError, VerbResult};
use crate::sys;

/// How long a daemon without a mount may take to exit: it closes its store, or was killed and waits for
/// the kernel's writeback.
const LEAVING_MAX: Duration = Duration::from_secs(60);
/// It mostly exits within this time, unless it was unmounted lazily and files are still open.
const LEAVING_USUAL: Duration = Duration::from_secs(2);
const LEAVING_PAUSE: Duration = Duration::from_millis(50);

/// Starts the daemon, which serves when this returns. Waits for an earlier daemon that has no mount any
/// more and still holds the store's lock; `waits` is called before each wait.
///
/// # Errors
/// The daemon's.
pub fn start(prepared: &Prepared, starter: Starter, mut waits: impl FnMut()) -> VerbResult<Ready> {
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
            // Another process may have mounted it in between.
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

/// Whether the daemon that holds a store's lock has no mount any more. Waits a while for its end.
fn is_leaving(backing: &Path) -> bool {
    let client = |store| Client::of(&store).ok();
    let Some(mut client) = Store::of(backing).ok().flatten().and_then(client) else {
        // Its socket is closed.
        std::thread::sleep(LEAVING_PAUSE);
        return true;
    };
    // The kernel lists its mount, if there is one: the daemon need not be asked.
    let is_mounted =
        || !sys::mounts_of_all(|mount| mount.serves(backing)).is_ok_and(|all| all.is_empty());
    if is_mounted() {
        return false;
    }
    client.wait_ended(LEAVING_USUAL) || still_served(backing).is_none_or(|(_, users)| users == 0)
}

/// Why a directory without a visible mount is in use: it was unmounted lazily; and the number of the
/// processes that are seen to use it.
fn still_served(backing: &Path) -> Option<(VerbError, usize)> {
    let store = Store::of(backing).ok()??;
    let status = Client::of(&store).ok()?.ask(GetStatus).ok()?;
    let found = detached::served(&status)?;
    let (message, hint) = detached::explained(&status, &found);
    Some((hinted(Code::InUse, message, hint), found.holders.len()))
}
