//! Which checkpoint has the tree as it was before a tool ran: told by the hook before the tool to
//! the one behind it, in a small file of the user's own directory for such things. Whatever is
//! wrong there, the hook behind the tool only says less.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::PathBuf;

use super::event::Event;
use crate::store::ids::CheckpointId;
use crate::sys;

/// Longest content of such a file.
const NUMBER_BYTES_MAX: u64 = 20;
/// Hexadecimal digits of a session's name, and of a tool call's.
const DIGITS: usize = 16;

/// Remembers the checkpoint before a tool.
pub fn remember(event: &Event, id: CheckpointId) {
    if let Some(file) = file(event) {
        // Without it nothing is told behind the tool.
        let _ = fs::write(file, id.0.to_string());
    }
}

/// The checkpoint before the tool that has just run; it is forgotten.
pub fn recall(event: &Event) -> Option<CheckpointId> {
    let file = file(event)?;
    let found = fs::symlink_metadata(&file).ok()?;
    let text = if found.is_file() && found.len() <= NUMBER_BYTES_MAX {
        fs::read_to_string(&file).ok()
    } else {
        None
    };
    let _ = fs::remove_file(&file);
    Some(CheckpointId(text?.trim().parse().ok()?))
}

/// Forgets what is left of a session's tools, those that never ran.
pub fn forget(event: &Event) {
    let (Some(dir), Some(session)) = (dir(), &event.session) else {
        return;
    };
    let begin = format!("{}-", digits(session));
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&begin) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn file(event: &Event) -> Option<PathBuf> {
    let session = event.session.as_deref()?;
    let call = event.tool_use.as_deref().unwrap_or_default();
    Some(dir()?.join(format!("{}-{}", digits(session), digits(call))))
}

fn digits(text: &str) -> String {
    let mut hex = blake3::hash(text.as_bytes()).to_hex().to_string();
    hex.truncate(DIGITS);
    hex
}

/// A directory of this user's that nobody else can look into; made if it is not there.
fn dir() -> Option<PathBuf> {
    let (uid, _) = sys::ids();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let dir = match runtime.filter(|dir| dir.is_absolute() && dir.is_dir()) {
        Some(runtime) => runtime.join("ckptfs-agent"),
        None => std::env::temp_dir().join(format!("ckptfs-agent-{uid}")),
    };
    // Whether it was there already is seen next.
    let _ = fs::DirBuilder::new().mode(0o700).create(&dir);
    let found = fs::symlink_metadata(&dir).ok()?;
    (found.is_dir() && found.uid() == uid && found.mode() & 0o077 == 0).then_some(dir)
}
