//! `dedup`: deduplication of content.
//!
//! Files with the same hash (captured versions of closed epochs and, if requested, live files)
//! share their extents. The kernel compares before it shares ([`ckptfs_store::extents`]), so no
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

pub use self::files::why_of;
pub(super) use self::run::DedupRun;
use super::checkpoint::Checkpoints;
use super::error;
use super::runs::{PART_TIME, SlicedRuns};
use crate::live::Live;
pub use crate::live::drop_kept;
pub use ckptfs_api::Count;
use ckptfs_api::{DedupOptions, DedupReport, VerbResult};
use ckptfs_sys::{self as sys, FILES_AT_ONCE};

/// Limit of excluded files per part.
const PART_LEFT_MAX: usize = 1000;
/// Limit of contents per reply.
const CONTENTS_AT_ONCE: usize = 4096;

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
        let failed = error::failed::<ckptfs_sys::Errno>("the files cannot be read");
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
