//! The content of files in a view.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use super::super::dropped::DROPPED;
use super::super::present::{Trail, at_rest};
use super::super::state::State;
use super::View;
use crate::store::ids::{ObjectId, ObjectOrigin, Slot};
use crate::store::record::DataState;
use crate::sys::{Errno, Kind, SysResult};

/// How long an inode that is about to be moved into a layer is waited for, at once.
const MOVE_PAUSE: Duration = Duration::from_micros(100);
/// How often.
const MOVE_WAITS_MAX: u32 = 50_000;
/// Where the bytes of a version are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In an object of the store.
    Object(ObjectId),
    /// Nowhere: the file was empty.
    Empty,
    /// Still in the live file.
    Live,
    /// Nowhere any more: it was changed while nothing was mounted, and no copy was kept.
    Lost,
}

impl View<'_> {
    /// Where the content of a regular file is now. An answer of [`Source::Live`] holds only until
    /// the file changes.
    ///
    /// # Errors
    /// EIO if the record is damaged.
    pub fn source(&self, slot: Slot) -> SysResult<Source> {
        let State::At(id) = self.state else {
            return Ok(Source::Live);
        };
        Ok(
            match self
                .timeline
                .lookup
                .data_at(slot, id)?
                .map(|data| data.before)
            {
                Some(DataState {
                    object: Some(object),
                    ..
                }) => Source::Object(object),
                Some(DataState {
                    object: None,
                    size: 0,
                    ..
                }) => Source::Empty,
                Some(DataState { object: None, .. }) => Source::Lost,
                None => Source::Live,
            },
        )
    }

    /// Opens the content for reading; `None`: it is empty. A descriptor of a live file must be read
    /// with [`View::still_live`] asked after each read.
    ///
    /// # Errors
    /// As [`View::child`]; EIO if the object is not in the store.
    pub fn open(&self, node: &Arc<Trail>) -> SysResult<(Source, Option<File>)> {
        if let State::At(id) = self.state {
            let epoch = self
                .timeline
                .lookup
                .data_at(node.slot, id)?
                .map(|data| data.epoch);
            self.unserved().check_served(node, Kind::File, id, epoch)?;
        }
        let mut waits = 0;
        loop {
            match self.source(node.slot)? {
                Source::Empty => return Ok((Source::Empty, None)),
                Source::Lost => {
                    if let State::At(id) = self.state {
                        self.timeline
                            .losses
                            .meet_unseen(node.path(), Kind::File, id);
                    }
                    return Err(Errno::EIO);
                }
                Source::Object(object) => {
                    if self.timeline.dropped.is_dropped(object)? {
                        return Err(DROPPED);
                    }
                    if let Some(file) = self.timeline.open_object(object)? {
                        self.check_whole(node, object, &file)?;
                        return Ok((Source::Object(object), Some(file)));
                    }
                    // The record comes before the inode is moved into the layer; and a capture that
                    // was not needed goes after its record. No epoch is closed between a record and
                    // its move: of a closed one there is nothing to wait for.
                    let moving = object.origin == ObjectOrigin::Moved
                        && object.epoch == self.timeline.epochs.epoch();
                    if self.source(node.slot)? == Source::Object(object)
                        && !self.timeline.dropped.is_dropped(object)?
                    {
                        // Its checkpoint was freed since somebody asked for the view: versions go
                        // after that is on record.
                        if let State::At(id) = self.state
                            && !self.timeline.catalogue.is_stored(id)
                        {
                            return Err(Errno::ESTALE);
                        }
                        if !moving || waits == MOVE_WAITS_MAX {
                            tracing::error!(?object, "a version is missing from the store");
                            return Err(Errno::EIO);
                        }
                        waits += 1;
                        std::thread::sleep(MOVE_PAUSE);
                    }
                }
                Source::Live => {
                    let opened = at_rest(self.present, || self.present.open(node));
                    if self.source(node.slot)? == Source::Live {
                        return Ok((Source::Live, Some(opened?)));
                    }
                }
            }
        }
    }

    /// Whether the content can be opened, as far as that can be told without.
    ///
    /// # Errors
    /// As [`View::open`].
    pub fn check_open(&self, node: &Arc<Trail>) -> SysResult<()> {
        let State::At(id) = self.state else {
            return self.open(node).map(drop);
        };
        if let Some(data) = self.timeline.lookup.data_at(node.slot, id)?
            && let Some(object) = data.before.object
            && !self.timeline.dropped.is_dropped(object)?
            && let Ok(Some(stat)) = self.timeline.store().layers.stat(object)
            && stat.kind == Kind::File
            && stat.size == data.before.size
            && !self.timeline.losses.distrusts(object)
        {
            return self
                .unserved()
                .check_served(node, Kind::File, id, Some(data.epoch));
        }
        self.open(node).map(drop)
    }

    /// Refuses an object of another size than what was kept: the power was cut before all of a copy
    /// was on the disk.
    fn check_whole(&self, node: &Arc<Trail>, object: ObjectId, file: &File) -> SysResult<()> {
        let State::At(id) = self.state else {
            return Ok(());
        };
        let Some(data) = self
            .timeline
            .lookup
            .data_at(node.slot, id)?
            .map(|data| data.before)
            .filter(|data| data.object == Some(object))
        else {
            return Ok(());
        };
        let size = crate::sys::stat_fd(file)?.size;
        // Changes that never came to the disk were struck, and the inode that was moved away after
        // them is what it was before.
        if size == data.size
            || (object.origin == ObjectOrigin::Moved && size == self.attr(node)?.stat.size)
        {
            return Ok(());
        }
        // Dropped since it was asked whether it was.
        if self.timeline.dropped.is_dropped(object)? {
            return Err(DROPPED);
        }
        tracing::error!(?object, size, kept = data.size, "a version is not whole");
        Err(Errno::EIO)
    }

    /// The content is still in the live file, and unchanged: what was read from `file`, which is
    /// that file, was of the past.
    ///
    /// # Errors
    /// EIO if a record is damaged, or the file was changed behind our back.
    pub fn still_live(&self, node: &Arc<Trail>, file: Option<&File>) -> SysResult<bool> {
        if self.source(node.slot)? != Source::Live {
            return Ok(false);
        }
        let (State::At(id), Some(file)) = (self.state, file) else {
            return Ok(true);
        };
        let ctime = self.present.ctime_of(node, file)?;
        if self.timeline.absences.changed_unseen(ctime, id)
            && self.timeline.lookup.attr_at(node.slot, id)?.is_none()
        {
            self.timeline
                .losses
                .meet_unseen(node.path(), Kind::File, id);
            return Err(Errno::EIO);
        }
        Ok(true)
    }
}
