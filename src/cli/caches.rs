//! Package managers that link files from a cache into the tree: the cache is on another filesystem
//! than the mount.

use std::path::Path;

/// A package manager that links files from its cache into the tree, where it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linker {
    /// In the root of a project that uses it.
    lock: &'static str,
    /// In the environment where that is set already.
    variable: &'static str,
    /// Its behaviour in a mount.
    pub does: &'static str,
    /// The setting.
    pub setting: &'static str,
}

/// Others copy anyway, or link nothing (docs/guide/package-managers.md).
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

/// Those that the project in a directory uses, and whose setting is not in the environment.
pub fn linkers(dir: &Path) -> impl Iterator<Item = Linker> {
    LINKERS.into_iter().filter(move |linker| {
        let is_used = |found: std::fs::Metadata| found.is_file();
        dir.join(linker.lock).symlink_metadata().is_ok_and(is_used)
            && std::env::var_os(linker.variable).is_none()
    })
}
