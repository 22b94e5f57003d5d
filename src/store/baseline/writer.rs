//! Writes a baseline.

use std::hash::{BuildHasher, RandomState};
use std::os::fd::BorrowedFd;

use rustix::fs::OFlags;

use super::super::at;
use super::{
    BY_SLOT, BaselineNode, CHANGES, NAME, UNFINISHED, failed, key, named, put_inode, put_part,
    token,
};
use crate::error::StoreResult;
use crate::ids::{Address, Slot};
use crate::index::{RunBuilder, RunSink};
use crate::journal::codec::encode_uint;
use crate::layout::Layout;
use ckptfs_api::Epoch;
use ckptfs_sys::Kind;

/// Writes a baseline. Dropping it before [`BaselineWriter::finish`] leaves no valid file.
pub struct BaselineWriter<'a> {
    dir: BorrowedFd<'a>,
    builder: RunBuilder,
    token: Epoch,
    /// Listed directories: slot, number, generation.
    listed: Vec<(Slot, u64, u64)>,
    /// Number of nonempty files.
    files: u64,
}

impl<'a> BaselineWriter<'a> {
    /// Begins a baseline that is valid as long as the journal ends at `end`; without `end`, only
    /// together with its changes.
    ///
    /// Errors: `Io`.
    pub fn new(layout: &'a Layout, end: Option<Address>) -> StoreResult<BaselineWriter<'a>> {
        let dir = layout.dir();
        let token = token(end);
        Ok(BaselineWriter {
            dir,
            builder: builder(dir, token)?,
            token,
            listed: Vec::new(),
            files: 0,
        })
    }

    /// Adds a name of the directory with this number. Names must be sorted, and directories come in
    /// numeric order; the root itself comes first, with number 0 and no name.
    ///
    /// Errors: `Io`, `Codec`.
    pub fn add(&mut self, number: u64, name: &[u8], node: &BaselineNode) -> StoreResult<()> {
        let mut value = Vec::with_capacity(128);
        encode_uint(node.number, &mut value);
        put_part(
            Some(&named(
                Some(node.child).filter(|child| child.slot != Slot::ROOT),
            )),
            &mut value,
        )?;
        put_inode(node, &mut value)?;
        self.files += u64::from(node.child.kind == Kind::File && node.attr.stat.size > 0);
        self.builder
            .add(&key(number, name), self.token, &value)
            .map_err(failed("write"))
    }

    /// Marks all names of the directory with this number as added.
    pub fn listed(&mut self, number: u64, slot: Slot, generation: u64) {
        self.listed.push((slot, number, generation));
    }

    /// Replaces the previous baseline and removes its changes. Durable on return.
    ///
    /// Errors: `Io`.
    pub fn finish(mut self) -> StoreResult<()> {
        let mut files = Vec::new();
        encode_uint(self.files, &mut files);
        encode_uint(RandomState::new().hash_one(0u8), &mut files);
        self.builder
            .add(&key(BY_SLOT, b""), self.token, &files)
            .map_err(failed("write"))?;
        self.listed.sort_unstable();
        let mut listed = self.listed.iter().peekable();
        while let Some((slot, number, generation)) = listed.next() {
            // A directory moved during the walk may have been listed twice.
            if listed.peek().is_none_or(|next| next.0 != *slot) {
                let mut value = Vec::new();
                encode_uint(*number, &mut value);
                encode_uint(*generation, &mut value);
                self.builder
                    .add(&key(BY_SLOT, &slot.0.to_be_bytes()), self.token, &value)
                    .map_err(failed("write"))?;
            }
        }
        // The changes of another baseline must not be combined with this one.
        at::remove_tree(self.dir, CHANGES.as_bytes())
            .and_then(|()| at::sync_dir(self.dir))
            .map_err(failed("write"))?;
        finish(self.builder, self.dir, NAME)
    }
}

pub(super) fn builder(dir: BorrowedFd<'_>, token: Epoch) -> StoreResult<RunBuilder> {
    let file = at::open_file(
        dir,
        UNFINISHED,
        OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC,
    )
    .map_err(failed("make"))?;
    Ok(RunBuilder::new(RunSink::File(file), token, token, 1))
}

pub(super) fn finish(builder: RunBuilder, dir: BorrowedFd<'_>, name: &str) -> StoreResult<()> {
    let run = builder.finish(0).map_err(failed("write"))?;
    run.sync()
        .and_then(|()| at::rename(dir, UNFINISHED, name))
        .and_then(|()| at::sync_dir(dir))
        .map_err(failed("write"))
}
