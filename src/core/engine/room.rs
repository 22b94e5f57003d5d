//! Free space, the last `gc`, and pushes, as shown by `status` with its warnings.

use std::collections::BTreeMap;

use super::Engine;
use super::error;
use super::requester::Requester;
use super::upkeep::rfc3339;
use crate::engine::verb::Execute;
use crate::history::append::now_ns;
use crate::history::timeline::Timeline;
use ckptfs_api::display::{bytes, word};
use ckptfs_api::{BEGINS_HERE, NotePush, PUSHED_TO, PushInfo, UpkeepInfo, VerbResult};
use ckptfs_store::operation::OperationEffect;
use ckptfs_sys::{self as sys, FsInfo};

/// Time for which `status` warns of a change that failed with ENOSPC.
const REFUSED_S: i64 = 3600;
/// Number of operations searched for a push.
const LOOKED_AT: usize = 500;

impl Execute for NotePush {
    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<()> {
        let known = known(engine)?;
        let mut done = engine.serving.upkeep.done.lock();
        let pushes = done.pushes.get_or_insert(known);
        let push = pushes.entry(self.remote).or_default();
        match self.error {
            Some(error) => (push.failed, push.error) = (push.failed + 1, Some(error)),
            None => (push.last, push.error) = (Some(rfc3339(now_ns())), None),
        }
        Ok(())
    }
}

/// Returns the known pushes, by default those among the operations.
fn known(engine: &Engine) -> VerbResult<BTreeMap<String, PushInfo>> {
    let known = engine.serving.upkeep.done.lock().pushes.clone();
    // Without a lock, because the journal is read.
    known.map_or_else(|| pushes(engine.timeline()), Ok)
}

fn pushes(timeline: &Timeline) -> VerbResult<BTreeMap<String, PushInfo>> {
    let operations = timeline.operations.operations(None, LOOKED_AT);
    let mut pushes: BTreeMap<String, PushInfo> = BTreeMap::new();
    for known in operations.map_err(error::journal_unread)? {
        if let OperationEffect::Pinned {
            after: Some(reason),
            ..
        } = &known.operation.deed
            && let Some(remote) = reason.strip_prefix(PUSHED_TO)
            && let Some(remote) = remote.strip_suffix(BEGINS_HERE)
        {
            let push = pushes.entry(remote.to_owned()).or_default();
            push.last
                .get_or_insert_with(|| rfc3339(known.operation.at_ns));
        }
    }
    Ok(pushes)
}

/// Returns size and free space of a filesystem in bytes.
fn room(info: &FsInfo) -> (u64, u64) {
    let unit = u64::from(info.frsize);
    (
        info.blocks.saturating_mul(unit),
        info.bavail.saturating_mul(unit),
    )
}

pub(super) fn info(engine: &Engine) -> VerbResult<UpkeepInfo> {
    let (size_bytes, free_bytes) =
        sys::statfs_fd(&engine.serving.store_dir).map_or((0, 0), |info| room(&info));
    let pushes = known(engine)?;
    let newest = engine
        .timeline()
        .catalogue
        .newest(1, |kept| !kept.reason.is_guard_or_mark());
    let mut done = engine.serving.upkeep.done.lock();
    let pushes = done.pushes.get_or_insert(pushes).clone();
    Ok(UpkeepInfo {
        size_bytes,
        free_bytes,
        newest: newest.first().map(|kept| rfc3339(kept.created_ns)),
        history: done.measured.clone(),
        gc: done.gc.clone(),
        pushes,
    })
}

/// Returns the warnings about free space and pushes.
pub(super) fn warnings(engine: &Engine) -> Vec<String> {
    let mut warnings = Vec::new();
    let backing = engine.serving.config.backing.display();
    let next = format!(
        "`ckptfs -C {} du` shows what the history takes, `gc` deletes by rules",
        word(&backing)
    );
    let info = sys::statfs_fd(&engine.serving.store_dir);
    let (size, free) = info.map_or((0, 0), |info| room(&info));
    let marks = match engine.serving.config.auto.tripwire {
        Some(_) => {
            "; so that removing files frees space, no checkpoint is made before (--tripwire)"
        }
        None => "",
    };
    if size > 0 && free == 0 {
        warnings.push(format!(
            "the filesystem of {backing} is full: changes of files and names fail (ENOSPC){marks}; {next}"
        ));
    } else if engine.timeline().store().reserve.is_short() {
        warnings.push(format!(
            "only {} of {} are free on the filesystem of {backing}: when it is full, changes of files and names fail{marks}; {next}",
            bytes(free),
            bytes(size)
        ));
    }
    let refused_s = engine.timeline().store().reserve.refused_s();
    if let Some(ago) = refused_s.map(|at| now_ns() / 1_000_000_000 - at)
        && (0..REFUSED_S).contains(&ago)
    {
        warnings.push(format!(
            "the filesystem was full {} min ago: a change failed, because the old version could not be kept; {next}",
            ago / 60
        ));
    }
    let done = engine.serving.upkeep.done.lock();
    for (remote, push) in done.pushes.iter().flatten() {
        if let Some(error) = &push.error {
            warnings.push(format!(
                "the last push to {remote} failed: {error}; to try again: ckptfs push {}",
                word(remote)
            ));
        }
    }
    warnings
}
