//! File content in a view.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use super::super::dropped::DROPPED;
use super::super::present::{Trail, at_rest};
use super::super::state::TreeState;
use super::View;
use ckptfs_store::ids::{ObjectId, ObjectOrigin, Slot};
use ckptfs_store::record::DataState;
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{self as sys, Errno, Kind, SysResult};

/// Pause while waiting for an inode to be moved into a layer.
const MOVE_PAUSE: Duration = Duration::from_micros(100);
/// Maximum number of pauses.
const MOVE_WAITS_MAX: u32 = 50_000;
/// Location of the content of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentLocation {
    /// An object in the store.
    Object(ObjectId),
    /// No content: the file was empty.
    Empty,
    /// The live file.
    Live,
    /// Lost: it was changed during an absence and not captured.
    Lost,
}

impl View<'_> {
    /// Returns the current location of the content of a regular file. [`ContentLocation::Live`] is
    /// valid only until the file changes.
    ///
    /// # Errors
    /// EIO if the record is damaged.
    pub fn source(&self, slot: Slot) -> SysResult<ContentLocation> {
        let TreeState::At(id) = self.state else {
            return Ok(ContentLocation::Live);
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
                }) => ContentLocation::Object(object),
                Some(DataState {
                    object: None,
                    size: 0,
                    ..
                }) => ContentLocation::Empty,
                Some(DataState { object: None, .. }) => ContentLocation::Lost,
                None => ContentLocation::Live,
            },
        )
    }

    /// Opens the content for reading; `None` if empty. The caller must call [`View::still_live`]
    /// after each read from a live file.
    ///
    /// # Errors
    /// As [`View::child`]; EIO if the object is not in the store.
    pub fn open(&self, node: &Arc<Trail>) -> SysResult<(ContentLocation, Option<File>)> {
        self.check_content_served(node)?;
        let mut waits = 0;
        loop {
            match self.source(node.slot)? {
                ContentLocation::Empty => return Ok((ContentLocation::Empty, None)),
                ContentLocation::Lost => {
                    if let TreeState::At(id) = self.state {
                        self.timeline
                            .losses
                            .meet_unseen(node.path(), Kind::File, id);
                    }
                    return Err(Errno::EIO);
                }
                ContentLocation::Object(object) => {
                    if self.timeline.dropped.is_dropped(object)? {
                        return Err(DROPPED);
                    }
                    if let Some(file) = self.timeline.open_object(object)? {
                        self.check_whole(node, object, &file)?;
                        return Ok((ContentLocation::Object(object), Some(file)));
                    }
                    // The record precedes the move of the inode into the layer, and an unneeded
                    // capture is removed after its record. No epoch is closed between a record and
                    // its move, so a closed epoch needs no wait.
                    let moving = object.origin == ObjectOrigin::Moved
                        && object.epoch == self.timeline.epochs.epoch();
                    if self.source(node.slot)? == ContentLocation::Object(object)
                        && !self.timeline.dropped.is_dropped(object)?
                    {
                        // Its checkpoint was freed after the view was opened: versions are removed
                        // after that is recorded.
                        if let TreeState::At(id) = self.state
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
                ContentLocation::Live => {
                    let opened = at_rest(self.present, || self.present.open(node));
                    if self.source(node.slot)? == ContentLocation::Live {
                        return Ok((ContentLocation::Live, Some(opened?)));
                    }
                }
            }
        }
    }

    /// Fails with EIO for content changed without a record.
    ///
    /// # Errors
    /// EIO.
    pub(in crate::history) fn check_content_served(&self, node: &Arc<Trail>) -> SysResult<()> {
        let TreeState::At(id) = self.state else {
            return Ok(());
        };
        let data = self.timeline.lookup.data_at(node.slot, id)?;
        let epoch = data.map(|data| data.epoch);
        self.unserved().check_served(node, Kind::File, id, epoch)
    }

    /// Whether the content can be opened, as far as possible without opening it.
    ///
    /// # Errors
    /// As [`View::open`].
    pub fn check_open(&self, node: &Arc<Trail>) -> SysResult<()> {
        let TreeState::At(id) = self.state else {
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

    /// Rejects an object of another size than captured: the power was cut before a copy was
    /// complete on disk.
    fn check_whole(&self, node: &Arc<Trail>, object: ObjectId, file: &File) -> SysResult<()> {
        let TreeState::At(id) = self.state else {
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
        let size = ckptfs_sys::stat_fd(file)?.size;
        // Changes that never reached the disk were voided, and an inode moved away after them has
        // its earlier content.
        if size == data.size
            || (object.origin == ObjectOrigin::Moved && size == self.attr(node)?.stat.size)
        {
            return Ok(());
        }
        // Dropped since the first check.
        if self.timeline.dropped.is_dropped(object)? {
            return Err(DROPPED);
        }
        tracing::error!(?object, size, kept = data.size, "a version is not whole");
        Err(Errno::EIO)
    }

    /// Whether the content is still in the live file and unchanged, so that data read from `file`,
    /// the live file, is valid.
    ///
    /// # Errors
    /// EIO if a record is damaged, or the file was changed without a record.
    pub fn still_live(&self, node: &Arc<Trail>, file: Option<&File>) -> SysResult<bool> {
        if self.source(node.slot)? != ContentLocation::Live {
            return Ok(false);
        }
        let (TreeState::At(id), Some(file)) = (self.state, file) else {
            return Ok(true);
        };
        let ctime = self.present.ctime_of(node, file)?;
        if self.timeline.absences.changed_unseen(ctime, id)
            && self.timeline.lookup.attr_at(node.slot, id)?.is_none()
            && !self
                .unserved()
                .only_links_changed(node, (None, &self.present.attr(node)?.stat), id)
        {
            self.timeline
                .losses
                .meet_unseen(node.path(), Kind::File, id);
            return Err(Errno::EIO);
        }
        Ok(true)
    }
}

/// An open regular file of a view.
#[derive(Debug)]
pub struct OpenContent {
    node: Arc<Trail>,
    open: Mutex<(ContentLocation, Option<Arc<File>>)>,
}

impl OpenContent {
    /// Opens a file.
    ///
    /// # Errors
    /// As [`View::open`].
    pub fn open(view: &View<'_>, node: &Arc<Trail>) -> SysResult<OpenContent> {
        let (source, file) = view.open(node)?;
        Ok(OpenContent {
            node: Arc::clone(node),
            open: Mutex::new((source, file.map(Arc::new))),
        })
    }

    /// Returns the file that currently has the content; `None` if empty. Data read from it is valid
    /// only within [`OpenContent::with`].
    pub fn file(&self) -> Option<Arc<File>> {
        self.open.lock().1.clone()
    }

    /// Calls `with` on the file that has the content; `None` if empty. If the content was in the
    /// live file and has changed since, calls it again on the capture.
    ///
    /// # Errors
    /// Those of `with`; as [`View::open`].
    pub fn with<T>(
        &self,
        view: &View<'_>,
        with: impl Fn(Option<&File>) -> SysResult<T>,
    ) -> SysResult<T> {
        self.with_source(view, |_, file| with(file))
    }

    fn with_source<T>(
        &self,
        view: &View<'_>,
        with: impl Fn(ContentLocation, Option<&File>) -> SysResult<T>,
    ) -> SysResult<T> {
        loop {
            let (source, file) = self.open.lock().clone();
            // Checked before as well: a captured live file may be locked by its writer, which may
            // wait for this request.
            if source != ContentLocation::Live || view.still_live(&self.node, file.as_deref())? {
                let answer = with(source, file.as_deref());
                if source != ContentLocation::Live
                    || view.still_live(&self.node, file.as_deref())?
                {
                    return answer;
                }
            }
            let (source, file) = view.open(&self.node)?;
            *self.open.lock() = (source, file.map(Arc::new));
        }
    }

    /// Reads up to `size` bytes at `offset`.
    ///
    /// # Errors
    /// Those of pread(2); as [`View::open`].
    pub fn read(&self, view: &View<'_>, offset: u64, size: u32) -> SysResult<Vec<u8>> {
        self.with_source(view, |source, file| {
            let Some(file) = file else {
                return Ok(Vec::new());
            };
            let mut buffer = vec![0_u8; size as usize];
            let filled = match source {
                ContentLocation::Live => sys::read_unlocked_at(file, &mut buffer, offset)?,
                _ => sys::read_full_at(file, &mut buffer, offset)?,
            };
            buffer.truncate(filled);
            Ok(buffer)
        })
    }
}
