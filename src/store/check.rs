//! Verification of the store: compares the journal with the objects on disk.
//!
//! A check first reads the whole journal, which verifies the chain of its frames. It lists the
//! **versions** that the kept checkpoints need: object, size, hash if sealed, and path. It then
//! verifies the list in steps, so that a caller can report progress and stop. Nothing is written;
//! repairs are the caller's task.
//!
//! The path of a version follows from the records of its epoch, without the tree: a change records
//! the place of the inode and of every directory above it.
//!
//! Locking: none. A served store changes during a check, so the caller verifies that a version
//! which seems damaged is still needed.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use ckptfs_api::{CheckpointId, DamageKind, Epoch};

mod finding;

pub use self::finding::{Finding, journal_finding};
use super::baseline::Baseline;
use super::error::{StoreError, StoreResult};
use super::ids::{ObjectId, ObjectOrigin, Slot};
use super::index::{Index, IndexDifference};
use super::journal::Journal;
use super::layers::{self, Layers};
use super::layout::Layout;
use super::record::{Checkpoint, DataState, ObjectHash, Place, Record, Undo, in_a_circle};
use ckptfs_sys::{Errno, Kind};

/// Limit on the total size of reported paths and of the names read for them, because every version
/// in a deep tree has a long path.
const PATHS_BYTES_MAX: usize = 64 << 20;

/// A captured version that a kept checkpoint needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The inode of the file.
    pub slot: Slot,
    /// The epoch of its record.
    pub epoch: Epoch,
    /// The object with its bytes.
    pub object: ObjectId,
    /// Size in bytes.
    pub size: u64,
    /// Type of the inode.
    kind: Kind,
    /// Its path, as far as records determine it.
    pub path: Option<Vec<u8>>,
    /// The kept checkpoints that show it, oldest first.
    pub checkpoints: Vec<CheckpointId>,
    sealed: Option<ObjectHash>,
}

/// Extent of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckTotals {
    /// Frames of the journal.
    pub frames: u64,
    /// Versions that kept checkpoints need.
    pub versions: u64,
    /// Total size of these versions in bytes.
    pub bytes: u64,
    /// Versions without a hash.
    pub unhashed: u64,
}

/// A check in progress. See the module.
#[derive(Debug, Default)]
pub struct Check {
    versions: Vec<Version>,
    /// Targets of the last recorded removal. A daemon that was killed may not have moved them; the
    /// next one completes or voids the removal.
    unfinished: HashSet<ObjectId>,
    /// Every object named by a record, needed or not.
    recorded: HashSet<ObjectId>,
    /// The extent of the whole check.
    pub totals: CheckTotals,
    /// Findings, beginning with those in the journal itself.
    pub findings: Vec<Finding>,
    /// The newest checkpoint read.
    newest: Option<CheckpointId>,
    next: usize,
    /// Bytes verified; in a quick check, versions.
    pub done: u64,
    deep: bool,
    /// Hashes computed for versions without one.
    pub hashed: Vec<ObjectHash>,
}

/// The state of reading the journal.
#[derive(Default)]
struct VersionCollector {
    epoch: EpochRecords,
    /// Names and bytes spent on paths.
    spent: usize,
    /// Epochs whose places form a cycle.
    circles: Vec<(Epoch, Slot)>,
    last_data: HashMap<Slot, Epoch>,
    /// File type and birth time by the last attribute record. A pack omits one that only a deleted
    /// checkpoint read, while the data record of the same epoch stays.
    last_attr: HashMap<Slot, (Kind, Option<i64>)>,
    versions: Vec<(Version, Epoch, Option<i64>)>,
    checkpoints: BTreeMap<CheckpointId, Checkpoint>,
    sealed: HashMap<ObjectId, ObjectHash>,
    recorded: HashSet<ObjectId>,
    unfinished: HashSet<ObjectId>,
    /// Objects dropped to a tier, which are not missing.
    dropped: HashSet<ObjectId>,
}

/// The records of the epoch being read.
#[derive(Default)]
struct EpochRecords {
    number: Option<Epoch>,
    data: BTreeMap<Slot, DataState>,
    homes: HashMap<Slot, Place>,
    /// File type and birth time in nanoseconds since 1970.
    attrs: HashMap<Slot, (Kind, Option<i64>)>,
}

impl EpochRecords {
    fn add(&mut self, undo: Undo) {
        match undo {
            Undo::Data { slot, before } => {
                self.data.entry(slot).or_insert(before);
            }
            Undo::Home { slot, before } => {
                self.homes.entry(slot).or_insert(before);
            }
            Undo::Attr { slot, before } => {
                let born = before.stat.btime.map(|time| time.nanoseconds());
                self.attrs.entry(slot).or_insert((before.stat.kind, born));
            }
            Undo::Entry { .. } | Undo::Xattrs { .. } => {}
        }
    }

    /// Returns the path of an inode before the epoch, if its records determine it and the limit on
    /// paths is not exceeded.
    fn path(&self, slot: Slot, spent: &mut usize) -> Option<Vec<u8>> {
        let mut names: Vec<&[u8]> = Vec::new();
        let mut at = slot;
        while at != Slot::ROOT {
            let place = self.homes.get(&at)?;
            names.push(place.name.as_bytes());
            *spent += 1 + place.name.as_bytes().len();
            if *spent > PATHS_BYTES_MAX {
                return None;
            }
            at = place.parent;
        }
        names.reverse();
        Some(names.join(&b'/'))
    }
}

impl VersionCollector {
    fn take(&mut self, record: Record) {
        match record {
            Record::Undo { epoch, undo } => {
                if self.epoch.number != Some(epoch) {
                    self.close_epoch();
                    self.epoch.number = Some(epoch);
                }
                let mut moves = HashSet::new();
                for item in undo {
                    if let Undo::Data { before: DataState { object: Some(object), .. }, .. } = &item {
                        self.recorded.insert(*object);
                        if object.origin == ObjectOrigin::Moved {
                            moves.insert(*object);
                        }
                    }
                    self.epoch.add(item);
                }
                if !moves.is_empty() {
                    self.unfinished = moves;
                }
            }
            Record::Void { epoch, slot } => {
                if self.epoch.number == Some(epoch) {
                    self.epoch.data.remove(&slot);
                }
            }
            Record::Replacing { object, .. } => {
                self.recorded.insert(object);
            }
            Record::Checkpoint(checkpoint) => {
                self.checkpoints.insert(checkpoint.id, checkpoint);
            }
            Record::Tags { id, tags } => {
                if let Some(checkpoint) = self.checkpoints.get_mut(&id) {
                    checkpoint.tags = tags;
                }
            }
            Record::Deleted { id } => {
                self.checkpoints.remove(&id);
            }
            Record::Hashes { objects, .. } => self.sealed.extend(objects.into_iter().map(|sealed| (sealed.object, sealed))),
            Record::Dropped { objects, .. } => self.dropped.extend(objects.into_iter().map(|dropped| dropped.object)),
            Record::Unmounted { .. } => self.unfinished.clear(),
            Record::Moved { .. }
            | Record::Pinned { .. }
            | Record::Operation(_)
            // Versions that only a hidden checkpoint needs are kept.
            | Record::Hidden { .. }
            | Record::RestoreBegin { .. }
            | Record::RestoreEnd
            | Record::Mounted { .. }
            | Record::By { .. }
            | Record::Comparing(_)
            | Record::Told { .. } => {}
            Record::Touched { .. } | Record::OpenAt { .. } | Record::RestoreOnly { .. } => {}
        }
    }

    fn close_epoch(&mut self) {
        let records = std::mem::take(&mut self.epoch);
        let Some(epoch) = records.number else { return };
        if let Some(slot) = in_a_circle(records.homes.iter().map(|(slot, place)| (*slot, place))) {
            self.circles.push((epoch, slot));
            return;
        }
        self.last_attr.extend(&records.attrs);
        for (slot, data) in &records.data {
            let before = self.last_data.insert(*slot, epoch).unwrap_or(Epoch(0));
            let Some(object) = data.object else { continue };
            let known = self.last_attr.get(slot).copied();
            let (kind, born) = known.unwrap_or((Kind::File, None));
            let path = records.path(*slot, &mut self.spent);
            let version = Version {
                slot: *slot,
                epoch,
                object,
                size: data.size,
                kind,
                path,
                checkpoints: Vec::new(),
                sealed: None,
            };
            self.versions.push((version, before, born));
        }
    }

    /// Returns the versions that kept checkpoints (only `of`, if given) read.
    fn needed(mut self, of: Option<CheckpointId>) -> (Vec<Version>, HashSet<ObjectId>) {
        let mut needed = Vec::new();
        for (mut version, before, born) in std::mem::take(&mut self.versions) {
            let readers = self
                .checkpoints
                .range(before.checkpoint()..version.epoch.checkpoint().max(before.checkpoint()))
                .filter(|(id, _)| of.is_none_or(|of| of == **id));
            // A checkpoint older than the file does not show it.
            let readers = readers
                .filter(|(_, checkpoint)| born.is_none_or(|born| born <= checkpoint.created_ns));
            version.checkpoints = readers.map(|(id, _)| *id).collect();
            version.sealed = self.sealed.get(&version.object).copied();
            if !version.checkpoints.is_empty() && !self.dropped.contains(&version.object) {
                needed.push(version);
            }
        }
        needed.sort_by_key(|version| version.object);
        (needed, self.recorded)
    }
}

impl Check {
    /// Creates the check of a store that cannot be opened, with this finding alone.
    pub fn of_nothing(found: Finding) -> Check {
        Check {
            findings: vec![found],
            ..Check::default()
        }
    }

    /// Reads the journal and lists the versions. `of`: only those that this checkpoint shows.
    /// `deep`: every byte will be read.
    ///
    /// Damage in the journal is a finding, and records after it are not checked. Errors: `Io` of
    /// another kind.
    pub fn begin(journal: &Journal, of: Option<CheckpointId>, deep: bool) -> StoreResult<Check> {
        let mut reading = VersionCollector::default();
        let mut check = Check {
            deep,
            ..Check::default()
        };
        let packs = journal.hold_packs();
        for entry in journal.scan(journal.start(), None) {
            match entry {
                Ok((_, record)) => {
                    check.totals.frames += 1;
                    reading.take(record);
                }
                Err(error) => check.findings.push(journal_finding(
                    &error,
                    reading.checkpoints.keys().next_back().copied(),
                )),
            }
        }
        drop(packs);
        check.newest = reading.checkpoints.keys().next_back().copied();
        let wanted = |id: CheckpointId| of.is_none_or(|of| of == id);
        let incomplete = reading
            .checkpoints
            .values()
            .filter(|checkpoint| checkpoint.is_incomplete() && wanted(checkpoint.id));
        check.findings.extend(incomplete.map(|checkpoint| {
            let detail = "the power was cut before all of it was on disk: files in it may be missing, or from another moment";
            let found = Finding::of_store(DamageKind::CheckpointIncomplete, "journal", detail);
            Finding { checkpoints: vec![checkpoint.id], ..found }
        }));
        check.unfinished = std::mem::take(&mut reading.unfinished);
        reading.close_epoch();
        check
            .findings
            .extend(
                std::mem::take(&mut reading.circles)
                    .into_iter()
                    .map(|(epoch, slot)| {
                        let detail = format!(
                            "the places recorded in epoch {} lead in a circle, at inode {}",
                            epoch.0, slot.0
                        );
                        Finding::of_store(DamageKind::JournalDamaged, "journal", detail)
                    }),
            );
        (check.versions, check.recorded) = reading.needed(of);
        check.totals.versions = check.versions.len() as u64;
        check.totals.bytes = check
            .versions
            .iter()
            .fold(0, |sum: u64, version| sum.saturating_add(version.size));
        check.totals.unhashed = check
            .versions
            .iter()
            .filter(|version| version.sealed.is_none() && version.kind == Kind::File)
            .count() as u64;
        Ok(check)
    }

    /// Adds a finding for the place where a scan of the journal failed.
    pub fn note_journal(&mut self, error: &StoreError) {
        self.findings.push(journal_finding(error, self.newest));
    }

    /// Compares the index with the journal.
    pub fn compare_index(&mut self, index: &Index, journal: &Journal) {
        if self
            .findings
            .iter()
            .any(|finding| finding.kind == DamageKind::JournalDamaged)
        {
            return;
        }
        match index.compare(journal) {
            Ok(difference) if difference.is_none() => {}
            Ok(IndexDifference {
                missing,
                wrong,
                strange,
            }) => {
                let detail = format!(
                    "{missing} entries are missing, {wrong} are wrong, {strange} should not be there"
                );
                self.findings
                    .push(Finding::of_store(DamageKind::IndexWrong, "index", detail));
            }
            Err(error) => self.findings.push(Finding::of_store(
                DamageKind::IndexUnreadable,
                "index",
                error.to_string(),
            )),
        }
    }

    /// Verifies the baseline if one exists.
    pub fn read_baseline(&mut self, layout: &Layout) {
        if let Err(error) = Baseline::check(layout) {
            self.findings.push(Finding::of_store(
                DamageKind::BaselineDamaged,
                "baseline",
                error.to_string(),
            ));
        }
    }

    /// Returns the total amount of work, in the unit of `done`.
    pub fn total(&self) -> u64 {
        if self.deep {
            self.totals.bytes
        } else {
            self.totals.versions
        }
    }

    /// Returns whether all versions were verified.
    pub fn is_finished(&self) -> bool {
        self.next >= self.versions.len()
    }

    /// Verifies the next version and adds a finding if it is damaged. Returns `None` at the end.
    pub fn step(&mut self, layers: &Layers) -> Option<&Version> {
        let version = self.versions.get(self.next)?;
        self.next += 1;
        self.done = self
            .done
            .saturating_add(if self.deep { version.size } else { 1 });
        let found = look_at(version, layers, self.deep, &mut self.hashed);
        let on_its_way = |kind: &DamageKind| {
            *kind == DamageKind::ObjectMissing && self.unfinished.contains(&version.object)
        };
        if let Some((kind, detail)) = found.filter(|(kind, _)| !on_its_way(kind)) {
            self.findings.push(Finding {
                kind,
                on: object_path(version.object),
                object: Some(version.object),
                path: version.path.clone(),
                checkpoints: version.checkpoints.clone(),
                detail,
            });
        }
        Some(version)
    }

    /// Finds files in the layers without a record. Only for an unmounted store, because an object
    /// is created before it is recorded.
    ///
    /// Errors: `Io`.
    pub fn strays(&mut self, layers: &Layers) -> StoreResult<()> {
        // Records lost with a damaged journal may need the file.
        if self
            .findings
            .iter()
            .any(|finding| finding.kind == DamageKind::JournalDamaged)
        {
            return Ok(());
        }
        let damaged: BTreeSet<ObjectId> = self
            .findings
            .iter()
            .filter_map(|finding| finding.object)
            .collect();
        for epoch in layers.epochs()? {
            for object in layers
                .list(epoch)?
                .into_iter()
                .filter(|object| !self.recorded.contains(object) && !damaged.contains(object))
            {
                let detail = "no record refers to it".to_owned();
                let finding =
                    Finding::of_store(DamageKind::ObjectUnneeded, object_path(object), detail);
                self.findings.push(Finding {
                    object: Some(object),
                    ..finding
                });
            }
            for name in layers.foreign(epoch)? {
                let on = format!(
                    "layers/{}/objects/{}",
                    epoch.0,
                    String::from_utf8_lossy(&name)
                );
                self.findings.push(Finding::of_store(
                    DamageKind::ForeignFile,
                    on,
                    "its name is not that of an object",
                ));
            }
        }
        Ok(())
    }
}

/// Returns the path of an object relative to `.ckptfs`.
pub fn object_path(object: ObjectId) -> String {
    format!(
        "layers/{}/objects/{}",
        object.epoch.0,
        layers::file_name(object)
    )
}

/// Verifies a version and returns the damage found.
fn look_at(
    version: &Version,
    layers: &Layers,
    deep: bool,
    hashed: &mut Vec<ObjectHash>,
) -> Option<(DamageKind, String)> {
    let stat = match layers.stat(version.object) {
        Ok(Some(stat)) => stat,
        Ok(None) => return Some((DamageKind::ObjectMissing, "it is missing".to_owned())),
        Err(error) => return Some((DamageKind::ObjectUnreadable, error.to_string())),
    };
    let expected = if version.object.origin == ObjectOrigin::Cloned {
        Kind::File
    } else {
        version.kind
    };
    if stat.kind != expected {
        return Some((
            DamageKind::ObjectChanged,
            format!("it is of another kind: {:?}, not {expected:?}", stat.kind),
        ));
    }
    if stat.kind != Kind::File {
        return None;
    }
    if stat.size != version.size {
        return Some((
            DamageKind::ObjectSize,
            format!("it has {} bytes instead of {}", stat.size, version.size),
        ));
    }
    if !deep {
        return None;
    }
    match layers.hash(version.object, |_| true) {
        Ok(Some((size, hash))) => {
            let Some(sealed) = version.sealed else {
                let object = version.object;
                hashed.push(ObjectHash { object, size, hash });
                return None;
            };
            let same = sealed.size == size && sealed.hash == hash;
            (!same).then(|| {
                (
                    DamageKind::ObjectChanged,
                    "its content does not match its hash".to_owned(),
                )
            })
        }
        Ok(None) => None,
        // Moved with a mode that denies access: its content cannot be verified.
        Err(error) if error.errno() == Errno::EACCES => None,
        Err(error) => Some((DamageKind::ObjectUnreadable, error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::AttrState;
    use ckptfs_sys::{self as sys, Time};

    /// After a version was freed with the only checkpoint that read it, `verify` reported
    /// checkpoints older than the file as damaged.
    #[test]
    fn a_file_is_as_old_as_an_earlier_record_of_it_says() {
        let slot = Slot(500);
        let made = |id: u64| {
            Record::Checkpoint(Checkpoint {
                id: CheckpointId(id),
                tags: Vec::new(),
                note: String::new(),
                created_ns: id as i64 * 1000,
                atomic: true,
                dirty: 0,
                reason: ckptfs_api::Reason::Asked,
            })
        };
        let recorded = |epoch: u64, undo: Undo| Record::Undo {
            epoch: Epoch(epoch),
            undo: vec![undo],
        };
        let mut stat = sys::stat_fd(std::fs::File::open("/").unwrap()).unwrap();
        stat.kind = Kind::File;
        stat.btime = Some(Time { sec: 0, nsec: 1500 });
        let before = AttrState { stat, target: None };
        let object = ObjectId {
            epoch: Epoch(3),
            slot,
            serial: 0,
            origin: ObjectOrigin::Cloned,
        };
        let data = DataState {
            object: Some(object),
            size: 7,
            provisional: false,
        };
        let mut reading = VersionCollector::default();
        for record in [
            made(1),
            recorded(2, Undo::Attr { slot, before }),
            made(2),
            recorded(3, Undo::Data { slot, before: data }),
            Record::Deleted {
                id: CheckpointId(2),
            },
        ] {
            reading.take(record);
        }
        reading.close_epoch();
        assert_eq!(reading.needed(None).0, Vec::new());
    }
}
