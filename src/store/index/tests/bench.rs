//! An index over a journal, for tests.

use std::fs::{self, File};
use std::path::PathBuf;

use super::super::{Batch, Index, IndexOpening, RetentionNeeds};
use crate::ids::ObjectId;
use crate::journal::{Address, Journal};
use crate::layout::Layout;
use crate::record::Record;
use ckptfs_api::CheckpointId;

pub struct Bench {
    pub dir: tempfile::TempDir,
    pub layout: Layout,
    pub journal: Journal,
}

impl Bench {
    pub fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::open(File::open(dir.path()).unwrap(), true).unwrap();
        let (journal, _) = Journal::open(&layout).unwrap();
        Bench {
            dir,
            layout,
            journal,
        }
    }

    pub fn index(&self) -> (Index, IndexOpening) {
        Index::open(&self.layout).unwrap()
    }

    /// Returns the directory of the index.
    pub fn files(&self) -> PathBuf {
        self.dir.path().join(".ckptfs/index")
    }

    /// Returns the file of a run.
    pub fn run(&self, number: u64) -> PathBuf {
        self.files().join(format!("runs/{number}"))
    }

    /// Returns the number of indexes set aside.
    pub fn asides(&self) -> usize {
        let names = fs::read_dir(self.dir.path().join(".ckptfs")).unwrap();
        names
            .map(|entry| entry.unwrap().file_name())
            .filter(|name| name.to_string_lossy().starts_with("index.bad-"))
            .count()
    }

    /// Appends records to the journal and applies them in batches of `size`; returns their
    /// addresses.
    pub fn put(&self, index: &Index, records: &[Record], size: usize) -> Vec<Address> {
        let mut places = Vec::new();
        let mut batch = Batch::after(index.catalogue().last_checkpoint().unwrap());
        for records in records.chunks(size) {
            for (record, at) in records.iter().zip(self.journal.append(records).unwrap()) {
                batch.add(at, record).unwrap();
                places.push(at);
            }
            index.apply(&mut batch).unwrap();
            assert!(batch.is_empty());
        }
        places
    }

    /// As [`Bench::put`], in one batch.
    pub fn take(&self, index: &Index, records: &[Record]) -> Vec<Address> {
        self.put(index, records, records.len().max(1))
    }

    /// Compacts away records before `upto` that these checkpoints do not need; returns whether it
    /// did.
    pub fn compact_upto(
        &self,
        index: &Index,
        kept: impl IntoIterator<Item = u64>,
        is_gone: &dyn Fn(ObjectId) -> bool,
        upto: Address,
    ) -> bool {
        let kept: Vec<CheckpointId> = kept.into_iter().map(CheckpointId).collect();
        let needs = RetentionNeeds {
            kept: &kept,
            is_gone,
            upto,
        };
        index.compact(&needs, &|| false).unwrap()
    }

    /// As [`Bench::compact_upto`], for the whole journal, as if all objects were removed.
    pub fn compact(&self, index: &Index, kept: impl IntoIterator<Item = u64>) -> bool {
        self.compact_upto(index, kept, &|_| true, self.journal.position())
    }
}
