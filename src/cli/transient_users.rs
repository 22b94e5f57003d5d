//! Brief users of a mount. A process between fork(2) and exec(2) has copies of its parent's open
//! files, and a reader of `/proc/PID/maps` keeps the mappings of PID alive.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::mount_users::MountUser;
use ckptfs_api::{Code, VerbResult};

/// A process that uses the mount for this long is not brief.
const BRIEF: Duration = Duration::from_secs(1);
/// Limit of the whole wait, because new brief users may keep appearing.
const LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// Calls `attempt` again when it fails with `busy` and the users of the mount have since ended.
/// `users` returns the processes that use the mount; `None` disables the wait.
///
/// # Errors
/// Those of `attempt`.
pub fn outlast<T>(
    busy: Code,
    users: impl Fn() -> Option<Vec<MountUser>>,
    mut attempt: impl FnMut() -> VerbResult<T>,
) -> VerbResult<T> {
    let began = Instant::now();
    loop {
        match attempt() {
            Err(error) if error.code == busy && are_gone(&users, began) => {
                std::thread::sleep(PAUSE);
            }
            done => return done,
        }
    }
}

/// Waits for the users; returns whether all have ended.
fn are_gone(users: impl Fn() -> Option<Vec<MountUser>>, began: Instant) -> bool {
    let mut since: HashMap<u32, Instant> = HashMap::new();
    while began.elapsed() < LIMIT {
        let Some(there) = users() else { return false };
        let now = Instant::now();
        since = there
            .iter()
            .map(|user| (user.pid, since.get(&user.pid).copied().unwrap_or(now)))
            .collect();
        if since.is_empty() {
            return true;
        }
        if since
            .values()
            .any(|since| now.duration_since(*since) >= BRIEF)
        {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
    false
}
