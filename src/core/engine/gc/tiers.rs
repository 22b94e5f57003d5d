//! Tiers ([`Tier`]): drops content of some paths that checkpoints still show, which then report it
//! as dropped.
//!
//! A version is dropped if three conditions hold. The first checkpoint without it is older than the
//! retention time of the tier, so the file was changed or removed before. At every checkpoint that
//! shows it, it has a single name, which matches a tier whose time has passed. None of these
//! checkpoints is pinned or a base. Hidden checkpoints that the same run frees are ignored.

use std::collections::HashMap;

use jiff::tz::TimeZone;

use super::super::error;
use super::super::retention::RuleContext;
use super::super::retention::{RuleSubject, order, rules};
use super::super::space::SpaceUsage;
use super::super::tiers::TierPatterns;
use super::protected::ProtectedCheckpoints;
use crate::engine::gc::GarbageCollector;
use crate::history::append::now_ns;
use crate::history::version_census::{Captured, Census};
use ckptfs_api::{CheckpointId, Epoch, GcOptions, GcTier, Tier, VerbResult};
use ckptfs_store::ids::{ObjectId, ObjectOrigin, Slot};
use ckptfs_store::record::{CheckpointState, Dropped};
use ckptfs_sys::{self as sys, Errno, Kind, SysResult};

/// Limit of tiers in a run.
const TIERS_MAX: usize = 256;

/// Effect of the tiers on a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TierOutcome {
    /// Dropped by the tier of this number.
    Goes(usize),
    /// Dropped by an earlier run, but not removed yet.
    Left,
    /// Would be dropped by that tier, but has other names, which are unknown.
    Linked(usize),
    /// No tier applies.
    Stays,
}

/// Versions being matched with the tiers.
pub(in crate::engine) struct TierMatching {
    pub(super) census: Census,
    pub(super) measured: Vec<usize>,
    pub(super) space: SpaceUsage,
    pub(super) checkpoints: Vec<CheckpointState>,
    /// Of each measured version.
    pub(super) fates: Vec<TierOutcome>,
    matchers: Vec<(TierPatterns, i64)>,
    /// Checkpoints of the census that this run does not free in any case.
    stays: Vec<bool>,
    /// Those that are pinned, or held by a branch.
    pinned: Vec<bool>,
}

impl TierMatching {
    pub(super) fn new(
        (census, measured, space): (Census, Vec<usize>, SpaceUsage),
        checkpoints: Vec<CheckpointState>,
        options: &GcOptions,
        held: &ProtectedCheckpoints,
    ) -> VerbResult<TierMatching> {
        let (retention, now_ns) = (&options.retention, now_ns());
        let wrong = |why: String| error::error(error::Code::BadValue, format!("tiers: {why}"));
        if retention.tiers.len() > TIERS_MAX {
            return Err(wrong(format!("there are more than {TIERS_MAX}")));
        }
        let ready = |tier: &Tier| {
            let keep_ns = i64::try_from(tier.keep_ms)
                .unwrap_or(i64::MAX)
                .saturating_mul(1_000_000);
            TierPatterns::new(&tier.paths)
                .map(|matcher| (matcher, now_ns.saturating_sub(keep_ns)))
                .map_err(wrong)
        };
        let matchers = retention
            .tiers
            .iter()
            .map(ready)
            .collect::<VerbResult<Vec<_>>>()?;
        let of = super::plan::known(&census, &checkpoints, held, &retention.keep_ids);
        let known: Vec<RuleSubject> = of.iter().map(|(_, known)| *known).collect();
        let (order, sure) = order(
            &known,
            &rules(
                &known,
                RuleContext::of(options, now_ns),
                &TimeZone::system(),
            ),
        );
        let mut stays = vec![true; census.kept.len()];
        order.iter().take(sure).for_each(|at| {
            if let Some(stays) = stays.get_mut(*at) {
                *stays = false;
            }
        });
        let pinned = known.iter().map(|one| one.pinned || one.base).collect();
        Ok(TierMatching {
            census,
            measured,
            space,
            checkpoints,
            fates: Vec::new(),
            matchers,
            stays,
            pinned,
        })
    }

    pub(super) fn progress(&self) -> (u64, u64) {
        (self.fates.len() as u64, self.measured.len() as u64)
    }
}

impl GarbageCollector {
    /// Matches the next version; `false` at the end.
    pub(super) fn match_next(&self, matching: &mut TierMatching) -> SysResult<bool> {
        let Some(at) = matching.measured.get(matching.fates.len()) else {
            return Ok(false);
        };
        let fate = match matching.census.versions.get(*at) {
            Some(version) => self.fate(matching, version)?,
            None => TierOutcome::Stays,
        };
        matching.fates.push(fate);
        Ok(true)
    }

    fn fate(&self, matching: &TierMatching, version: &Captured) -> SysResult<TierOutcome> {
        let by = version.by.clone();
        if version.open || by.is_empty() {
            return Ok(TierOutcome::Stays);
        }
        if self.timeline().dropped.is_dropped(version.object)? {
            let there = self
                .timeline()
                .store()
                .layers
                .stat(version.object)
                .map_err(|error| error.errno())?;
            return Ok(if there.is_some_and(|stat| stat.size > 0) {
                TierOutcome::Left
            } else {
                TierOutcome::Stays
            });
        }
        // The change precedes the first checkpoint without the version.
        let Some(changed_ns) = matching.census.made_ns.get(by.end).copied() else {
            return Ok(TierOutcome::Stays);
        };
        let all_young = matching
            .matchers
            .iter()
            .all(|(_, old_ns)| changed_ns > *old_ns);
        let pinned = matching
            .pinned
            .get(by.clone())
            .is_none_or(|pinned| pinned.contains(&true));
        if all_young || pinned {
            return Ok(TierOutcome::Stays);
        }
        let (mut at, mut fate) = (by.start, TierOutcome::Stays);
        while at < by.end {
            let (Some(id), Some(stays)) = (matching.census.kept.get(at), matching.stays.get(at))
            else {
                break;
            };
            if !stays {
                at += 1;
                continue;
            }
            let until = match self.fate_at(matching, version.slot, *id, changed_ns) {
                Ok((TierOutcome::Goes(tier), until)) => {
                    fate = TierOutcome::Goes(tier);
                    until
                }
                Ok((other, _)) => return Ok(other),
                // A client deleted the checkpoint since the run began: left to the next run.
                Err(Errno::ESTALE) => return Ok(TierOutcome::Stays),
                Err(errno) => return Err(errno),
            };
            let kept = &matching.census.kept;
            at = kept.partition_point(|id| id.epoch() < until).max(at + 1);
        }
        Ok(fate)
    }

    /// Returns the effect of the tier that a file belongs to at a checkpoint, and the epoch up to
    /// which that state lasts.
    fn fate_at(
        &self,
        matching: &TierMatching,
        slot: Slot,
        id: CheckpointId,
        changed_ns: i64,
    ) -> SysResult<(TierOutcome, Epoch)> {
        let lookup = &self.timeline().lookup;
        let stays = Ok((TierOutcome::Stays, Epoch(0)));
        let Some(path) = lookup.path_at(slot, id)? else {
            return stays;
        };
        let Some(attr) = lookup.attr_at(slot, id)? else {
            return stays;
        };
        let stat = &attr.before.stat;
        if stat.kind != Kind::File || stat.size == 0 {
            return stays;
        }
        let mut tiers = matching.matchers.iter().enumerate();
        let tier = tiers.find(|(_, (matcher, _))| matcher.unit(&path.path).is_some());
        let fate = match tier.filter(|(_, (_, old_ns))| changed_ns <= *old_ns) {
            None => TierOutcome::Stays,
            Some((tier, _)) if stat.nlink > 1 => TierOutcome::Linked(tier),
            Some((tier, _)) => TierOutcome::Goes(tier),
        };
        Ok((fate, path.until.min(attr.epoch)))
    }

    /// Records the drop of versions, except those pinned since the plan; returns the versions
    /// recorded.
    pub(super) fn drop_planned(
        &self,
        tier: &GcTier,
        versions: Vec<Captured>,
        plan_kept: &[ckptfs_api::CheckpointId],
    ) -> VerbResult<Vec<Captured>> {
        // Excludes restores, and pins until the records are written.
        let _one_at_a_time = self.checkpoints.checkpointing.lock();
        let bases = self.bases()?;
        let pinned = |id| {
            bases.has(id)
                || self
                    .timeline()
                    .catalogue
                    .checkpoint(id)
                    .or_else(|| self.timeline().catalogue.hidden_checkpoint(id))
                    .is_some_and(|kept| kept.pinned.is_some())
        };
        let mut known = HashMap::new();
        let mut dropped = Vec::new();
        let mut going = Vec::new();
        for version in versions {
            let shown = plan_kept.get(version.by.clone()).unwrap_or_default();
            let (Some(first), Some(last)) = (shown.first(), shown.last()) else {
                continue;
            };
            if shown
                .iter()
                .any(|id| *known.entry(*id).or_insert_with(|| pinned(*id)))
            {
                continue;
            }
            let size = match self.timeline().lookup.data_at(version.slot, *last) {
                Ok(data) => data.map_or(0, |data| data.before.size),
                // As in `fate`.
                Err(Errno::ESTALE) => continue,
                Err(errno) => return Err(error::version_unread(errno)),
            };
            dropped.push(Dropped {
                object: version.object,
                size,
                first: *first,
                last: *last,
            });
            going.push(version);
        }
        self.timeline()
            .dropped
            .add(&tier.paths, dropped)
            .map_err(error::failed("nothing was dropped"))?;
        Ok(going)
    }

    /// Removes the content of a version recorded as dropped. A moved inode is truncated but not
    /// removed, so that its number, by which checkpoints identify it, is not reused. If it is open,
    /// the next run frees it.
    pub(super) fn remove_content(&self, object: ObjectId) {
        if object.origin == ObjectOrigin::Cloned {
            return self.remove_version(object);
        }
        match self.empty_object(object) {
            Ok(true) | Err(Errno::ENOENT) => {}
            Ok(false) => {
                tracing::info!(?object, "a dropped version is open; the next run frees it")
            }
            Err(errno) => {
                tracing::warn!(%errno, ?object, "a dropped version was not freed; the next run tries again")
            }
        }
    }

    fn empty_object(&self, object: ObjectId) -> SysResult<bool> {
        let (dir, name) = self
            .timeline()
            .store()
            .layers
            .location(object)
            .map_err(|error| error.errno())?;
        if sys::stat_at(&*dir, name.as_bytes())?.kind != Kind::File {
            return Err(Errno::EINVAL);
        }
        let file = match sys::open_file_at(&*dir, name.as_bytes(), sys::Access::READ_WRITE) {
            Err(Errno::EACCES) => {
                // Its mode is recorded.
                sys::chmod_fd(sys::open_path_at(&*dir, name.as_bytes())?, 0o600)?;
                sys::open_file_at(&*dir, name.as_bytes(), sys::Access::READ_WRITE)?
            }
            file => file?,
        };
        sys::truncate_unshared(&file)
    }
}
