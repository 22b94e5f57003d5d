//! Listing a directory into a reply of bounded size.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use fuser::{Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus};

use super::convert;
use ckptfs_core::engine::request::{Listed, Names, NodeId, Plus, Service};
use ckptfs_sys::SysResult;

/// Passes names from `offset` on to `add`, until it reports a full reply or no name is left. It
/// calls the engine repeatedly, because the kernel treats an empty reply as the end of the
/// directory, and expects attributes at least with the first one (`READDIRPLUS_AUTO`).
pub fn fill(
    service: &dyn Service,
    node: NodeId,
    mut offset: u64,
    mut add: impl FnMut(&Listed) -> bool,
) -> SysResult<()> {
    loop {
        let Names { names, last } = service.readdir(node, offset)?;
        for listed in names
            .iter()
            .filter(|listed| listed.name.len() <= convert::NAME_BYTES_MAX)
        {
            if add(listed) {
                return Ok(());
            }
        }
        match names.last() {
            Some(listed) if !last => offset = listed.next,
            _ => return Ok(()),
        }
    }
}

/// Adds a name; returns true if the reply was full.
pub fn add(reply: &mut ReplyDirectory, listed: &Listed) -> bool {
    let attr = convert::dot_attr(listed);
    reply.add(
        attr.ino,
        listed.next,
        attr.kind,
        OsStr::from_bytes(&listed.name),
    )
}

/// Adds a name with its attributes; returns true if the reply was full. A name that did not fit
/// gets no lookup.
pub fn add_plus(
    service: &dyn Service,
    parent: NodeId,
    reply: &mut ReplyDirectoryPlus,
    listed: &Listed,
) -> bool {
    let bare = |attr| (attr, Duration::ZERO, Generation(0));
    let is_dot = matches!(listed.name.as_slice(), b"." | b"..");
    let plus = if is_dot {
        None
    } else {
        service.plus(parent, listed)
    };
    let (attr, ttl, generation) = match &plus {
        Some(Plus { entry, told: true }) => (
            convert::file_attr(&entry.stat),
            entry.ttl,
            convert::generation(entry),
        ),
        Some(Plus { entry, told: false }) => bare(convert::refused_attr(entry)),
        None if is_dot => bare(convert::dot_attr(listed)),
        None => bare(convert::unlooked_attr(listed)),
    };
    let full = reply.add(
        INodeNo(attr.ino.0),
        listed.next,
        OsStr::from_bytes(&listed.name),
        &ttl,
        &attr,
        generation,
    );
    if let (true, Some(Plus { entry, .. })) = (full, &plus) {
        service.forget(entry.node, 1);
    }
    full
}
