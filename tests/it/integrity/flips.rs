//! A flipped bit in each kind of stored object is found and named.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::story::{Random, Story, index_of, kinds, look, objects};
use crate::common::command::check;
use crate::common::{Fs, Io, OpenStore, Variant, skip, succeeds, tool};
use ckptfs_api::DamageKind;

/// The I/O mode does not affect the store: one variant suffices.
fn variant() -> Option<Variant> {
    let variant = Variant {
        fs: Fs::Xfs,
        io: Io::Daemon,
    };
    match variant.unavailable() {
        Some(reason) => {
            skip(&reason);
            None
        }
        None => Some(variant),
    }
}

/// Flips one bit of a file until dropped.
struct Flip {
    file: fs::File,
    offset: u64,
    bit: u8,
}

impl Flip {
    fn new(path: &Path, offset: u64, bit: u8) -> Flip {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        let flip = Flip { file, offset, bit };
        flip.turn();
        flip
    }

    fn turn(&self) {
        let mut byte = [0];
        self.file.read_exact_at(&mut byte, self.offset).unwrap();
        self.file
            .write_all_at(&[byte[0] ^ (1 << self.bit)], self.offset)
            .unwrap();
    }
}

impl Drop for Flip {
    fn drop(&mut self) {
        self.turn();
    }
}

fn is_damage_free(dir: &Path) {
    let (status, report) = check(dir, &["verify", "--deep"]);
    assert_eq!((status, kinds(&report)), (0, vec![]), "{report}");
    assert_eq!(report["unhashed"], 0, "the sealer had caught up: {report}");
}

#[test]
fn a_changed_bit_of_a_version_is_found_and_its_path_and_checkpoints_named() {
    let Some(v) = variant() else { return };
    let mut story = Story::tell(v, 4);
    story.checkpoint();
    let dir = story.rest();
    is_damage_free(&dir);
    let mut random = Random::new("flips");
    let mut tried = 0;
    for object in objects(&dir) {
        let meta = fs::symlink_metadata(&object).unwrap();
        if !meta.is_file() || meta.len() == 0 {
            continue;
        }
        let whole = fs::read(&object).unwrap();
        let flip = Flip::new(
            &object,
            random.below(whole.len()) as u64,
            random.below(8) as u8,
        );
        let (status, report) = check(&dir, &["verify", "--deep"]);
        assert_eq!(
            (status, kinds(&report)),
            (4, vec!["object-changed".to_owned()]),
            "{report}"
        );
        let [finding] = &report["findings"].as_array().unwrap()[..] else {
            panic!("one finding: {report}")
        };
        assert_eq!(
            dir.join(".ckptfs").join(finding["on"].as_str().unwrap()),
            object
        );
        names_who_shows(&story.copies, finding, &whole);
        let of = finding["checkpoints"][0].as_u64();
        assert_eq!(
            look(&dir, true, of).len(),
            1,
            "the checkpoint alone is also damaged"
        );
        assert!(
            look(&dir, false, None).is_empty(),
            "without --deep no byte is read"
        );
        drop(flip);
        tried += 1;
    }
    assert!(tried > 20, "{tried} objects");
    is_damage_free(&dir);
}

/// Asserts that the path and checkpoints of a finding are those whose copies have these bytes.
fn names_who_shows(copies: &[PathBuf], finding: &serde_json::Value, bytes: &[u8]) {
    let path = finding["path"]
        .as_str()
        .unwrap_or_else(|| panic!("no path: {finding}"));
    let named: BTreeSet<u64> = finding["checkpoints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap())
        .collect();
    let newest = *named.last().unwrap();
    assert_eq!(
        fs::read(copies[newest as usize - 1].join(path))
            .ok()
            .as_deref(),
        Some(bytes),
        "{finding}: the newest checkpoint with the version shows it there"
    );
    for (id, copy) in (1..).zip(copies) {
        // The file may have had another name earlier.
        assert_eq!(
            holds(copy, bytes),
            named.contains(&id),
            "checkpoint {id}: {finding}"
        );
    }
}

/// Reports whether any file below a directory has these bytes.
fn holds(dir: &Path, bytes: &[u8]) -> bool {
    fs::read_dir(dir).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            holds(&path, bytes)
        } else {
            meta.is_file() && meta.len() == bytes.len() as u64 && fs::read(&path).unwrap() == bytes
        }
    })
}

#[test]
fn a_changed_bit_of_the_journal_or_of_format_is_found() {
    let Some(v) = variant() else { return };
    let mut story = Story::tell(v, 3);
    story.checkpoint();
    let dir = story.rest();
    is_damage_free(&dir);
    let (store, segment) = (dir.join(".ckptfs"), dir.join(".ckptfs/journal/00000001"));
    let frames = frames(&dir);
    let (last_begin, end) = *frames.last().unwrap();
    let mut random = Random::new("flips");
    // Header, payload and hash of some frames and random places; the segment's header; the bytes
    // after the last frame.
    let mut offsets: Vec<u64> = (0..64)
        .step_by(7)
        .chain([
            last_begin,
            last_begin + 2,
            end - 1,
            end,
            end + 8,
            end + 4096,
        ])
        .collect();
    for _ in 0..12 {
        let (begin, end) = frames[random.below(frames.len())];
        let inside = begin + 56 + random.below((end - begin - 88).max(1) as usize) as u64;
        offsets.extend([
            begin + random.below(56) as u64,
            inside,
            end - 32 + random.below(32) as u64,
        ]);
    }
    offsets.extend((0..40).map(|_| random.below(end as usize) as u64));
    for offset in offsets {
        let flip = Flip::new(&segment, offset, random.below(8) as u8);
        // Damage after the last frame is what a power cut leaves; the last frame itself was
        // complete at the unmount.
        let expected = if offset >= end {
            DamageKind::JournalTorn
        } else {
            DamageKind::JournalDamaged
        };
        let found = look(&dir, false, None);
        assert!(
            !found.is_empty()
                && found
                    .iter()
                    .all(|damage| damage.kind == expected && damage.on == "journal/00000001"),
            "offset {offset}: {found:?}"
        );
        drop(flip);
    }
    let format = store.join("format");
    for offset in 0..fs::metadata(&format).unwrap().len() {
        let _flip = Flip::new(&format, offset, random.below(8) as u8);
        // With another id in `format` the journal belongs to another store.
        let found: Vec<DamageKind> = look(&dir, false, None)
            .into_iter()
            .map(|damage| damage.kind)
            .collect();
        assert!(
            found == [DamageKind::FormatUnreadable] || found == [DamageKind::JournalDamaged],
            "offset {offset} of format: {found:?}"
        );
    }
    is_damage_free(&dir);
}

/// Returns the begin and end offsets of the frames in the first segment.
fn frames(dir: &Path) -> Vec<(u64, u64)> {
    let (store, _) = ckptfs_store::Store::open(fs::File::open(dir).unwrap(), false).unwrap();
    let begins: Vec<u64> = store
        .journal
        .scan(store.journal.start(), None)
        .map(|entry| u64::from(entry.unwrap().0.offset))
        .collect();
    let end = u64::from(store.journal.position().offset);
    begins
        .iter()
        .copied()
        .zip(begins.iter().copied().skip(1).chain([end]))
        .collect()
}

#[test]
fn a_changed_bit_of_the_index_is_found_or_changes_nothing() {
    let Some(v) = variant() else { return };
    let mut story = Story::tell(v, 3);
    story.checkpoint();
    let dir = story.rest();
    is_damage_free(&dir);
    let (index, pristine) = (dir.join(".ckptfs/index"), dir.join(".ckptfs/pristine"));
    succeeds(
        tool("cp", &["-a", "--reflink=auto"]).args([&index, &pristine]),
        60,
    );
    let known = index_of(&dir);
    let mut random = Random::new("flips");
    let mut found = 0;
    for round in 0..40 {
        fs::remove_dir_all(&index).unwrap();
        succeeds(
            tool("cp", &["-a", "--reflink=auto"]).args([&pristine, &index]),
            60,
        );
        let files: Vec<PathBuf> = fs::read_dir(&index)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_file())
            .collect();
        let file = &files[round % files.len()];
        let bytes = fs::read(file).unwrap();
        // sled's file is mostly zeros.
        let used: Vec<usize> = bytes
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte != 0)
            .map(|(at, _)| at)
            .collect();
        let offset = if used.is_empty() {
            continue;
        } else {
            used[random.below(used.len())]
        };
        std::mem::forget(Flip::new(file, offset as u64, random.below(8) as u8));
        let (status, report) = check(&dir, &["verify"]);
        match (status, kinds(&report).as_slice()) {
            (4, [kind]) if kind == "index-unreadable" || kind == "index-wrong" => found += 1,
            // sled has repaired it, or the bytes are unused: only entries that the journal's tail
            // restores may differ.
            (0, []) => assert!(
                index_of(&dir)
                    .iter()
                    .all(|(key, value)| key.starts_with(b"m") || known.get(key) == Some(value)),
                "{file:?} {offset}"
            ),
            _ => panic!("{file:?}, offset {offset}: {report}"),
        }
    }
    println!("{found} of 40 flips in the index's files were damage");
    assert!(found > 0);
    fs::remove_dir_all(&pristine).unwrap();
    let (status, report) = check(&dir, &["verify", "--repair"]);
    assert_eq!(status, 0, "{report}");
    assert_eq!(
        index_of(&dir),
        known,
        "the index from the journal has the previous content"
    );
    is_damage_free(&dir);
}

/// The birth time of a file is that of the last tick of the kernel's clock, which may precede the
/// checkpoint made before the file.
#[test]
fn a_checkpoint_just_before_a_file_was_made_is_not_named_for_it() {
    let Some(v) = variant() else { return };
    let rig = v.start();
    let files: Vec<String> = (1..=20).map(|number| format!("f{number}")).collect();
    for name in &files {
        fs::create_dir(rig.path().join(".snapshots").join(format!("t{name}"))).unwrap();
        fs::write(rig.path().join(name), "old").unwrap();
    }
    rig.mount.checkpoint();
    for name in &files {
        fs::write(rig.path().join(name), "changed").unwrap();
    }
    let (shown, store) = (rig.path().join(".ckptfs"), OpenStore::of(rig.path()));
    for object in objects(rig.path()) {
        let object = object.strip_prefix(&shown).unwrap().to_str().unwrap();
        fs::remove_file(store.file(object)).unwrap();
    }
    let (status, report) = check(rig.path(), &["verify"]);
    let findings = report["findings"].as_array().unwrap();
    assert_eq!((status, findings.len()), (4, files.len()), "{report}");
    for finding in findings {
        let path = finding["path"].as_str().unwrap();
        for id in finding["checkpoints"].as_array().unwrap() {
            let view = rig.view(id.as_u64().unwrap());
            assert!(
                view.join(path).symlink_metadata().is_ok(),
                "{id}: {finding}"
            );
        }
    }
}
