//! The tree of files that the benchmarks use.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::command::{succeeds, tool};

/// Time limit for making a tree.
pub const TREE_SECONDS: u64 = 900;

/// Makes a tree of this many regular files with `tree.sh`.
pub fn make(dir: &Path, files: usize) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/tree.sh");
    succeeds(
        tool(&script.to_string_lossy(), &[dir.as_os_str()]).arg(files.to_string()),
        TREE_SECONDS,
    );
}

/// Returns the sorted relative paths of regular files below `top` of at least this size.
pub fn regular_files(top: &Path, bytes_min: u64) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(below) = pending.pop() {
        for entry in fs::read_dir(top.join(&below)).expect("the tree can be listed") {
            let entry = entry.expect("the tree can be listed");
            let (path, meta) = (
                below.join(entry.file_name()),
                entry.metadata().expect("the tree can be read"),
            );
            if meta.is_dir() {
                pending.push(path);
            } else if meta.is_file() && meta.len() >= bytes_min {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
