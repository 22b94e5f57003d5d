//! The history of a directory that is not mounted, for reading.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::Keep;
use super::api::who::{ByProcess, OnlyBy, OpenAtCut, RestoredOnly};
use super::api::{
    AuditEvent, Change, CheckpointInfo, CheckpointOptions, DedupOptions, DedupReport, DuOptions, DuReport, GcOptions, GcReport, OperationInfo, Query,
    RestoreOptions, Restored, Retag, StateName, Stats, Status, TreePath, UndoOptions, Undone, VerbError, VerbResult, Verbs, Verified, VerifyOptions,
    VersionInfo,
};
use super::error;
use super::export::parts::{ExportAsk, ExportPart};
use super::import::{ImportAsk, ImportPart};
use crate::history::select::{Known, Unselected, select};
use crate::history::view::State;
use crate::store::ids::CheckpointId;
use crate::store::journal::Journal;
use crate::store::layout::Layout;
use crate::store::record::{Actor, Kept, Record};
use crate::store::{self, StoreError};

/// The checkpoints of a store, read once. It answers `log`, `find`, `show` and `audit`; everything else needs a mount, or is [`super::check`].
pub struct Offline {
    /// Oldest first.
    checkpoints: Vec<Kept>,
    root: OwnedFd,
}

impl Offline {
    /// Reads the store in the directory `root`. Takes no lock and writes nothing.
    ///
    /// # Errors
    /// In words for a person: there is none, it is damaged or of a newer format.
    pub fn open(root: impl AsFd) -> VerbResult<Offline> {
        let root = root.as_fd().try_clone_to_owned().map_err(|cause| error::failed("the directory cannot be opened", cause.into()))?;
        let checkpoints = store::read_checkpoints(&root).map_err(unreadable)?;
        Ok(Offline { checkpoints, root })
    }

    /// As a daemon would tell it; what is damaged is not told.
    fn open_at(&self, id: CheckpointId) -> Option<OpenAtCut> {
        let layout = Layout::open_existing_readonly(&self.root).ok()?;
        let (journal, _) = Journal::open(&layout).ok()?;
        let found = journal.scan(journal.start(), None).map_while(Result::ok).find_map(|(_, record)| match record {
            Record::OpenAt { id: of, open, more } if of == id => Some((open, more)),
            _ => None,
        });
        found.map(|(open, more)| super::who::open_at_cut(open, more))
    }
}

fn unreadable(cause: StoreError) -> VerbError {
    match cause {
        StoreError::NewerFormat { .. } | StoreError::UnknownFeature { .. } => VerbError {
            code: "newer-format".into(),
            message: format!("the store cannot be read: {cause}"),
            hint: Some("use the newer ckptfs that made this store".into()),
        },
        cause => error::failed("the store cannot be read", cause.errno()),
    }
}

fn not_mounted<T>() -> VerbResult<T> {
    Err(VerbError { code: "not-mounted".into(), message: "the directory is not mounted".into(), hint: Some("mount it: ckptfs mount DIR".into()) })
}

impl Verbs for Offline {
    fn checkpoint(&self, _: &Actor, _: &CheckpointOptions) -> VerbResult<CheckpointInfo> {
        not_mounted()
    }

    fn status(&self) -> VerbResult<Status> {
        not_mounted()
    }

    fn stats(&self) -> VerbResult<Stats> {
        not_mounted()
    }

    fn log(&self) -> VerbResult<Vec<CheckpointInfo>> {
        Ok(self.checkpoints.iter().rev().map(CheckpointInfo::new).collect())
    }

    fn show(&self, state: &StateName) -> VerbResult<CheckpointInfo> {
        let unselected = |why| {
            let known: Vec<String> = self.checkpoints.iter().flat_map(|kept| [vec![kept.id.to_string()], kept.tags.clone()].concat()).collect();
            error::unselected(&state.0, why, &known)
        };
        let known: Vec<Known<'_>> =
            self.checkpoints.iter().map(|kept| Known { id: kept.id, tags: &kept.tags, state_ns: kept.state_ns(), reason: &kept.reason }).collect();
        let id = match select(&state.0, &known).map_err(unselected)? {
            State::At(id) => id,
            State::Live => return Err(unselected(Unselected::Unknown)),
        };
        self.checkpoints.iter().find(|kept| kept.id == id).map(CheckpointInfo::new).ok_or_else(|| unselected(Unselected::Unknown)).map(|info| {
            let open_at_cut = self.open_at(id);
            CheckpointInfo { open_at_cut, ..info }
        })
    }

    fn find(&self, query: &Query) -> VerbResult<Vec<CheckpointInfo>> {
        super::find::find_offline(&self.checkpoints, query)
    }

    fn retag(&self, _: &Actor, _: &StateName, _: &Retag) -> VerbResult<CheckpointInfo> {
        not_mounted()
    }

    fn pin(&self, _: &Actor, _: &StateName, _: Option<&str>) -> VerbResult<CheckpointInfo> {
        not_mounted()
    }

    fn versions(&self, _: &TreePath) -> VerbResult<Vec<VersionInfo>> {
        not_mounted()
    }

    fn diff(&self, _: &StateName, _: Option<&StateName>) -> VerbResult<Vec<Change>> {
        not_mounted()
    }

    fn diff_sized(&self, _: &StateName, _: Option<&StateName>) -> VerbResult<Vec<Change>> {
        not_mounted()
    }

    fn restore(&self, _: &Actor, _: &RestoreOptions) -> VerbResult<Restored> {
        not_mounted()
    }

    fn by_process(&self, _: Option<&StateName>, _: Option<&StateName>) -> VerbResult<ByProcess> {
        not_mounted()
    }

    fn restore_only_by(&self, _: &Actor, _: &OnlyBy) -> VerbResult<RestoredOnly> {
        not_mounted()
    }

    fn delete(&self, _: &Actor, _: &StateName, _: bool) -> VerbResult<CheckpointInfo> {
        not_mounted()
    }

    fn operations(&self, _: Option<u64>, _: usize) -> VerbResult<Vec<OperationInfo>> {
        not_mounted()
    }

    fn undo(&self, _: &Actor, _: &UndoOptions) -> VerbResult<Undone> {
        not_mounted()
    }

    fn verify(&self, _: &VerifyOptions) -> VerbResult<Verified> {
        not_mounted()
    }

    fn du(&self, _: &DuOptions) -> VerbResult<DuReport> {
        not_mounted()
    }

    fn gc(&self, _: &Actor, _: &GcOptions) -> VerbResult<GcReport> {
        not_mounted()
    }

    fn dedup(&self, _: &DedupOptions, _: &mut Vec<Arc<File>>) -> VerbResult<DedupReport> {
        not_mounted()
    }

    fn audit(&self) -> VerbResult<Vec<AuditEvent>> {
        let layout = Layout::open_existing_readonly(&self.root).map_err(unreadable)?;
        let (journal, _) = Journal::open(&layout).map_err(unreadable)?;
        super::audit::events(&journal)
    }

    fn export(&self, _: &ExportAsk, _: &mut Vec<Arc<File>>) -> VerbResult<ExportPart> {
        not_mounted()
    }

    fn import(&self, _: &Actor, _: &ImportAsk, _: &mut Vec<Arc<File>>) -> VerbResult<ImportPart> {
        not_mounted()
    }

    fn unmount(&self, _: bool, _: Option<Keep>) -> VerbResult<()> {
        not_mounted()
    }
}
