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
use crate::sys::lock::Mutex;
use crate::sys::{self, Errno, Kind, SysResult};

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
        self.check_content_served(node)?;
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

    /// Refuses content that was changed behind our back.
    ///
    /// # Errors
    /// EIO.
    pub(in crate::history) fn check_content_served(&self, node: &Arc<Trail>) -> SysResult<()> {
        let State::At(id) = self.state else {
            return Ok(());
        };
        let data = self.timeline.lookup.data_at(node.slot, id)?;
        let epoch = data.map(|data| data.epoch);
        self.unserved().check_served(node, Kind::File, id, epoch)
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

/// A regular file of a view that is open to be read.
#[derive(Debug)]
pub struct OpenContent {
    node: Arc<Trail>,
    open: Mutex<(Source, Option<Arc<File>>)>,
}

impl OpenContent {
    /// Opens one.
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

    /// The file that holds the content at present; `None` if it is empty. What is read from it
    /// counts only with [`OpenContent::with`].
    pub fn file(&self) -> Option<Arc<File>> {
        self.open.lock().1.clone()
    }

    /// Does `with` on the file that holds the content; `None` if it is empty. While the content is
    /// still in the live file, what was done counts only if it is there still after; else it is
    /// done again on the capture.
    ///
    /// # Errors
    /// Its own; as [`View::open`].
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
        with: impl Fn(Source, Option<&File>) -> SysResult<T>,
    ) -> SysResult<T> {
        loop {
            let (source, file) = self.open.lock().clone();
            // Asked before too: a live file that was captured may be locked by who writes to it,
            // and he may wait for what is asked of us here.
            if source != Source::Live || view.still_live(&self.node, file.as_deref())? {
                let answer = with(source, file.as_deref());
                if source != Source::Live || view.still_live(&self.node, file.as_deref())? {
                    return answer;
                }
            }
            let (source, file) = view.open(&self.node)?;
            *self.open.lock() = (source, file.map(Arc::new));
        }
    }

    /// Reads.
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
                Source::Live => sys::read_unlocked_at(file, &mut buffer, offset)?,
                _ => sys::read_full_at(file, &mut buffer, offset)?,
            };
            buffer.truncate(filled);
            Ok(buffer)
        })
    }
}
