//! `dedup`: the same content once.
//!
//! Files with the same hash, captured versions of closed epochs and (if asked) live ones, come to
//! share their extents; the kernel compares before it shares ([`crate::store::extents`]), so no
//! hash, index or writer can make it change a byte, and no time changes. Where files cannot share
//! extents, captured clones become names of one file (`store::link`).
//!
//! As `gc` it works for a moment and is asked again: who stops asking stops it, and what was shared
//! stays so. What was hashed is on record (captured) or in the index (live), so the next run goes
//! on from there. Its reads and writes wait until nobody else's do. It takes no lock that a change
//! waits for.
//!
//! A run lists, then hashes those of which another has the same size, then shares. Asked with
//! `keep`, it stays when it is finished, for whoever wants to share with another project:
//! `contents` tells what it has, and `files` gives descriptors.

mod files;
mod run;

use std::fs::File;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

pub use self::files::why_of;
pub(super) use self::run::Run;
pub use super::api::Count;
use super::api::{TreePath, VerbResult};
use super::checkpoint::Checkpoints;
use super::error;
use super::runs::{PART_TIME, Runs};
use crate::live::Live;
pub use crate::live::drop_kept;
use crate::store::hash::Hash;
use crate::sys::{self, FILES_AT_ONCE};

/// What is left out that one part tells.
const PART_LEFT_MAX: usize = 1000;
/// Contents that one answer tells.
const CONTENTS_AT_ONCE: usize = 4096;

/// What `dedup` is asked to do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DedupOptions {
    /// Only tell what would be shared.
    #[serde(default)]
    pub dry_run: bool,
    /// The live files too.
    #[serde(default)]
    pub live: bool,
    /// Threads that hash; 0 and 1: one.
    #[serde(default)]
    pub threads: usize,
    /// Leave out what has fewer bytes.
    #[serde(default)]
    pub min_size: u64,
    /// Hash also what no other file here has the size of, and stay when finished.
    #[serde(default)]
    pub keep: bool,
    /// Go on with the run of this number, which an answer gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<u64>,
    /// Of a finished run that stayed: its contents, from this one on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contents: Option<u64>,
    /// Of a finished run that stayed: descriptors of these, for reading.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<u64>,
}

/// Why a file was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeftWhy {
    /// It has fewer bytes than was asked for.
    TooSmall,
    /// It does not hold what its hash says: it has changed, or never did.
    Differs,
    /// It was there when the run began.
    Gone,
    /// It may not be opened, or not be shared.
    NotPermitted,
    /// It cannot be read.
    Unreadable,
    /// It lies on another filesystem.
    OtherFilesystem,
    /// The filesystem cannot share what it holds.
    NoReflink,
    /// Somebody has it open for writing, and it has not changed yet: whether it does is told by
    /// where its data is.
    InUse,
    /// What it shares already has all the names that it can have.
    TooManyLinks,
}

/// A file that was left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Its path in the tree, or that of the object in `.ckptfs`.
    pub path: TreePath,
    /// It is a captured version.
    pub captured: bool,
    /// Why.
    pub why: LeftWhy,
    /// What the system said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What a run does at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DedupStage {
    /// It looks which files there are.
    #[default]
    Listing,
    /// It hashes; the unit is a byte.
    Hashing,
    /// It shares; the unit is a file.
    Sharing,
}

/// A file of a finished run, for others to share with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// Its number in the run.
    pub number: u64,
    /// Bytes.
    pub size: u64,
    /// BLAKE3, in hexadecimal.
    pub hash: String,
    /// Its path in the tree, or that of the object in `.ckptfs`.
    pub path: TreePath,
    /// It is a captured version.
    pub captured: bool,
}

impl Content {
    /// What has this hash.
    pub fn new(number: u64, size: u64, hash: Hash, path: TreePath, captured: bool) -> Content {
        Content {
            number,
            size,
            hash: blake3::Hash::from_bytes(hash).to_hex().to_string(),
            path,
            captured,
        }
    }
}

/// What a run has done, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DedupReport {
    /// Its number: ask again with it until `finished`.
    pub run: u64,
    /// Nothing is left to do.
    pub finished: bool,
    /// What it does.
    pub stage: DedupStage,
    /// How far it is with that.
    pub done: u64,
    /// How much there is.
    pub total: u64,
    /// It was only asked what would be shared.
    pub dry_run: bool,
    /// Captured versions that were looked at.
    pub captured: Count,
    /// Live files that were looked at.
    pub live: Count,
    /// Those of them that were read to be hashed.
    pub hashed: Count,
    /// Those of which nothing else has the content.
    pub unique: Count,
    /// Those that the others with the same content share.
    pub sources: Count,
    /// Those that shared it already.
    pub already: Count,
    /// Those that share it now.
    pub shared: Count,
    /// Those of them that are another name of a file now, for the filesystem shares nothing else.
    pub linked: Count,
    /// What came free with that, if nobody else holds it.
    pub freed_bytes: u64,
    /// Those that were left out, by why.
    pub left: std::collections::BTreeMap<LeftWhy, u64>,
    /// Which those are, as far as no part before has told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
    /// What was asked for by `contents`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contents: Vec<Content>,
    /// Of what was asked for by `files`: those of which a descriptor came, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<u64>,
}

/// Runs under way. See the module.
pub(super) struct Dedup {
    pub(super) live: Arc<Live>,
    checkpoints: Arc<Checkpoints>,
    dedup_runs: Runs<Box<Run>>,
}

impl Dedup {
    pub(super) fn new(checkpoints: Arc<Checkpoints>) -> Dedup {
        Dedup {
            live: Arc::clone(&checkpoints.live),
            checkpoints,
            dedup_runs: Runs::default(),
        }
    }

    pub(super) fn dedup_for_a_while(
        &self,
        options: &DedupOptions,
        files: &mut Vec<Arc<File>>,
    ) -> VerbResult<DedupReport> {
        if options.live && !self.live.reflink() {
            return Err(error::hinted(
                error::Code::NoReflink,
                "live files cannot share their data on this filesystem",
                "captured versions can be names of one file: ckptfs gc --dedup, without --live",
            ));
        }
        let mut run = self.dedup_runs.resume(options.run, || {
            let run = Run::new(self, options).map_err(error::history_unread)?;
            Ok(Box::new(run))
        })?;
        let report = if run.is_finished() {
            Ok(self.tell_kept(&mut run, options, files))
        } else {
            self.work_idle(&mut run).map(|()| run.tell())
        };
        let report = report?;
        if report.finished && !options.keep {
            if options.live && !options.dry_run {
                self.checkpoints.drop_kept();
            }
            return Ok(DedupReport {
                run: options.run.unwrap_or(0),
                ..report
            });
        }
        let run = self.dedup_runs.put(options.run, run);
        Ok(DedupReport { run, ..report })
    }

    /// Works for a moment, in a thread whose reads and writes come after everybody else's.
    fn work_idle(&self, run: &mut Run) -> VerbResult<()> {
        let work = || {
            if let Err(errno) = sys::set_thread_io_idle() {
                tracing::debug!(%errno, "sharing is not idle");
            }
            let until = Instant::now() + PART_TIME;
            while Instant::now() < until && run.left_untold() < PART_LEFT_MAX {
                if !run.step(self)? {
                    break;
                }
            }
            Ok(())
        };
        let worked = std::thread::scope(|scope| {
            let spawned = std::thread::Builder::new()
                .name("dedup".into())
                .spawn_scoped(scope, work);
            spawned
                .map_err(error::failed::<std::io::Error>(
                    "a thread cannot be started",
                ))
                .map(std::thread::ScopedJoinHandle::join)
        })?;
        let failed = error::failed::<crate::sys::Errno>("the files cannot be read");
        match worked {
            Ok(done) => done.map_err(failed),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    fn tell_kept(
        &self,
        run: &mut Run,
        options: &DedupOptions,
        files: &mut Vec<Arc<File>>,
    ) -> DedupReport {
        let mut report = run.tell();
        if let Some(from) = options.contents {
            report.contents = run.contents(from, CONTENTS_AT_ONCE);
        }
        for number in options.files.iter().take(FILES_AT_ONCE) {
            if let Some(file) = run.open(self, *number) {
                files.push(file);
                report.files.push(*number);
            }
        }
        report
    }
}
