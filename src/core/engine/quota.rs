//! Limits of number and rate of checkpoints made by mkdir(2) in `.snapshots`. Every user with write
//! access to the root directory can make one, also from a container, and each costs memory, a
//! freeze, and captures of later changes.
//!
//! Callers that could request them by a verb are exempt: the daemon's own user in its user
//! namespace, with CAP_SYS_ADMIN if the daemon has that. Root in an unprivileged container is
//! limited. Deleted checkpoints can be restored and count separately: beyond the limit the oldest
//! is freed.

use std::collections::HashMap;
use std::time::Instant;

use super::gc::GarbageCollector;
use super::request::Caller;
use super::settings::Settings;
use ckptfs_api::CheckpointId;
use ckptfs_store::record::CheckpointState;
use ckptfs_sys::{self as sys, Errno, SysResult};

/// Default of `snapdir.per-user`: checkpoints of one user made by mkdir(2).
pub const PER_USER_MAX: u64 = 4096;
/// Default of `snapdir.per-minute`: checkpoints of one user per minute, in a burst or spread.
pub const PER_MINUTE_MAX: u64 = 60;
/// Factor for all users together: a user with a user namespace has many uids.
const USERS: u64 = 4;

/// The configured or default limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    per_user: u64,
    per_minute: u64,
}

impl Limits {
    pub(super) fn of(settings: &Settings) -> Limits {
        Limits {
            per_user: settings.number("snapdir.per-user").unwrap_or(PER_USER_MAX),
            per_minute: settings
                .number("snapdir.per-minute")
                .unwrap_or(PER_MINUTE_MAX),
        }
    }
}

/// Token buckets per user, and one for all (`None`).
#[derive(Default)]
pub(super) struct TokenBuckets(HashMap<Option<u32>, TokenBucket>);

/// State of a bucket at its last use.
#[derive(Clone, Copy)]
struct TokenBucket {
    count: f64,
    at: Instant,
}

impl TokenBuckets {
    /// Takes a token of the user and one of the common bucket. Returns `false` if one is empty.
    fn take(&mut self, uid: u32, per_minute: u64, now: Instant) -> bool {
        let users = &mut self.0;
        let whole = |user: Option<u32>| if user.is_some() { per_minute } else { per_minute.saturating_mul(USERS) } as f64;
        let left = |user: Option<u32>, known: Option<&TokenBucket>| {
            let grown = |left: &TokenBucket| {
                left.count
                    + whole(user) * now.saturating_duration_since(left.at).as_secs_f64() / 60.0
            };
            known.map_or(whole(user), grown).min(whole(user))
        };
        // A full bucket equals a missing one.
        users.retain(|user, known| left(*user, Some(known)) < whole(*user));
        let asked = [Some(uid), None].map(|user| (user, left(user, users.get(&user))));
        let there = asked.iter().all(|(_, count)| *count >= 1.0);
        for (user, count) in asked.into_iter().filter(|_| there) {
            users.insert(
                user,
                TokenBucket {
                    count: count - 1.0,
                    at: now,
                },
            );
        }
        there
    }
}

impl GarbageCollector {
    /// Checks the limits for another checkpoint by mkdir(2).
    ///
    /// # Errors
    /// EDQUOT: too many exist. EAGAIN: too many were made recently.
    pub(super) fn check_quota(&self, caller: Caller, pace: &mut TokenBuckets) -> SysResult<()> {
        if caller.uid == sys::ids().0 && sys::has_our_rights(caller.pid) {
            return Ok(());
        }
        let limits = Limits::of(&self.serving.settings());
        if !pace.take(caller.uid, limits.per_minute, Instant::now()) {
            return Err(Errno::EAGAIN);
        }
        let all = usize::try_from(limits.per_user.saturating_mul(USERS)).unwrap_or(usize::MAX);
        let per_user = usize::try_from(limits.per_user).unwrap_or(usize::MAX);
        let made = self.timeline().catalogue.made_by_mkdir(caller.uid);
        if made.theirs >= per_user || made.all >= all {
            tracing::warn!(
                uid = caller.uid,
                theirs = made.theirs,
                all = made.all,
                "mkdir(2) may make no more checkpoints: see snapdir.per-user"
            );
            return Err(Errno::EDQUOT);
        }
        if made.hidden_theirs >= per_user || made.hidden >= all {
            // The user's own first: deletions of one user do not free checkpoints of others.
            made.oldest_hidden_theirs
                .or(made.oldest_hidden)
                .into_iter()
                .for_each(|id| self.free_hidden(caller, id));
        }
        Ok(())
    }

    /// Best effort: repeated at the next request.
    fn free_hidden(&self, caller: Caller, id: CheckpointId) {
        let _one_at_a_time = self.checkpoints.checkpointing.lock();
        let Some(kept) = self
            .timeline()
            .catalogue
            .hidden_checkpoint(id)
            .filter(|kept: &CheckpointState| kept.pinned.is_none())
        else {
            return;
        };
        let freed = self.timeline().unneeded_without(id).and_then(|unneeded| {
            self.timeline().operations.free(&caller.actor(), id)?;
            self.checkpoints.remove_unneeded(&kept, &unneeded);
            Ok(())
        });
        if let Err(errno) = freed {
            tracing::warn!(%errno, %id, "a checkpoint that was deleted cannot be freed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_minute_s_worth_at_once_and_then_at_that_pace() {
        let (mut pace, began) = (TokenBuckets::default(), Instant::now());
        let mut taken = |uid: u32, after_s: u64| {
            (0..1000)
                .take_while(|_| pace.take(uid, 60, began + Duration::from_secs(after_s)))
                .count()
        };
        assert_eq!((taken(1, 0), taken(1, 0), taken(2, 0)), (60, 0, 60));
        assert_eq!((taken(1, 1), taken(1, 1), taken(1, 31)), (1, 0, 30));
        // The common bucket, for any number of users.
        assert_eq!(
            (taken(3, 31), taken(4, 31), taken(5, 31), taken(6, 31)),
            (60, 60, 60, 30)
        );
        assert_eq!((7..100).map(|uid| taken(uid, 31)).sum::<usize>(), 0);
        assert_eq!(taken(7, 100_000), 60);
        assert!(pace.0.len() <= 2, "who waited long enough is forgotten");
        assert!(!pace.take(7, 0, began + Duration::from_secs(200_000)));
    }
}
