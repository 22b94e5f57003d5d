//! The checkpoint before a tool call. The hook before the tool passes it to the hook after the
//! tool, in a small file of a private directory. After any failure the second hook only reports
//! less.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::PathBuf;

use super::event::Event;
use ckptfs_api::CheckpointId;
use ckptfs_sys as sys;

/// Limit of the content of such a file.
const NUMBER_BYTES_MAX: u64 = 20;
/// Hexadecimal digits for a session, and for a tool call.
const DIGITS: usize = 16;

/// Stores the checkpoint before a tool call.
pub fn remember(event: &Event, id: CheckpointId) {
    if let Some(file) = file(event) {
        // Without the file nothing is reported after the tool.
        let _ = fs::write(file, id.0.to_string());
    }
}

/// Returns the checkpoint before the tool call that has ended, and deletes its file.
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

/// Deletes the files of a session's tool calls that never ran.
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

/// Returns a directory of this user that no other user can read, created if missing.
fn dir() -> Option<PathBuf> {
    let (uid, _) = sys::ids();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let dir = match runtime.filter(|dir| dir.is_absolute() && dir.is_dir()) {
        Some(runtime) => runtime.join("ckptfs-agent"),
        None => std::env::temp_dir().join(format!("ckptfs-agent-{uid}")),
    };
    // An existing directory is checked below.
    let _ = fs::DirBuilder::new().mode(0o700).create(&dir);
    let found = fs::symlink_metadata(&dir).ok()?;
    (found.is_dir() && found.uid() == uid && found.mode() & 0o077 == 0).then_some(dir)
}
