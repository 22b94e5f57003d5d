//! `verify`: the check of a store (`store::check`), while the tree is served and
//! offline.
//!
//! A served tree is verified in slices: the client repeats the request for the next part. No thread
//! of the daemon is blocked, the client can show progress, and it cancels by not asking again. An
//! apparent damage is checked again before it is reported, because captures are voided and
//! checkpoints deleted concurrently.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::compare::StateComparer;
use super::error;
use super::runs::{PART_TIME, SlicedRuns};
use crate::live::Live;
use ckptfs_api::{
    CheckpointId, Damage, DamageKind, StateName, TreePath, VerbError, VerbResult, Verified,
    VerifyOptions,
};
use ckptfs_store::baseline::Baseline;
use ckptfs_store::check::{Check, Finding, Version};
use ckptfs_store::ids::{Address, ObjectOrigin};
use ckptfs_store::index::{Index, RebuildReason};
use ckptfs_store::journal::Journal;
use ckptfs_store::layers::Layers;
use ckptfs_store::layout::{Layout, has_origin};
use ckptfs_store::record::ObjectHash;
use ckptfs_store::{Store, StoreError, check_end, may_lack_index};

/// Limit of findings per part.
const PART_FINDINGS_MAX: usize = 1000;
/// Time from the record of a move to the move.
const MOVE_TIME: Duration = Duration::from_millis(20);

fn unreadable(cause: &StoreError) -> VerbError {
    error::failed("the store cannot be checked")(cause.errno())
}

fn torn(end: Address) -> Finding {
    Finding::of_store(
        DamageKind::JournalTorn,
        format!("journal/{:08}", end.segment),
        format!("something follows the last whole frame, which ends at {end}"),
    )
}

/// Returns the repair of `verify --repair` for a kind of damage.
fn repair_of(finding: &Finding) -> Option<&'static str> {
    match finding.kind {
        DamageKind::IndexMissing => Some("make the index from the journal"),
        DamageKind::IndexUnreadable | DamageKind::IndexWrong => {
            Some("set the index aside and make it from the journal")
        }
        DamageKind::BaselineDamaged => Some("remove it: the next mount makes a new one"),
        DamageKind::JournalTorn => {
            Some("save the torn end beside the journal and cut it off, as a mount does")
        }
        DamageKind::ObjectChanged | DamageKind::ObjectSize => Some(
            "set the object aside, so that reading this version fails instead of giving wrong bytes",
        ),
        // A moved inode is the only copy of its content.
        DamageKind::ObjectUnneeded
            if finding
                .object
                .is_some_and(|object| object.origin == ObjectOrigin::Cloned) =>
        {
            Some("set the object aside")
        }
        DamageKind::ObjectUnneeded
        | DamageKind::FormatUnreadable
        | DamageKind::JournalDamaged
        | DamageKind::ObjectMissing
        | DamageKind::ObjectUnreadable
        | DamageKind::CheckpointIncomplete
        | DamageKind::ChangedUnseen
        | DamageKind::ForeignFile => None,
    }
}

fn damage(finding: &Finding) -> Damage {
    Damage {
        kind: finding.kind,
        on: finding.on.clone(),
        path: finding.path.clone().map(TreePath),
        checkpoints: finding.checkpoints.clone(),
        detail: finding.detail.clone(),
        repair: repair_of(finding).map(str::to_owned),
    }
}

/// Returns the findings since the last call.
fn tell(run: u64, check: &mut Check) -> Verified {
    let rest = check
        .findings
        .split_off(check.findings.len().min(PART_FINDINGS_MAX));
    let told = std::mem::replace(&mut check.findings, rest);
    Verified {
        run,
        finished: check.is_finished() && check.findings.is_empty(),
        done: check.done,
        total: check.total(),
        frames: check.totals.frames,
        versions: check.totals.versions,
        bytes: check.totals.bytes,
        unhashed: check.totals.unhashed,
        findings: told.iter().map(damage).collect(),
        accepted: Vec::new(),
        elsewhere: None,
    }
}

/// Verifies the history of a served tree.
pub(super) struct Verifier {
    pub(super) live: Arc<Live>,
    states: Arc<StateComparer>,
    checks: SlicedRuns<Check>,
}

impl Verifier {
    pub(super) fn new(live: Arc<Live>, states: Arc<StateComparer>) -> Verifier {
        Verifier {
            live,
            states,
            checks: SlicedRuns::default(),
        }
    }

    pub(super) fn verify_for_a_while(&self, options: &VerifyOptions) -> VerbResult<Verified> {
        let store = self.timeline().store();
        let mut check = self.checks.resume(options.run, || {
            let of = options
                .state
                .as_ref()
                .map(|state| self.states.checkpoint_id(state))
                .transpose()?;
            let mut check = Check::begin(&store.journal, of, options.deep)
                .map_err(|cause| unreadable(&cause))?;
            check.compare_index(&store.index, &store.journal);
            check.read_baseline(&store.layout);
            self.look_behind(of, options.deep, &mut check)?;
            Ok(check)
        })?;
        let started = Instant::now();
        while started.elapsed() < PART_TIME && check.findings.len() < PART_FINDINGS_MAX {
            let known = check.findings.len();
            let Some(version) = check.step(&store.layers).cloned() else {
                break;
            };
            if check.findings.len() > known
                && !self.is_still_wrong(&version, check.findings.last_mut())
            {
                check.findings.truncate(known);
            }
        }
        check.totals.unhashed -= self.record(std::mem::take(&mut check.hashed));
        let told = tell(0, &mut check);
        let run = if told.finished {
            options.run.unwrap_or(0)
        } else {
            self.checks.put(options.run, check)
        };
        let accepted = match told.finished {
            true => self.accepted(options)?,
            false => Vec::new(),
        };
        Ok(Verified {
            run,
            accepted,
            ..told
        })
    }

    /// Returns the files accepted by size and mtime, if this verification looks for them.
    fn accepted(&self, options: &VerifyOptions) -> VerbResult<Vec<TreePath>> {
        let id = match &options.state {
            Some(state) => Some(self.states.checkpoint_id(state)?),
            None if options.deep => self.timeline().catalogue.last(),
            None => None,
        };
        let accepted = id.map(|id| self.timeline().losses.accepted(id));
        let accepted = accepted.unwrap_or_default().into_iter();
        Ok(accepted.map(TreePath).collect())
    }

    /// Records hashes of versions without one, so that later damage is detected; returns their
    /// number. The open epoch is left to the sealer, because its captures can still be voided.
    fn record(&self, mut hashed: Vec<ObjectHash>) -> u64 {
        let open = self.timeline().epochs.epoch();
        hashed.retain(|hashed| hashed.object.epoch < open);
        hashed.sort_by_key(|hashed| hashed.object.epoch);
        let mut recorded = 0;
        for of_epoch in hashed.chunk_by(|a, b| a.object.epoch == b.object.epoch) {
            let Some(epoch) = of_epoch.first().map(|hashed| hashed.object.epoch) else {
                continue;
            };
            let added = self.timeline().contents.add_hashes(epoch, of_epoch, false);
            match added {
                Ok(()) => recorded += of_epoch.len() as u64,
                Err(errno) => tracing::warn!(%errno, "hashes are not recorded"),
            }
        }
        recorded
    }

    /// Adds files that checkpoints cannot show because they were changed directly in the backing
    /// directory. Unless `deep` or a checkpoint is given, only offline changes and those found
    /// without a walk.
    fn look_behind(
        &self,
        of: Option<CheckpointId>,
        deep: bool,
        check: &mut Check,
    ) -> VerbResult<()> {
        let retained = self.timeline().catalogue.retained();
        // The oldest checkpoint misses every file that any misses; a walk against the newest finds
        // most.
        let Some(id) = of.or(if deep {
            self.timeline().catalogue.last()
        } else {
            retained.first().map(|(id, _)| *id)
        }) else {
            return Ok(());
        };
        let failed = error::failed("the tree cannot be read");
        let mut changed = self.states.changed_unserved(id).map_err(failed)?;
        if deep || of.is_some() {
            changed.extend(self.states.find_unserved(id).map_err(failed)?);
            changed.sort_by(|a, b| a.path.cmp(&b.path));
            changed.dedup_by(|a, b| a.path == b.path);
        }
        check.findings.extend(changed.into_iter().map(|change| {
            let found = Finding::of_store(
                DamageKind::ChangedUnseen,
                "the tree",
                "it was changed while nothing was mounted, or behind the mount",
            );
            Finding {
                path: Some(change.path.0),
                checkpoints: vec![id],
                ..found
            }
        }));
        Ok(())
    }

    /// Returns whether a checkpoint still reads the version, and the version is not just being
    /// moved into the layer. Then the damage is logged, the version is no longer shown, and the
    /// finding lists the checkpoints that read it.
    fn is_still_wrong(&self, version: &Version, finding: Option<&mut Finding>) -> bool {
        let Some(finding) = finding else { return false };
        if finding.kind == DamageKind::ObjectMissing && version.object.origin == ObjectOrigin::Moved
        {
            std::thread::sleep(MOVE_TIME);
            if matches!(
                self.timeline().store().layers.stat(version.object),
                Ok(Some(_))
            ) {
                return false;
            }
        }
        let reads = |id: &CheckpointId| {
            let found = self
                .timeline()
                .catalogue
                .is_stored(*id)
                .then(|| self.timeline().lookup.data_at(version.slot, *id));
            matches!(found, Some(Ok(Some(data))) if data.before.object == Some(version.object))
                && self.timeline().is_just_before(*id, version.slot) != Ok(true)
        };
        finding.checkpoints = version.checkpoints.iter().copied().filter(reads).collect();
        let needed = !finding.checkpoints.is_empty();
        if needed {
            tracing::error!(
                object = finding.on,
                kind = finding.kind.name(),
                detail = finding.detail,
                "a version is damaged"
            );
            if matches!(
                finding.kind,
                DamageKind::ObjectChanged | DamageKind::ObjectSize
            ) {
                self.timeline().losses.distrust(version.object);
            }
        }
        needed
    }
}

/// Offline check of a store; holds the store's lock.
pub struct StoreCheck {
    root: OwnedFd,
    /// `None`: the store cannot be opened.
    open: Option<OpenStoreParts>,
    check: Check,
    repaired: Vec<Finding>,
}

struct OpenStoreParts {
    journal: Journal,
    layers: Layers,
    layout: Layout,
}

/// Options of an offline check.
#[derive(Clone, Debug, Default)]
pub struct CheckOptions {
    /// Only check the content of this checkpoint.
    pub state: Option<StateName>,
    /// Read every byte.
    pub deep: bool,
    /// Report files without a record.
    pub strays: bool,
}

impl StoreCheck {
    /// Starts a check of the store in the directory `root`. Only the library of the index writes to
    /// the store.
    ///
    /// # Errors
    /// Messages for the user: no store exists, it is in use, or a newer version made it.
    pub fn begin(root: impl AsFd, options: &CheckOptions) -> VerbResult<StoreCheck> {
        let root = root
            .as_fd()
            .try_clone_to_owned()
            .map_err(error::directory_not_opened)?;
        let layout = match Layout::open_to_check(&root) {
            Ok(layout) => layout,
            Err(
                cause @ (StoreError::NotAStore
                | StoreError::NewerFormat { .. }
                | StoreError::UnknownFeature { .. }),
            ) => {
                let found =
                    Finding::of_store(DamageKind::FormatUnreadable, "format", cause.to_string());
                return Ok(StoreCheck {
                    root,
                    open: None,
                    check: Check::of_nothing(found),
                    repaired: Vec::new(),
                });
            }
            Err(StoreError::Locked) => return Err(error::served()),
            Err(cause) => return Err(unreadable(&cause)),
        };
        let (journal, opening, broken) =
            Journal::open_to_check(&layout).map_err(|cause| unreadable(&cause))?;
        let of = options
            .state
            .as_ref()
            .map(|state| named(&journal, state))
            .transpose()?;
        let mut check =
            Check::begin(&journal, of, options.deep).map_err(|cause| unreadable(&cause))?;
        if let Some(broken) = broken.or_else(|| check_end(&layout, &journal).err()) {
            check.note_journal(&broken);
        } else if opening.torn {
            check.findings.push(torn(opening.end));
        }
        let layers = Layers::new(&layout).map_err(|cause| unreadable(&cause))?;
        check_index(&mut check, &layout, &journal)?;
        check.read_baseline(&layout);
        if options.strays {
            check.strays(&layers).map_err(|cause| unreadable(&cause))?;
        }
        Ok(StoreCheck {
            root,
            open: Some(OpenStoreParts {
                journal,
                layers,
                layout,
            }),
            check,
            repaired: Vec::new(),
        })
    }

    /// Works for a time slice, and returns the findings since the last one.
    pub fn step(&mut self) -> Verified {
        let started = Instant::now();
        if let Some(open) = &self.open {
            while started.elapsed() < PART_TIME
                && self.check.findings.len() < PART_FINDINGS_MAX
                && self.check.step(&open.layers).is_some()
            {}
        }
        self.repaired
            .extend(self.check.findings.iter().take(PART_FINDINGS_MAX).cloned());
        let elsewhere = has_origin(&self.root).then(|| {
            "what was not changed here is in a remote, but for files that were fetched".into()
        });
        Verified {
            elsewhere,
            ..tell(0, &mut self.check)
        }
    }

    /// Makes the repairs that are safe: damaged objects are set aside, nothing is destroyed.
    /// Returns a line for each repair that was made or failed.
    ///
    /// # Errors
    /// In words for a person; what was done before stays done.
    pub fn repair(self) -> VerbResult<Vec<String>> {
        let Some(OpenStoreParts {
            journal,
            layers,
            layout,
        }) = self.open
        else {
            return Ok(Vec::new());
        };
        let mut said = Vec::new();
        for finding in &self.repaired {
            let (Some(object), Some(_)) = (finding.object, repair_of(finding)) else {
                continue;
            };
            layers
                .set_aside(object, layout.dir())
                .map_err(|cause| unreadable(&cause))?;
            said.push(format!("{} was set aside, to aside/", finding.on));
        }
        let found = |kinds: &[DamageKind]| {
            self.repaired
                .iter()
                .any(|finding| kinds.contains(&finding.kind))
        };
        let of_index = found(&[
            DamageKind::IndexMissing,
            DamageKind::IndexUnreadable,
            DamageKind::IndexWrong,
        ]);
        if found(&[DamageKind::BaselineDamaged]) {
            Baseline::remove(&layout).map_err(|cause| unreadable(&cause))?;
            said.push("the baseline was removed; the next mount makes a new one".to_owned());
        }
        // `Store::open` takes the lock itself.
        drop((journal, layers, layout));
        if found(&[DamageKind::JournalDamaged, DamageKind::FormatUnreadable])
            || !(of_index || found(&[DamageKind::JournalTorn]))
        {
            return Ok(said);
        }
        let (store, opened) = Store::open(&self.root, false).map_err(|cause| unreadable(&cause))?;
        if opened.torn {
            said.push("the journal's torn end was saved beside it and cut off".to_owned());
        }
        if of_index {
            if opened.rebuilt.is_none() {
                store.rebuild_index().map_err(|cause| unreadable(&cause))?;
            }
            if store.index.is_in_memory() {
                said.push("there is no room for the index: a mount keeps it in memory".to_owned());
            } else {
                store
                    .index
                    .flush_durable()
                    .map_err(|cause| unreadable(&cause))?;
                said.push("the index was made from the journal".to_owned());
            }
        }
        Ok(said)
    }
}

/// Finds a checkpoint of a store that is not served.
fn named(journal: &Journal, state: &StateName) -> VerbResult<CheckpointId> {
    let checkpoints = ckptfs_store::checkpoints_of(journal);
    let found = match state.0.parse().map(CheckpointId) {
        Ok(id) => checkpoints.iter().find(|checkpoint| checkpoint.id == id),
        Err(_) if state.0 == "latest" => checkpoints.last(),
        Err(_) => checkpoints
            .iter()
            .find(|checkpoint| checkpoint.tags.contains(&state.0)),
    };
    let names = || {
        checkpoints
            .iter()
            .flat_map(|checkpoint| {
                [vec![checkpoint.id.to_string()], checkpoint.tags.clone()].concat()
            })
            .collect::<Vec<_>>()
    };
    found
        .map(|checkpoint| checkpoint.id)
        .ok_or_else(|| error::unknown_state(&state.0, &names()))
}

fn check_index(check: &mut Check, layout: &Layout, journal: &Journal) -> VerbResult<()> {
    // Records missing from a damaged journal cannot be compared.
    if check
        .findings
        .iter()
        .any(|finding| finding.kind == DamageKind::JournalDamaged)
    {
        return Ok(());
    }
    match Index::open_to_check(layout).map_err(|cause| unreadable(&cause))? {
        Ok(index) => check.compare_index(&index, journal),
        // An empty journal needs no index. The next daemon rebuilds one of an older version.
        Err(RebuildReason::Missing)
            if check.totals.frames == 0 || may_lack_index(layout, journal) => {}
        Err(RebuildReason::Older) => {}
        Err(doubt @ RebuildReason::Missing) => check.findings.push(Finding::of_store(
            DamageKind::IndexMissing,
            "index",
            doubt.to_string(),
        )),
        Err(doubt) => check.findings.push(Finding::of_store(
            DamageKind::IndexUnreadable,
            "index",
            doubt.to_string(),
        )),
    }
    Ok(())
}
