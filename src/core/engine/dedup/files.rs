//! The files of a run.

use std::fs::File;
use std::sync::Arc;

use super::Dedup;
use crate::history::present::Trail;
use ckptfs_api::{ExcludeReason, TreePath};
use ckptfs_store::check::object_path;
use ckptfs_store::dedup::{DedupFiles, ShareMethod};
use ckptfs_store::hash::Hash;
use ckptfs_store::ids::{ObjectId, ObjectOrigin};
use ckptfs_store::index::contents::FileSignature;
use ckptfs_sys::{Errno, SysResult};

/// Location of a file.
#[derive(Clone, Debug)]
pub(super) enum DedupLocation {
    Captured(ObjectId),
    Live(Arc<Trail>),
}

/// A file of a run.
#[derive(Clone, Debug)]
pub(super) struct DedupFile {
    pub(super) place: DedupLocation,
    pub(super) size: u64,
    pub(super) hash: Option<Hash>,
    /// For a live file: its attributes when it was listed.
    pub(super) look: Option<FileSignature>,
    /// Excluded from the run.
    pub(super) left: bool,
}

impl DedupLocation {
    pub(super) fn is_captured(&self) -> bool {
        matches!(self, DedupLocation::Captured(_))
    }

    pub(super) fn path(&self) -> TreePath {
        match self {
            DedupLocation::Captured(object) => TreePath(object_path(*object).into_bytes()),
            DedupLocation::Live(trail) => TreePath(trail.path()),
        }
    }
}

impl DedupFile {
    pub(super) fn open(&self, dedup: &Dedup) -> SysResult<Arc<File>> {
        match &self.place {
            DedupLocation::Captured(object) => dedup
                .timeline()
                .store()
                .layers
                .open(*object)
                .map(Arc::new)
                .map_err(|error| error.errno()),
            // Sharing would change the extents, by which such a file is recognized as unchanged
            // since its capture.
            DedupLocation::Live(trail)
                if dedup
                    .timeline()
                    .epochs
                    .data_now(trail.slot)
                    .is_some_and(|data| data.provisional) =>
            {
                Err(Errno::EBUSY)
            }
            DedupLocation::Live(trail) => dedup.live.inodes.open_quietly(trail).map(Arc::new),
        }
    }
}

/// Returns the reason to exclude a file after this error.
pub fn why_of(errno: Errno) -> ExcludeReason {
    match errno {
        Errno::ENOENT | Errno::ESTALE => ExcludeReason::Gone,
        Errno::EACCES | Errno::EPERM => ExcludeReason::NotPermitted,
        Errno::EXDEV => ExcludeReason::OtherFilesystem,
        Errno::EOPNOTSUPP | Errno::ENOTTY | Errno::ENOSYS => ExcludeReason::NoReflink,
        Errno::EMLINK => ExcludeReason::TooManyLinks,
        Errno::EBUSY => ExcludeReason::InUse,
        _ => ExcludeReason::Unreadable,
    }
}

/// Access to the files of a run for [`ckptfs_store::dedup`].
pub(super) struct Opener<'a> {
    pub(super) dedup: &'a Dedup,
    pub(super) items: &'a [DedupFile],
}

impl DedupFiles for Opener<'_> {
    fn open(&mut self, number: usize) -> SysResult<Arc<File>> {
        self.items
            .get(number)
            .ok_or(Errno::ENOENT)?
            .open(self.dedup)
    }

    fn way(&self, source: usize, target: usize) -> ShareMethod {
        match (
            self.dedup.live.reflink(),
            self.clone_at(source),
            self.clone_at(target),
        ) {
            (true, _, _) => ShareMethod::Extents,
            (false, Some(_), Some(_)) => ShareMethod::Link,
            (false, _, _) => ShareMethod::Never,
        }
    }

    fn link(&mut self, source: usize, target: usize) -> SysResult<bool> {
        let (Some(source), Some(target)) = (self.clone_at(source), self.clone_at(target)) else {
            return Err(Errno::EOPNOTSUPP);
        };
        self.dedup.timeline().store().link_same(source, target)
    }

    /// Only a clone can become a hard link of another.
    fn rank(&self, number: usize) -> u8 {
        u8::from(!self.dedup.live.reflink() && self.clone_at(number).is_some())
    }
}

impl Opener<'_> {
    fn clone_at(&self, number: usize) -> Option<ObjectId> {
        match self.items.get(number).map(|item| &item.place) {
            Some(DedupLocation::Captured(object)) if object.origin == ObjectOrigin::Cloned => {
                Some(*object)
            }
            _ => None,
        }
    }
}
