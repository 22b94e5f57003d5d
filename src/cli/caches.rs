//! Package managers that link files from a cache into the tree. Links into a mount fail, because
//! the cache is on another filesystem.

use std::path::Path;

/// A package manager that links files from its cache into the tree where possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linker {
    /// Name of the lock file in the root of a project.
    lock: &'static str,
    /// Environment variable of the setting.
    variable: &'static str,
    /// Behaviour in a mount.
    pub does: &'static str,
    /// The recommended setting, as a command.
    pub setting: &'static str,
}

/// Other package managers copy in any case, or link nothing (docs/guide/package-managers.md).
const LINKERS: [Linker; 2] = [
    Linker {
        lock: "pnpm-lock.yaml",
        variable: "npm_config_store_dir",
        does: "pnpm puts its store into the tree (.pnpm-store), where git lists it and checkpoints keep it",
        setting: "pnpm config set store-dir ~/.local/share/pnpm/store",
    },
    Linker {
        lock: "uv.lock",
        variable: "UV_LINK_MODE",
        does: "uv cannot link files from its cache into the tree, and copies them, with a warning",
        setting: "export UV_LINK_MODE=copy",
    },
];

/// Returns the package managers that the project in `dir` uses and whose setting is not in the
/// environment.
pub fn linkers(dir: &Path) -> impl Iterator<Item = Linker> {
    LINKERS.into_iter().filter(move |linker| {
        let is_used = |found: std::fs::Metadata| found.is_file();
        dir.join(linker.lock).symlink_metadata().is_ok_and(is_used)
            && std::env::var_os(linker.variable).is_none()
    })
}
