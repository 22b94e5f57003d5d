//! mkdir(2), rmdir(2) and unlink(2) in `.snapshots`.

use super::Engine;
use super::checkpoint::check_tag;
use super::past::ViewEntryKind;
use super::request::{Caller, Entry, LookupResult};
use ckptfs_api::{CheckpointOptions, Reason};
use ckptfs_sys::{Errno, SysResult};

impl Engine {
    /// mkdir(2) in `.snapshots`: a checkpoint with that tag, for any program in any container. A
    /// worker that died may have made it, if the caller asks again. How many there may be says
    /// `Collector::check_quota`.
    pub(super) fn mkdir_snapshot(&self, caller: Caller, name: &[u8]) -> SysResult<Entry> {
        let name = std::str::from_utf8(name).map_err(|_| Errno::EINVAL)?;
        check_tag(name).map_err(|error| error.code.errno())?;
        if self.snapdir.second(name).is_some() {
            // The name is reserved for the checkpoint of that time.
            return Err(Errno::EINVAL);
        }
        if caller.again
            && let Some(id) = self
                .timeline()
                .catalogue
                .tagged(name)
                .filter(|id| self.timeline().catalogue.is_directory(*id, name))
            && let LookupResult::Found(entry) =
                self.snapdir.view_root(id, ViewEntryKind::Made, 1)?
        {
            return Ok(entry);
        }
        let mut one = self.asked_by_kernel.try_lock().ok_or(Errno::EBUSY)?;
        self.collector.check_quota(caller, &mut one)?;
        let options = CheckpointOptions {
            tags: vec![name.to_owned()],
            ..CheckpointOptions::default()
        };
        let made = self
            .checkpoints
            .checkpoint_with_hooks(
                &caller.actor(),
                &options,
                Reason::Directory {
                    name: name.to_owned(),
                },
            )
            .map_err(|error| error.code.errno())?;
        match self.snapdir.view_root(made.id, ViewEntryKind::Made, 1)? {
            LookupResult::Found(entry) => Ok(entry),
            LookupResult::Absent(_) => Err(Errno::EIO),
        }
    }

    /// rmdir(2) in `.snapshots`: the checkpoint is deleted.
    pub(super) fn rmdir_snapshot(&self, caller: Caller, name: &[u8]) -> SysResult<()> {
        let name = std::str::from_utf8(name).map_err(|_| Errno::ENOENT)?;
        let tagged = self
            .timeline()
            .catalogue
            .tagged(name)
            .filter(|id| self.timeline().catalogue.is_directory(*id, name));
        let id = self.snapdir.number(name).or(tagged);
        let id = id.ok_or(match self.snapdir.second(name) {
            // The time can denote several checkpoints in turn: only the number is unambiguous.
            Some(_) => Errno::EPERM,
            None => Errno::ENOENT,
        })?;
        self.checkpoints
            .delete_checkpoint(&caller.actor(), id)
            .map(drop)
            .map_err(|error| error.code.errno())
    }

    /// unlink(2) in `.snapshots` removes a tag.
    pub(super) fn unlink_snapshot(&self, caller: Caller, name: &[u8]) -> SysResult<()> {
        let name = std::str::from_utf8(name).map_err(|_| Errno::ENOENT)?;
        let _one_at_a_time = self.checkpoints.checkpointing.lock();
        let id = self.timeline().catalogue.tagged(name).ok_or(
            if self.snapdir.number(name).is_some() {
                Errno::EISDIR
            } else {
                Errno::EPERM
            },
        )?;
        let kept = self.timeline().catalogue.checkpoint(id);
        let mut tags = kept.ok_or(Errno::ENOENT)?.checkpoint.tags;
        tags.retain(|tag| tag != name);
        self.checkpoints
            .set_tags(&caller.actor(), None, vec![(id, tags)])
    }
}
