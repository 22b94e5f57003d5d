//! `verify` and `fsck`: the store's own check (`store::check`), of a tree that is served
//! and of one that is not.
//!
//! A served tree is verified a moment at a time: whoever asks gets a part of the answer and asks
//! again, so that no thread of the daemon is kept, a bar can be shown, and who stops asking stops
//! it. What seems damaged is looked at again before it is told: captures are taken back and
//! checkpoints deleted meanwhile.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::api::{Damage, StateName, TreePath, VerbError, VerbResult, Verified, VerifyOptions};
use super::compare::States;
use super::error;
use super::runs::{PART_TIME, Runs};
use crate::live::Live;
use crate::store::baseline::Baseline;
use crate::store::check::{Check, DamageKind, Finding, Version};
use crate::store::ids::{Address, CheckpointId, ObjectOrigin};
use crate::store::index::{Doubt, Index};
use crate::store::journal::Journal;
use crate::store::layers::Layers;
use crate::store::layout::{Layout, has_origin};
use crate::store::record::ObjectHash;
use crate::store::{Store, StoreError, check_end, may_lack_index};

/// What [`StoreCheck::repair`] says of an index that it has made.
pub const INDEX_MADE: &str = "the index was made from the journal";
/// Findings that one part tells.
const PART_FINDINGS_MAX: usize = 1000;
/// A moved inode is recorded a moment before it is moved.
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

/// What `fsck --repair` does about a kind of damage.
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
        // A moved inode is the only copy of what it holds.
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

/// Tells what a check has found since this was last asked.
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

/// Verifies the history while the tree is served.
pub(super) struct Verifier {
    pub(super) live: Arc<Live>,
    states: Arc<States>,
    checks: Runs<Check>,
}

impl Verifier {
    pub(super) fn new(live: Arc<Live>, states: Arc<States>) -> Verifier {
        Verifier {
            live,
            states,
            checks: Runs::default(),
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

    /// What was accepted by its size and time, as far as it was looked for.
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

    /// Records hashes of versions that had none, so that later damage is found; returns their
    /// number. Those of the open epoch are left to the sealer: its captures can still be taken back.
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

    /// What checkpoints cannot show because it was changed behind our back. Where nobody was asked
    /// to be thorough only what is known without a walk, or was changed while nobody served the
    /// tree.
    fn look_behind(
        &self,
        of: Option<CheckpointId>,
        deep: bool,
        check: &mut Check,
    ) -> VerbResult<()> {
        let retained = self.timeline().catalogue.retained();
        // The oldest checkpoint misses whatever any misses; the newest is the one of which a walk
        // tells most.
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

    /// Whether a checkpoint still reads the version, and the version is not merely on its way into
    /// the layer. The damage is logged, the version is not shown any more, and the finding names
    /// the checkpoints that read it.
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

/// The check of a store that nobody serves; it holds the store's lock.
pub struct StoreCheck {
    root: OwnedFd,
    /// `None`: the store cannot even be opened.
    open: Option<Open>,
    check: Check,
    repaired: Vec<Finding>,
}

struct Open {
    journal: Journal,
    layers: Layers,
    layout: Layout,
}

/// What to look for in a store that nobody serves.
#[derive(Clone, Debug, Default)]
pub struct CheckOptions {
    /// Only what this checkpoint shows.
    pub state: Option<StateName>,
    /// Read every byte.
    pub deep: bool,
    /// Also files of which the journal knows nothing.
    pub strays: bool,
}

impl StoreCheck {
    /// Begins a check of the store in the directory `root`. Nothing is written but by the index's
    /// own library.
    ///
    /// # Errors
    /// In words for a person: there is no store, it is in use, it is of a newer program.
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
            open: Some(Open {
                journal,
                layers,
                layout,
            }),
            check,
            repaired: Vec::new(),
        })
    }

    /// Works for a moment, and tells what was found since the last one.
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

    /// Makes the repairs that are safe: damaged objects are set aside, nothing is destroyed. Returns
    /// a line for each repair that was made or failed.
    ///
    /// # Errors
    /// In words for a person; what was done before stays done.
    pub fn repair(self) -> VerbResult<Vec<String>> {
        let Some(Open {
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
        // Opening takes the lock itself.
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
                said.push(INDEX_MADE.to_owned());
            }
        }
        Ok(said)
    }
}

/// The checkpoint of a store that nobody serves.
fn named(journal: &Journal, state: &StateName) -> VerbResult<CheckpointId> {
    let checkpoints = crate::store::checkpoints_of(journal);
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
    // What a damaged journal does not tell of cannot be compared.
    if check
        .findings
        .iter()
        .any(|finding| finding.kind == DamageKind::JournalDamaged)
    {
        return Ok(());
    }
    match Index::open_to_check(layout).map_err(|cause| unreadable(&cause))? {
        Ok(index) => check.compare_index(&index, journal),
        // Of nothing there is nothing to index; one of an older program is made anew by whoever
        // serves the store next.
        Err(Doubt::Missing) if check.totals.frames == 0 || may_lack_index(layout, journal) => {}
        Err(Doubt::Older) => {}
        Err(doubt @ Doubt::Missing) => check.findings.push(Finding::of_store(
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
