//! A random history with a plain copy of every state, and queries of a store for the tests.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::random::seed;
use crate::common::wait::{seen, wait_longer};
use crate::common::{Mount, Rig, Variant, copy_tree};
use ckptfs_api::{Damage, StateName};
use ckptfs_core::engine::check::{CheckOptions, StoreCheck};

/// Changes before each checkpoint.
const CHANGES: usize = 25;

/// A seeded random number generator (xorshift64*).
pub struct Random(u64);

impl Random {
    /// Seeds from `CKPTFS_SEED`, or with a constant, and prints the seed.
    pub fn new(what: &str) -> Random {
        Random(seed(what, 20_261_121) | 1)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }
}

/// A tree with a history, and copies of its states.
pub struct Story {
    pub rig: Rig,
    /// Plain copies of the states of checkpoints 1, 2, 3 ...
    pub copies: Vec<PathBuf>,
    written: u64,
    random: Random,
}

impl Story {
    /// Makes the given number of checkpoints, each after random changes, and more changes after the
    /// last.
    pub fn tell(v: Variant, checkpoints: usize) -> Story {
        let rig = v.start();
        let mut story = Story {
            rig,
            copies: Vec::new(),
            written: 0,
            random: Random::new("story"),
        };
        fs::create_dir_all(story.rig.path().join("dir/deeper")).unwrap();
        for _ in 0..checkpoints {
            story.change();
            story.checkpoint();
        }
        story.change();
        story
    }

    /// Makes a checkpoint and a copy.
    pub fn checkpoint(&mut self) -> u64 {
        let id = self.rig.mount.checkpoint();
        let copy = self.rig.image.path().join(format!("copy-{id}"));
        copy_tree(self.rig.path(), &copy);
        self.copies.push(copy);
        id
    }

    /// Makes random changes of every kind.
    pub fn change(&mut self) {
        let root = self.rig.path().to_owned();
        for _ in 0..CHANGES {
            let dir = root.join(["", "dir", "dir/deeper"][self.random.below(3)]);
            let name = |random: &mut Random| dir.join(format!("f{}", random.below(12)));
            let (path, other) = (name(&mut self.random), name(&mut self.random));
            self.written += 1;
            // No two versions have the same bytes; sizes exceed a page and a block of the hash.
            let size = [10, 5000, 300_000][self.random.below(3)];
            let mut content = format!("version {}\n", self.written).into_bytes();
            content.resize(size, b'.');
            // Operations that fail are skipped.
            let _ = match self.random.below(9) {
                0..=4 => fs::write(&path, &content),
                5 => fs::remove_file(&path),
                6 => fs::rename(&path, &other),
                7 => fs::set_permissions(
                    &path,
                    PermissionsExt::from_mode(0o600 | self.random.below(0o100) as u32),
                ),
                _ => symlink("nowhere", &path).or_else(|_| fs::hard_link(&path, &other)),
            };
        }
    }

    pub fn mount(&mut self) -> &mut Mount {
        &mut self.rig.mount
    }

    /// Returns the mounted directory.
    pub fn dir(&self) -> PathBuf {
        self.rig.path().to_owned()
    }

    /// Unmounts once the sealer is idle and the index has every closed epoch.
    pub fn rest(&mut self) -> PathBuf {
        caught_up(&self.rig.mount);
        let dir = self.dir();
        let mut tries = 0;
        loop {
            self.rig.mount.umount();
            if index_is_whole(&dir) {
                return dir;
            }
            tries += 1;
            assert!(tries < 60, "the indexer does not finish");
            self.rig.mount.remount();
            std::thread::sleep(std::time::Duration::from_millis(500));
        }
    }
}

/// Waits until the sealer is idle.
pub fn caught_up(mount: &Mount) {
    wait_longer("the sealer has finished", 120, || {
        let sealer = mount.stats()["sealer"].clone();
        seen(sealer["caught_up"] == true, sealer)
    });
}

/// Reports whether the index of an unmounted store has every closed epoch.
fn index_is_whole(dir: &Path) -> bool {
    let (store, _) = ckptfs_store::Store::open(fs::File::open(dir).unwrap(), false).unwrap();
    let last = store
        .journal
        .scan(store.journal.start(), None)
        .map(Result::unwrap);
    let end = last
        .filter(|(_, record)| matches!(record, ckptfs_store::record::Record::Checkpoint(_)))
        .last();
    end.is_none_or(|(at, record)| store.index.applied().unwrap() >= at.after(&record).unwrap())
}

/// Returns every entry of the index of an unmounted store.
pub fn index_of(dir: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let (store, opened) = ckptfs_store::Store::open(fs::File::open(dir).unwrap(), false).unwrap();
    assert_eq!(opened.rebuilt, None);
    store.index.dump().unwrap().into_iter().collect()
}

/// Returns the findings of a check within this process, which is faster for tests that run many.
pub fn look(dir: &Path, deep: bool, of: Option<u64>) -> Vec<Damage> {
    let state = of.map(|id| StateName(id.to_string()));
    let mut check = StoreCheck::begin(
        fs::File::open(dir).unwrap(),
        &CheckOptions {
            state,
            deep,
            strays: false,
        },
    )
    .unwrap();
    let mut findings = Vec::new();
    loop {
        let part = check.step();
        findings.extend(part.findings);
        if part.finished {
            return findings;
        }
    }
}

/// Returns the kinds of damage in a report, sorted and unique.
pub fn kinds(report: &Value) -> Vec<String> {
    let findings = report["findings"].as_array().expect("a list");
    let mut kinds: Vec<String> = findings
        .iter()
        .map(|finding| finding["kind"].as_str().expect("a kind").to_owned())
        .collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

/// Returns the objects of an unmounted store.
pub fn objects(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for epoch in fs::read_dir(dir.join(".ckptfs/layers")).unwrap() {
        for object in fs::read_dir(epoch.unwrap().path().join("objects")).unwrap() {
            found.push(object.unwrap().path());
        }
    }
    found.sort();
    found
}
