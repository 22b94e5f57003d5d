//! Checkpoints protected for a time regardless of the rules: those needed to undo recent
//! operations.

use std::collections::HashSet;
use std::time::Duration;

use super::super::bases::{HeldBases, empty_trash};
use super::super::error;
use super::GarbageCollector;
use crate::history::operations::OperationStatus;
use ckptfs_api::{CheckpointId, VerbResult};
use ckptfs_store::operation::OperationEffect;
use ckptfs_store::record::CheckpointState;

/// Default of `retention.keep-undone`: time for which the needs of `undo` and `redo` are protected.
const UNDONE_KEPT: Duration = Duration::from_secs(24 * 3600);
/// Default of `tripwire.keep`: time for which a mark is protected.
const MARK_KEPT: Duration = Duration::from_secs(3600);
/// A younger hidden mark may still be confirmed.
const UNDECIDED: Duration = Duration::from_secs(60);
/// The guards of this number of newest operations are protected regardless of age.
const GUARDS_KEPT: usize = 10;

/// Number of operations read at a time.
const READ_AT_ONCE: usize = 256;

/// The protected checkpoints.
pub(super) struct ProtectedCheckpoints {
    guards: HashSet<CheckpointId>,
    hidden: HashSet<CheckpointId>,
    marks_since_ns: i64,
    /// Hidden marks made after this time may be undecided.
    undecided_since_ns: i64,
    pub(super) bases: HeldBases,
}

impl ProtectedCheckpoints {
    pub(super) fn needs(&self, kept: &CheckpointState) -> bool {
        match &kept.reason {
            _ if kept.hidden => self.is_undecided(kept) || self.hidden.contains(&kept.id),
            reason if reason.is_mark() => kept.created_ns >= self.marks_since_ns,
            _ => self.guards.contains(&kept.id),
        }
    }

    /// Returns whether it is a hidden mark that may still be confirmed.
    pub(super) fn is_undecided(&self, kept: &CheckpointState) -> bool {
        kept.hidden && kept.reason.is_mark() && kept.created_ns >= self.undecided_since_ns
    }
}

impl GarbageCollector {
    /// Returns the current bases of branches from the registry.
    pub(super) fn bases(&self) -> VerbResult<HeldBases> {
        HeldBases::of(&self.live)
    }

    /// Removes dropped branches: all, or in an automatic run those past `retention.keep-undone`.
    pub(super) fn empty_trash(&self, automatic: bool) -> VerbResult<()> {
        let settings = self.serving.settings();
        let span = settings
            .span("retention.keep-undone")
            .unwrap_or(UNDONE_KEPT);
        let kept_ns = i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
        let before_ns = if automatic {
            crate::history::append::now_ns().saturating_sub(kept_ns)
        } else {
            i64::MAX
        };
        empty_trash(self.timeline().store().layout.branches(), before_ns)
    }

    /// Returns the protected checkpoints. `automatic`: recently deleted or undone ones are
    /// included, because the user did not request the run.
    pub(super) fn held(&self, automatic: bool) -> VerbResult<ProtectedCheckpoints> {
        let (settings, now_ns) = (self.serving.settings(), crate::history::append::now_ns());
        let ago = |span: Duration| {
            now_ns.saturating_sub(i64::try_from(span.as_nanos()).unwrap_or(i64::MAX))
        };
        let since = |key: &str, otherwise| ago(settings.span(key).unwrap_or(otherwise));
        let tripwire = self.serving.config.auto.tripwire;
        let undecided = tripwire.map_or(UNDECIDED, |tripwire| {
            tripwire.within.saturating_mul(2).max(UNDECIDED)
        });
        let since_ns = since("retention.keep-undone", UNDONE_KEPT);
        let mut held = ProtectedCheckpoints {
            guards: HashSet::new(),
            hidden: HashSet::new(),
            marks_since_ns: since("tripwire.keep", MARK_KEPT),
            undecided_since_ns: ago(undecided),
            bases: self.bases()?,
        };
        let (mut before, mut seen) = (None, 0);
        loop {
            let told = self.timeline().operations.operations(before, READ_AT_ONCE);
            let told = told.map_err(error::journal_unread)?;
            for OperationStatus { operation, .. } in &told {
                seen += 1;
                let young = operation.at_ns >= since_ns;
                match &operation.deed {
                    _ if !young && seen > GUARDS_KEPT => return Ok(held),
                    OperationEffect::Restored { guard, .. } => drop(held.guards.insert(*guard)),
                    OperationEffect::Deleted { id, .. } if young && automatic => {
                        held.hidden.insert(*id);
                    }
                    _ => {}
                }
            }
            match told.last() {
                Some(last) => before = Some(last.operation.number),
                None => return Ok(held),
            }
        }
    }
}
