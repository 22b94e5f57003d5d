//! Comparison of an inode in two states.

use std::sync::Arc;

use super::present::{Trail, there};
use super::view::{ContentLocation, View};
use ckptfs_store::extents::same_bytes;
use ckptfs_store::record::AttrState;
use ckptfs_sys::{self as sys, Kind, SysResult};

/// Whether attributes differ, except times and link counts.
pub(super) fn attributes_differ(before: &AttrState, after: &AttrState) -> bool {
    let (a, b) = (&before.stat, &after.stat);
    let size_differs = a.kind == Kind::File && a.size != b.size;
    a.mode != b.mode
        || a.uid != b.uid
        || a.gid != b.gid
        || a.rdev != b.rdev
        || size_differs
        || before.target != after.target
}

/// Whether a file of one state has the same bytes as a file of another. A file removed concurrently
/// does not.
///
/// # Errors
/// As [`View::open`]; EIO if one of them cannot be read.
pub fn same_content(
    (from, old): (&View<'_>, &Arc<Trail>),
    (to, new): (&View<'_>, &Arc<Trail>),
) -> SysResult<bool> {
    // A branch and its parent number their objects independently, and both have a live file for one
    // inode.
    let one = from.is_beside(to);
    let stored = from.source(old.slot)?;
    if one && stored == to.source(new.slot)? {
        match stored {
            ContentLocation::Object(_) => return Ok(true),
            ContentLocation::Live if old.slot == new.slot => {
                from.check_content_served(old)?;
                return to.check_content_served(new).map(|()| true);
            }
            _ => {}
        }
    }
    let (old_source, old_file) = from.open(old)?;
    let Some((new_source, new_file)) = there(to.open(new).map(Some))? else {
        return Ok(false);
    };
    if one
        && old_source == new_source
        && (old_source != ContentLocation::Live || old.slot == new.slot)
    {
        return Ok(true);
    }
    match (old_file, new_file) {
        (None, None) => Ok(true),
        (Some(file), None) | (None, Some(file)) => Ok(sys::stat_fd(&file)?.size == 0),
        (Some(old), Some(new)) => same_bytes(&old, &new),
    }
}
