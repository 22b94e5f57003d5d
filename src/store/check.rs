//! Looking for damage: what the journal promises against what is there.
//!
//! A check first reads the whole journal, which proves the chain of its frames, and makes a list of
//! the **versions** that the kept checkpoints need: which object, how large, with which hash if it
//! was sealed, under which path. Then it goes through the list in steps, so that whoever waits can
//! be told how far it is, and stop it. Nothing is written; what is to be done about a finding is
//! the caller's.
//!
//! Where a version was is told by the records made with it: a change records the place of the inode
//! and of every directory above it in the same epoch, so the path needs no tree.
//!
//! Locking: none. A store that is served changes meanwhile: the caller asks again whether a version
//! that seems damaged is still needed.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

mod finding;

pub use self::finding::{DamageKind, Finding, journal_finding};
use super::baseline::Baseline;
use super::error::{StoreError, StoreResult};
use super::ids::{CheckpointId, Epoch, ObjectId, ObjectOrigin, Slot};
use super::index::{Difference, Index};
use super::journal::Journal;
use super::layers::{self, Layers};
use super::layout::Layout;
use super::record::{Checkpoint, DataState, ObjectHash, Place, Record, Undo, in_a_circle};
use crate::sys::{Errno, Kind};

/// Most bytes of paths, and names in them, that are told of all versions together: a deep tree has
/// long ones, as many as it has versions.
const PATHS_BYTES_MAX: usize = 64 << 20;

/// A captured version that a kept checkpoint needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Whose it is.
    pub slot: Slot,
    /// The epoch of its record.
    pub epoch: Epoch,
    /// Where its bytes are.
    pub object: ObjectId,
    /// How many.
    pub size: u64,
    /// What the inode was.
    kind: Kind,
    /// Where it was, if the records tell.
    pub path: Option<Vec<u8>>,
    /// The kept checkpoints that show it, oldest first.
    pub checkpoints: Vec<CheckpointId>,
    sealed: Option<ObjectHash>,
}

/// What a check has looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Frames of the journal.
    pub frames: u64,
    /// Versions that kept checkpoints need.
    pub versions: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those of them that have no hash yet.
    pub unhashed: u64,
}

/// A check under way. See the module.
#[derive(Debug, Default)]
pub struct Check {
    versions: Vec<Version>,
    /// What the last recorded removal was to move: a daemon that was killed may not have come to
    /// it, and the next one finishes or strikes it.
    unfinished: HashSet<ObjectId>,
    /// Every object that some record names, whether anybody needs it or not.
    recorded: HashSet<ObjectId>,
    /// What is to be looked at in all.
    pub totals: Totals,
    /// What the journal itself showed.
    pub findings: Vec<Finding>,
    /// The newest checkpoint that was read of.
    newest: Option<CheckpointId>,
    next: usize,
    /// Bytes (in a quick check: versions) that were looked at.
    pub done: u64,
    deep: bool,
    /// Hashes of versions that had none, as they were read.
    pub hashed: Vec<ObjectHash>,
}

/// What is read from the journal.
#[derive(Default)]
struct Reading {
    epoch: EpochRecords,
    /// What telling paths has cost: names, and bytes of them.
    spent: usize,
    /// Epochs whose places lead in a circle.
    circles: Vec<(Epoch, Slot)>,
    last_data: HashMap<Slot, Epoch>,
    /// Kind and time of birth by the last record of attributes: the packs leave out one that only
    /// a deleted checkpoint read, and the record of content in the same epoch stays.
    last_attr: HashMap<Slot, (Kind, Option<i64>)>,
    versions: Vec<(Version, Epoch, Option<i64>)>,
    checkpoints: BTreeMap<CheckpointId, Checkpoint>,
    sealed: HashMap<ObjectId, ObjectHash>,
    recorded: HashSet<ObjectId>,
    unfinished: HashSet<ObjectId>,
    /// What is not kept any more because of where it was: nothing is missing.
    dropped: HashSet<ObjectId>,
}

/// The records of the epoch that is being read.
#[derive(Default)]
struct EpochRecords {
    number: Option<Epoch>,
    data: BTreeMap<Slot, DataState>,
    homes: HashMap<Slot, Place>,
    /// Kind and time of birth, seconds and nanoseconds as nanoseconds since 1970.
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

    /// The path of an inode before the epoch, as far as its records lead, and unless too much is
    /// spent on paths.
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

impl Reading {
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
            // What only a hidden checkpoint needs is kept too.
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

    /// The versions that kept checkpoints (only `of`, if given) read.
    fn needed(mut self, of: Option<CheckpointId>) -> (Vec<Version>, HashSet<ObjectId>) {
        let mut needed = Vec::new();
        for (mut version, before, born) in std::mem::take(&mut self.versions) {
            let readers = self
                .checkpoints
                .range(before.checkpoint()..version.epoch.checkpoint().max(before.checkpoint()))
                .filter(|(id, _)| of.is_none_or(|of| of == **id));
            // A checkpoint that is older than the file does not show it.
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
    /// A check of a store that cannot even be opened: this is all that is found.
    pub fn of_nothing(found: Finding) -> Check {
        Check {
            findings: vec![found],
            ..Check::default()
        }
    }

    /// Reads the journal and makes the list. `of`: only what this checkpoint shows. `deep`: every
    /// byte will be read.
    ///
    /// Damage in the journal is a finding, and what comes after it is not checked. Errors: `Io` of
    /// another kind.
    pub fn begin(journal: &Journal, of: Option<CheckpointId>, deep: bool) -> StoreResult<Check> {
        let mut reading = Reading::default();
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

    /// The journal is damaged where a scan of it ends.
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
            Ok(Difference {
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

    /// Reads the baseline, if there is one.
    pub fn read_baseline(&mut self, layout: &Layout) {
        if let Err(error) = Baseline::check(layout) {
            self.findings.push(Finding::of_store(
                DamageKind::BaselineDamaged,
                "baseline",
                error.to_string(),
            ));
        }
    }

    /// How much there is to do, in the unit of `done`.
    pub fn total(&self) -> u64 {
        if self.deep {
            self.totals.bytes
        } else {
            self.totals.versions
        }
    }

    /// All versions were looked at.
    pub fn is_finished(&self) -> bool {
        self.next >= self.versions.len()
    }

    /// Looks at the next version; `None`: there is no further. What is wrong with it goes to
    /// `findings`.
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

    /// Files in the layers of which the journal knows nothing. Only of a store that nobody serves:
    /// an object is made before it is recorded.
    ///
    /// Errors: `Io`.
    pub fn strays(&mut self, layers: &Layers) -> StoreResult<()> {
        // What a damaged journal does not tell of may be needed all the same.
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

/// Where an object is, relative to `.ckptfs`.
pub fn object_path(object: ObjectId) -> String {
    format!(
        "layers/{}/objects/{}",
        object.epoch.0,
        layers::file_name(object)
    )
}

/// What is wrong with a version, if something is.
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
        // Moved with a mode that keeps us out: nothing is wrong with it that could be told.
        Err(error) if error.errno() == Errno::EACCES => None,
        Err(error) => Some((DamageKind::ObjectUnreadable, error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::record::{AttrState, Reason};
    use crate::sys::{self, Time};

    /// `verify` named checkpoints that are older than the file as damaged for ever, after the
    /// version was freed with the only checkpoint that read it.
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
                reason: Reason::Asked,
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
        let mut reading = Reading::default();
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
