//! Replies to the kernel: conversion of the engine's results to each type of reply.

use fuser::{
    FileHandle, Generation, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
};

use super::backing::BackingFile;
use super::convert::{self, errno};
use ckptfs_core::engine::request::{Attr, Entry, FsInfo, LookupResult, Opened};
use ckptfs_sys::{self as sys, Errno, SysResult};

/// A reply for a result of type `T`.
pub trait SendReply<T>: Send + 'static {
    /// Sends the reply.
    fn answer(self, result: SysResult<T>);
}

/// Implements [`SendReply`] for replies that take one call.
macro_rules! answers {
    ($($reply:ident, $what:ty: |$to:ident, $told:ident| $ok:expr;)*) => {$(
        impl SendReply<$what> for $reply {
            fn answer(self, result: SysResult<$what>) {
                let $to = self;
                match result {
                    Ok($told) => $ok,
                    Err(error) => $to.error(errno(error)),
                }
            }
        }
    )*};
}

answers! {
    ReplyEmpty, (): |reply, _done| reply.ok();
    ReplyDirectory, (): |reply, _done| reply.ok();
    ReplyDirectoryPlus, (): |reply, _done| reply.ok();
    ReplyData, Vec<u8>: |reply, data| reply.data(&data);
    ReplyWrite, u32: |reply, bytes| reply.written(bytes);
    ReplyLseek, i64: |reply, offset| reply.offset(offset);
    ReplyAttr, Attr: |reply, attr| reply.attr(&attr.ttl, &convert::file_attr(&attr.stat));
    ReplyEntry, Entry: |reply, entry| reply.entry(
        &entry.ttl,
        &convert::file_attr(&entry.stat),
        convert::generation(&entry),
    );
    ReplyStatfs, FsInfo: |reply, s| reply.statfs(
        s.blocks, s.bfree, s.bavail, s.files, s.ffree, s.bsize, s.namelen, s.frsize,
    );
}

impl SendReply<LookupResult> for ReplyEntry {
    fn answer(self, result: SysResult<LookupResult>) {
        match result {
            Ok(LookupResult::Absent(ttl)) => {
                self.entry(&ttl, &convert::absent_attr(), Generation(0))
            }
            Ok(LookupResult::Found(entry)) => self.answer(Ok(entry)),
            Err(error) => self.error(errno(error)),
        }
    }
}

/// Replies with the value if it fits into the requested size. Size 0 requests the size; a buffer
/// that is too small gets ERANGE (getxattr(2)).
impl SendReply<Vec<u8>> for (ReplyXattr, u32) {
    fn answer(self, result: SysResult<Vec<u8>>) {
        let (reply, size) = self;
        match result {
            Ok(value) if size == 0 => reply.size(value.len() as u32),
            Ok(value) if value.len() > size as usize => reply.error(errno(Errno::ERANGE)),
            Ok(value) => reply.data(&value),
            Err(error) => reply.error(errno(error)),
        }
    }
}

/// Replies to an open; with `id` the file is passed through. The reply only borrows the ID, which
/// stays registered.
pub fn opened(reply: ReplyOpen, opened: &Opened, id: Option<&BackingFile>) {
    let fh = FileHandle(opened.fh.0);
    let Some(id) = id else {
        return reply.opened(fh, convert::open_flags(opened));
    };
    let wrapped = sys::wrap_number(ReplyOpen::wrap_backing, &reply, id.number);
    reply.opened_passthrough(fh, convert::passthrough_flags(opened), &wrapped);
    wrapped.into_raw();
}

/// As [`opened`], for a file that was created.
pub fn created(reply: ReplyCreate, entry: &Entry, opened: &Opened, id: Option<&BackingFile>) {
    let (ttl, attr) = (&entry.ttl, convert::file_attr(&entry.stat));
    let (generation, fh) = (convert::generation(entry), FileHandle(opened.fh.0));
    let Some(id) = id else {
        return reply.created(ttl, &attr, generation, fh, convert::open_flags(opened));
    };
    let wrapped = sys::wrap_number(ReplyCreate::wrap_backing, &reply, id.number);
    let flags = convert::passthrough_flags(opened);
    reply.created_passthrough(ttl, &attr, generation, fh, flags, &wrapped);
    wrapped.into_raw();
}
