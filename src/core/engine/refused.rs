//! Paths unreadable for an unprivileged daemon: a file's owner has no access beyond its mode.

use super::Engine;
use super::error::Code;
use ckptfs_api::VerbError;
use ckptfs_api::display::word;
use ckptfs_store::ids::Slot;
use ckptfs_sys::{self as sys, Kind, OpenKind};

/// Adds the unreadable path to an error, if it is the cause.
pub(super) fn named(engine: &Engine, error: VerbError) -> VerbError {
    let refused = engine.live.inodes.refused.take();
    if error.code != Code::NoPermission || error.hint.is_some() {
        return error;
    }
    let Some((path, kind, mode)) = refused.and_then(|slot| closed(engine, slot)) else {
        return error;
    };
    let path = engine
        .place()
        .mount()
        .join(String::from_utf8_lossy(&path).as_ref());
    let needs = if kind == Kind::Dir { "u+rx" } else { "u+r" };
    VerbError {
        message: format!(
            "{}: {} has mode {mode:04o}, and the daemon has the rights of user {} alone",
            error.message,
            path.display(),
            sys::ids().0
        ),
        hint: Some(format!(
            "let its owner read it: chmod {needs} {}",
            word(path.display())
        )),
        ..error
    }
}

/// Returns the topmost path above an inode that its owner may not read.
fn closed(engine: &Engine, slot: Slot) -> Option<(Vec<u8>, Kind, u32)> {
    let path = engine.live.inodes.path_of(slot)?;
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    let ends = ends.map(|(end, _)| end).chain([path.len()]);
    ends.filter_map(|end| {
        let above = path.get(..end)?;
        let fd = sys::open_beneath(engine.live.root(), above, OpenKind::Path).ok()?;
        let stat = sys::stat_fd(&fd).ok()?;
        let needed = if stat.kind == Kind::Dir { 0o500 } else { 0o400 };
        (stat.mode & needed != needed).then(|| (above.to_vec(), stat.kind, stat.mode))
    })
    .next()
}
