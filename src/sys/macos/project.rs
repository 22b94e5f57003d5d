//! Stubs: macOS has no project quotas.

use std::fs::File;
use std::os::fd::AsFd;

use super::super::args::RenameMode;
use super::super::path::rename_at;
use super::super::types::SysResult;

/// As [`rename_at`].
pub fn rename_home(
    from_dir: impl AsFd,
    from: &[u8],
    to_dir: impl AsFd,
    to: &[u8],
    mode: RenameMode,
) -> SysResult<()> {
    rename_at(from_dir, from, to_dir, to, mode)
}

/// Returns false: not supported.
pub fn make_alike(_src: &File, _dst: &File) -> bool {
    false
}

/// No effect.
pub fn give_no_project(_dir: impl AsFd) {}
