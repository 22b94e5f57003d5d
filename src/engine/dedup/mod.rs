//! `dedup`: deduplication of content.
//!
//! Files with the same hash (captured versions of closed epochs and, if requested, live files)
//! share their extents. The kernel compares before it shares ([`crate::store::extents`]), so no
//! hash, index or concurrent writer can change a byte, and no time changes. Where extents cannot be
//! shared, captured clones become hard links of one file (`store::link`).
//!
//! Like `gc` it works in slices: the client repeats the request, cancels by not repeating it, and
//! keeps the result so far. Hashes are persisted in the journal (captured) or the index (live), so
//! the next run continues from there. Its I/O has idle priority. It takes no lock that blocks
//! changes.
//!
//! A run lists the files, hashes those that share their size with another, then shares extents.
//! With `keep` it remains after it is finished, for deduplication across projects: `contents` lists
//! its files, and `files` returns descriptors.

mod files;
mod run;

use std::fs::File;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

pub use self::files::why_of;
pub(super) use self::run::DedupRun;
pub use super::api::Count;
use super::api::{TreePath, VerbResult};
use super::checkpoint::Checkpoints;
use super::error;
use super::runs::{PART_TIME, SlicedRuns};
use crate::live::Live;
pub use crate::live::drop_kept;
use crate::store::hash::Hash;
use crate::sys::{self, FILES_AT_ONCE};

/// Limit of excluded files per part.
const PART_LEFT_MAX: usize = 1000;
/// Limit of contents per reply.
const CONTENTS_AT_ONCE: usize = 4096;

/// Options of `dedup`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DedupOptions {
    /// Only report what would be shared.
    #[serde(default)]
    pub dry_run: bool,
    /// Include live files.
    #[serde(default)]
    pub live: bool,
    /// Number of hashing threads; 0 means one.
    #[serde(default)]
    pub threads: usize,
    /// Skip files of fewer bytes.
    #[serde(default)]
    pub min_size: u64,
    /// Hash files of unique size also, and keep the finished run.
    #[serde(default)]
    pub keep: bool,
    /// Continue the run with this number, from an earlier reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<u64>,
    /// Return the contents of a kept run from this number on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contents: Option<u64>,
    /// Return read-only descriptors of these files of a kept run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<u64>,
}

/// Reason to exclude a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExcludeReason {
    /// Smaller than requested.
    TooSmall,
    /// Its content does not match its hash: it has changed, or never did.
    Differs,
    /// Deleted since the run began.
    Gone,
    /// Opening or sharing is not permitted.
    NotPermitted,
    /// Unreadable.
    Unreadable,
    /// On another filesystem.
    OtherFilesystem,
    /// The filesystem cannot share its extents.
    NoReflink,
    /// Open for writing but unchanged so far; its extents are needed to detect a change.
    InUse,
    /// The shared file has reached the limit of hard links.
    TooManyLinks,
}

/// An excluded file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExcludedFile {
    /// Path in the tree, or of the object in `.ckptfs`.
    pub path: TreePath,
    /// A captured version.
    pub captured: bool,
    /// The reason.
    pub why: ExcludeReason,
    /// The system's error message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Stage of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DedupStage {
    /// Lists files.
    #[default]
    Listing,
    /// Hashes; progress in bytes.
    Hashing,
    /// Shares extents; progress in files.
    Sharing,
}

/// A file of a finished run that others can share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// Number in the run.
    pub number: u64,
    /// Size in bytes.
    pub size: u64,
    /// BLAKE3, in hexadecimal.
    pub hash: String,
    /// Path in the tree, or of the object in `.ckptfs`.
    pub path: TreePath,
    /// A captured version.
    pub captured: bool,
}

impl Content {
    /// Returns the content with this hash.
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

/// Result of a run or of its dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DedupReport {
    /// Number of the run; repeat the request with it until `finished`.
    pub run: u64,
    /// The run is complete.
    pub finished: bool,
    /// Current stage.
    pub stage: DedupStage,
    /// Progress of the stage.
    pub done: u64,
    /// Value of `done` at its end.
    pub total: u64,
    /// This was a dry run.
    pub dry_run: bool,
    /// Captured versions examined.
    pub captured: Count,
    /// Live files examined.
    pub live: Count,
    /// Files read for hashing.
    pub hashed: Count,
    /// Files with unique content.
    pub unique: Count,
    /// Files whose extents the others share.
    pub sources: Count,
    /// Files that shared them before.
    pub already: Count,
    /// Files that share them now.
    pub shared: Count,
    /// Those that became hard links, where extents cannot be shared.
    pub linked: Count,
    /// Bytes freed, unless other files share them.
    pub freed_bytes: u64,
    /// Number of excluded files by reason.
    pub left: std::collections::BTreeMap<ExcludeReason, u64>,
    /// Excluded files not yet reported by an earlier part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<ExcludedFile>,
    /// Reply to `contents`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contents: Vec<Content>,
    /// Reply to `files`: the numbers whose descriptors were passed, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<u64>,
}

/// The runs. See the module.
pub(super) struct Dedup {
    pub(super) live: Arc<Live>,
    checkpoints: Arc<Checkpoints>,
    dedup_runs: SlicedRuns<Box<DedupRun>>,
}

impl Dedup {
    pub(super) fn new(checkpoints: Arc<Checkpoints>) -> Dedup {
        Dedup {
            live: Arc::clone(&checkpoints.live),
            checkpoints,
            dedup_runs: SlicedRuns::default(),
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
            let run = DedupRun::new(self, options).map_err(error::history_unread)?;
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

    /// Works for a time slice, in a thread with idle I/O priority.
    fn work_idle(&self, run: &mut DedupRun) -> VerbResult<()> {
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
        run: &mut DedupRun,
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
