//! The verbs that people use.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Engine;
use super::Keep;
use super::api::who::{ByProcess, OnlyBy, RestoredOnly};
use super::api::{
    AuditEvent, Change, ChangeKind, CheckpointInfo, CheckpointOptions, DaemonInfo, DedupOptions, DedupReport, DuOptions, DuReport, GcOptions,
    GcReport, OperationInfo, Query, RestoreOptions, Restored, Retag, SealerInfo, StateName, Stats, Status, TreePath, UndoOptions, Undone, VerbError,
    VerbResult, Verbs, Verified, VerifyOptions, VersionInfo, Why,
};
use super::error;
use super::export::parts::{ExportAsk, ExportPart};
use super::import::{ImportAsk, ImportPart};
use crate::history::diff::{Comparison, Difference, Differs, ordered};
use crate::history::present::Present;
use crate::history::select::Unselected;
use crate::history::touched::Touched;
use crate::history::view::{State, View};
use crate::live::SealMode;
use crate::store::ids::CheckpointId;
use crate::store::record::{Actor, Reason};
use crate::sys::{self, Errno, Kind, SysResult};

/// Times that a comparison with the live tree is tried again when the tree changes under it.
const COMPARE_TRIES: u32 = 3;

impl Engine {
    /// What a person calls a checkpoint by.
    pub(super) fn state_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.timeline().checkpoints().into_iter().map(|checkpoint| checkpoint.id.to_string()).collect();
        names.extend(self.timeline().tags().into_iter().map(|(tag, _)| tag));
        if self.timeline().newest(1, |checkpoint| checkpoint.reason.is_auto()).len() == 1 {
            names.push("auto".into());
        }
        if self.timeline().latest().is_some() {
            names.push("latest".into());
        }
        names
    }

    pub(super) fn state(&self, name: &StateName) -> VerbResult<State> {
        self.timeline().select(&name.0).map_err(|why| match why {
            Unselected::Unknown => self.no_checkpoint(&name.0),
            why => error::unselected(&name.0, why, &self.state_names()),
        })
    }

    /// The checkpoint that is meant.
    pub(super) fn checkpoint_id(&self, name: &StateName) -> VerbResult<CheckpointId> {
        self.is_checkpoint(name, self.state(name)?)
    }

    /// As [`Engine::checkpoint_id`], for what changes or deletes something: the beginning of a tag is not enough.
    pub(super) fn whole_id(&self, name: &StateName) -> VerbResult<CheckpointId> {
        match self.timeline().select_whole(&name.0) {
            Ok(state) => self.is_checkpoint(name, state),
            Err(why @ Unselected::Beginning(_)) => Err(error::unselected(&name.0, why, &[])),
            Err(_) => self.checkpoint_id(name),
        }
    }

    fn is_checkpoint(&self, name: &StateName, state: State) -> VerbResult<CheckpointId> {
        match state {
            State::At(id) => Ok(id),
            State::Live => Err(error::unknown_state(&name.0, &self.state_names())),
        }
    }

    /// What differs from `from` to `to`, below `path`.
    pub(super) fn compare(&self, from: State, to: State, path: &[u8]) -> SysResult<Vec<Change>> {
        let (older, newer, _) = ordered(from, to);
        let State::At(after) = older else { return Ok(Vec::new()) };
        if older == newer {
            return Ok(Vec::new());
        }
        let upto = match newer {
            State::At(id) => Some(id),
            State::Live => None,
        };
        self.compare_touched(&*self.live, (from, to), path, &self.touched(after, upto)?, true)
    }

    /// As [`Engine::compare`] of the whole tree, and what cannot be told because it was changed behind our back.
    pub(super) fn compare_all(&self, from: State, to: State) -> SysResult<Vec<Change>> {
        let mut changes = self.compare(from, to, b"")?;
        changes.extend(self.unseen_between(from, to)?);
        changes.sort_by(|a, b| a.path.cmp(&b.path));
        changes.dedup_by(|a, b| a.path == b.path);
        Ok(changes)
    }

    /// What was recorded after a checkpoint, with every name of the inodes in it.
    pub(super) fn touched(&self, after: CheckpointId, upto: Option<CheckpointId>) -> SysResult<Touched> {
        let mut touched = self.timeline().touched(after, upto)?;
        touched.add_unseen_links(self.timeline(), &self.view(State::At(after)))?;
        Ok(touched)
    }

    /// As [`Engine::compare`], where it is known what was recorded between the two. `present`: how the live tree is looked at; `times`: a file of another time
    /// differs.
    pub(super) fn compare_touched(
        &self,
        present: &dyn Present,
        (from, to): (State, State),
        path: &[u8],
        touched: &Touched,
        times: bool,
    ) -> SysResult<Vec<Change>> {
        let (older, newer, backwards) = ordered(from, to);
        let view = |state| View::new(self.timeline(), present, state);
        let comparison = Comparison { from: view(older), to: view(newer), touched, times };
        let mut tries = 0;
        let found = loop {
            match comparison.below(path) {
                Err(Errno::ESTALE | Errno::ENOENT) if tries < COMPARE_TRIES => tries += 1,
                other => break other?,
            }
        };
        let mut changes: Vec<Change> = found.into_iter().map(|differs| change(differs, backwards)).collect();
        changes.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(changes)
    }

    /// The size of a path, if it is a file in that state and known.
    fn size_of(&self, state: State, path: &TreePath) -> Option<u64> {
        let view = self.view(state);
        let (child, trail) = view.walk(&path.0).ok()??;
        (child.kind == Kind::File).then(|| view.attr(&trail).ok()).flatten().map(|attr| attr.stat.size)
    }

    /// Who does reads, and who does writes: `passthrough` or `daemon`.
    pub fn io(&self) -> (&'static str, &'static str) {
        (self.io_name(), if self.config.strict_writes { "daemon" } else { self.io_name() })
    }

    /// What somebody should know.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.warnings.lock().clone();
        if self.timeline().store().journal.is_latched() {
            let next = "unmount, run `ckptfs fsck`, and mount again";
            warnings.push(format!(
                "the journal or a version cannot be written: changes to what checkpoints can see fail with EIO until the next mount; {next}"
            ));
        }
        if let Some(why) = self.timeline().index_trouble() {
            let refused = if self.timeline().takes_checkpoints() { "will soon be" } else { "are" };
            warnings.push(format!(
                "the index failed ({why}): new checkpoints {refused} refused until there is room, or until the next mount makes it anew"
            ));
        }
        if self.timeline().store().index.is_in_memory() {
            warnings.push("the filesystem was full: the index is in memory until the next mount, which takes longer for it; free some space".into());
        }
        warnings.extend(self.hooks.as_ref().and_then(super::hooks::Hooks::warning));
        warnings.extend(self.store_file.look(&self.store_dir).1);
        let over = self.over_bytes.load(std::sync::atomic::Ordering::Relaxed);
        if over > 0 {
            warnings.push(format!(
                "the history takes {over} bytes more than retention.max-size: the rest is pinned, tagged or the newest; `ckptfs du` tells what takes it"
            ));
        }
        if self.succession.as_ref().is_some_and(|after| !after.is_held()) {
            warnings.push("the holder of the mount has died: if this daemon dies too, the mount is dead (ckptfs mount repairs it)".into());
        }
        warnings
    }

    fn daemon_info(&self) -> DaemonInfo {
        let after = self.succession.as_ref();
        DaemonInfo {
            pid: std::process::id(),
            started: self.started.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            holder: after.filter(|after| after.is_held()).map(|after| after.holder),
            takeovers: after.map_or(0, |after| after.takeovers),
            taken_over: after.and_then(|after| after.taken_over.clone()),
        }
    }

    fn sealer_info(&self) -> SealerInfo {
        let stats = self.live.seal_stats();
        let mode = match self.config.seal {
            SealMode::Off => "off",
            SealMode::Hash => "hash",
            SealMode::Full => "full",
        };
        SealerInfo { mode: mode.to_owned(), caught_up: stats.caught_up, objects: stats.objects, bytes: stats.bytes, read: stats.read }
    }

    fn io_name(&self) -> &'static str {
        if self.live.passthrough() { "passthrough" } else { "daemon" }
    }
}

pub(super) fn change(differs: Differs, backwards: bool) -> Change {
    let kind = differs.kind;
    let (path, change, from) = match (differs.how, backwards) {
        (Difference::Added, false) | (Difference::Deleted, true) => (differs.path, ChangeKind::Added, None),
        (Difference::Deleted, false) | (Difference::Added, true) => (differs.path, ChangeKind::Deleted, None),
        (Difference::Modified, _) => (differs.path, ChangeKind::Modified, None),
        (Difference::TypeChanged, _) => (differs.path, ChangeKind::TypeChanged, None),
        (Difference::Renamed(from), false) => (differs.path, ChangeKind::Renamed, Some(TreePath(from))),
        (Difference::Renamed(from), true) => (from, ChangeKind::Renamed, Some(TreePath(differs.path))),
        (Difference::Unknown, _) => return Change::unknown(differs.path, kind, Why::Unreadable),
    };
    Change { from, ..Change::new(path, change, kind) }
}

impl Verbs for Engine {
    fn checkpoint(&self, by: &Actor, options: &CheckpointOptions) -> VerbResult<CheckpointInfo> {
        if let Some(newest) = self.timeline().base().filter(|_| options.if_changed)
            && let Some(checkpoint) = self.timeline().checkpoint(newest)
        {
            self.settle();
            let same = self.compare_all(State::At(newest), State::Live).map(|changes| changes.is_empty());
            if same.map_err(|errno| error::failed("the tree cannot be compared", errno))? {
                return Ok(CheckpointInfo { unchanged: true, ..CheckpointInfo::new(&checkpoint) });
            }
        }
        let reason = options.of_ns.map_or(Reason::Asked, |of_ns| Reason::Imported { of_ns });
        let made = self.checkpoint_with_hooks(by, options, reason)?;
        self.snapdir_changed();
        Ok(made)
    }

    fn status(&self) -> VerbResult<Status> {
        let failed = |errno| {
            let failed = error::failed("the tree cannot be compared", errno);
            let warnings = self.warnings();
            if warnings.is_empty() { failed } else { VerbError { hint: Some(warnings.join("; ")), ..failed } }
        };
        self.settle();
        let (latest, base) = (self.timeline().latest(), self.timeline().base());
        let dirty = match base {
            Some(id) => self.compare_all(State::At(id), State::Live).map_err(failed)?,
            None => Vec::new(),
        };
        let mut warnings = self.warnings();
        if let Some(id) = base {
            let unserved = self.changed_unserved(id).map_err(failed)?;
            if !unserved.is_empty() {
                warnings.push(format!(
                    "{} paths were changed while nothing was mounted, or past the mount: checkpoints before that cannot show them",
                    unserved.len()
                ));
            }
        }
        let (io, writes) = self.io();
        Ok(Status {
            mount: self.config.mount.clone(),
            backing: self.config.backing.clone(),
            store: self.config.backing.join(".ckptfs"),
            filesystem: self.config.filesystem.to_owned(),
            capture: if self.live.reflink() { "reflink" } else { "copy" }.to_owned(),
            io: io.to_owned(),
            writes: writes.to_owned(),
            daemon: self.daemon_info(),
            epoch: self.timeline().epoch().0,
            latest,
            base,
            checkpoints: self.timeline().checkpoint_count() as u64,
            dirty,
            shared: {
                let (files, bytes) = self.live.shared().get();
                super::dedup::Count { files, bytes }
            },
            absence: self.absence(),
            warnings,
            had_below: self.had_below.load(Ordering::Relaxed),
        })
    }

    fn stats(&self) -> VerbResult<Stats> {
        let memory = sys::own_memory().map_err(|errno| error::failed("the daemon's memory cannot be asked for", errno))?;
        let (io, writes) = self.io();
        Ok(Stats {
            mount: self.config.mount.clone(),
            daemon: self.daemon_info(),
            io: io.to_owned(),
            writes: writes.to_owned(),
            requests: self.counts.by_kind(),
            rss_bytes: memory.rss_bytes,
            threads: memory.threads,
            open_files: (self.live.open_handles() + self.past.open_handles()) as u64,
            inodes: self.live.known() as u64,
            past_inodes: self.past.known() as u64,
            announcing: self.announcer.is_at_work(),
            sealer: self.sealer_info(),
        })
    }

    fn log(&self) -> VerbResult<Vec<CheckpointInfo>> {
        Ok(self.timeline().checkpoints().iter().rev().map(CheckpointInfo::new).collect())
    }

    fn show(&self, state: &StateName) -> VerbResult<CheckpointInfo> {
        let id = self.checkpoint_id(state)?;
        let checkpoint = self.timeline().checkpoint(id).ok_or_else(|| error::unknown_state(&state.0, &self.state_names()))?;
        Ok(CheckpointInfo { open_at_cut: self.open_at(id)?, dropped: self.dropped_info(id)?, ..CheckpointInfo::new(&checkpoint) })
    }

    fn find(&self, query: &Query) -> VerbResult<Vec<CheckpointInfo>> {
        self.find_checkpoints(query)
    }

    fn retag(&self, by: &Actor, state: &StateName, retag: &Retag) -> VerbResult<CheckpointInfo> {
        let tagged = self.retag_checkpoint(by, state, retag)?;
        self.snapdir_changed();
        Ok(tagged)
    }

    fn pin(&self, by: &Actor, state: &StateName, reason: Option<&str>) -> VerbResult<CheckpointInfo> {
        self.pin_checkpoint(by, state, reason)
    }

    fn versions(&self, path: &TreePath) -> VerbResult<Vec<VersionInfo>> {
        self.version_infos(path)
    }

    fn diff(&self, from: &StateName, to: Option<&StateName>) -> VerbResult<Vec<Change>> {
        let from = self.state(from)?;
        let to = to.map_or(Ok(State::Live), |to| self.state(to))?;
        if from == State::Live || to == State::Live {
            self.settle();
        }
        self.compare_all(from, to).map_err(|errno| error::failed("the two states cannot be compared", errno))
    }

    fn diff_sized(&self, from: &StateName, to: Option<&StateName>) -> VerbResult<Vec<Change>> {
        let mut changes = self.diff(from, to)?;
        let (older, newer) = (self.state(from)?, to.map_or(Ok(State::Live), |to| self.state(to))?);
        for change in &mut changes {
            let before = change.from.as_ref().unwrap_or(&change.path);
            (change.old_size, change.size) = (self.size_of(older, before), self.size_of(newer, &change.path));
        }
        Ok(changes)
    }

    fn restore(&self, by: &Actor, options: &RestoreOptions) -> VerbResult<Restored> {
        self.restore_with_hooks(by, options)
    }

    fn by_process(&self, from: Option<&StateName>, to: Option<&StateName>) -> VerbResult<ByProcess> {
        self.changes_by(from, to)
    }

    fn restore_only_by(&self, by: &Actor, options: &OnlyBy) -> VerbResult<RestoredOnly> {
        self.restore_only(by, options)
    }

    fn delete(&self, by: &Actor, state: &StateName, now: bool) -> VerbResult<CheckpointInfo> {
        let deleted = if now { self.free_checkpoint(by, self.stored_id(state)?)? } else { self.delete_checkpoint(by, self.whole_id(state)?)? };
        self.snapdir_changed();
        Ok(deleted)
    }

    fn operations(&self, before: Option<u64>, limit: usize) -> VerbResult<Vec<OperationInfo>> {
        self.operation_infos(before, limit)
    }

    fn undo(&self, by: &Actor, options: &UndoOptions) -> VerbResult<Undone> {
        self.undo_operations(by, options)
    }

    fn verify(&self, options: &VerifyOptions) -> VerbResult<Verified> {
        self.verify_for_a_while(options)
    }

    fn du(&self, options: &DuOptions) -> VerbResult<DuReport> {
        self.du_for_a_while(options)
    }

    fn gc(&self, by: &Actor, options: &GcOptions) -> VerbResult<GcReport> {
        self.gc_for_a_while(by, options)
    }

    fn dedup(&self, options: &DedupOptions, files: &mut Vec<Arc<File>>) -> VerbResult<DedupReport> {
        self.dedup_for_a_while(options, files)
    }

    fn audit(&self) -> VerbResult<Vec<AuditEvent>> {
        super::audit::events(&self.timeline().store().journal)
    }

    fn export(&self, ask: &ExportAsk, files: &mut Vec<Arc<File>>) -> VerbResult<ExportPart> {
        self.export_part(ask, files)
    }

    fn import(&self, by: &Actor, ask: &ImportAsk, files: &mut Vec<Arc<File>>) -> VerbResult<ImportPart> {
        self.import_part(by, ask, files)
    }

    fn unmount(&self, lazy: bool, keep: Option<Keep>) -> VerbResult<()> {
        self.keep_at_end(keep);
        let unmounted = match sys::unmount(&self.config.mount, lazy) {
            Err(Errno::EPERM) => sys::fusermount_unmount(&self.config.mount, lazy),
            other => other,
        };
        unmounted.map_err(|errno| VerbError {
            code: if errno == Errno::EBUSY { "busy" } else { "io" }.into(),
            message: format!("{} cannot be unmounted: {errno}", self.config.mount.display()),
            hint: (errno == Errno::EBUSY).then(|| "leave the directory and close its files, or use --lazy".into()),
        })
    }
}
