//! Moments of a tree: a checkpoint, and a plain copy made at the same time.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Rig, TreeOpts, assert_same_tree, copy_tree, has, succeeds, tool};

/// Time limit of one program on a slow and busy machine, in seconds.
pub const PROGRAM_SECONDS: u64 = 240;

/// A checkpoint with its expected content.
pub struct ReferenceCopy {
    id: u64,
    copy: PathBuf,
}

impl ReferenceCopy {
    /// Makes a checkpoint of the tree, which must be idle, and a copy outside the mount; the view
    /// must equal the copy.
    pub fn now(rig: &Rig, name: &str) -> ReferenceCopy {
        let copy = rig.image.dir("copies").join(name);
        let id = rig.mount.checkpoint();
        copy_tree(rig.path(), &copy);
        let moment = ReferenceCopy { id, copy };
        moment.is_seen(rig);
        moment
    }

    /// Asserts that the view still equals the copy.
    #[track_caller]
    pub fn is_seen(&self, rig: &Rig) {
        assert_same_tree(&rig.view(self.id), &self.copy, &TreeOpts::default());
    }

    /// Restores it; the tree must equal the copy, without differences from the checkpoint.
    #[track_caller]
    pub fn restore(&self, rig: &Rig) {
        rig.mount.restore(self.id);
        assert_same_tree(rig.path(), &self.copy, &TreeOpts::default());
        assert_eq!(
            rig.mount.diff_json(&self.id.to_string(), None),
            serde_json::json!([]),
            "nothing differs after a restore"
        );
    }
}

/// Returns a command for a program in `dir`.
pub fn program<S: AsRef<OsStr>>(dir: &Path, name: &str, arguments: &[S]) -> Command {
    let mut command = tool(name, arguments);
    command.current_dir(dir);
    command
}

/// Runs a program in `dir`; panics with its output if it fails.
pub fn run<S: AsRef<OsStr>>(dir: &Path, name: &str, arguments: &[S]) {
    succeeds(&mut program(dir, name, arguments), PROGRAM_SECONDS);
}

/// Runs a shell script in `dir`; every command must succeed.
pub fn shell(dir: &Path, script: &str) {
    run(dir, "bash", &["-euo", "pipefail", "-c", script]);
}

/// Returns the stdout of a program, with invalid UTF-8 replaced.
pub fn output<S: AsRef<OsStr>>(dir: &Path, name: &str, arguments: &[S]) -> String {
    String::from_utf8_lossy(&succeeds(&mut program(dir, name, arguments), PROGRAM_SECONDS).stdout)
        .into_owned()
}

/// Returns the first of these programs that is not installed, as the reason to skip a test.
pub fn missing(programs: &[&str]) -> Option<String> {
    programs
        .iter()
        .find_map(|name| (!has(name)).then(|| format!("{name} is not installed")))
}

/// Returns directories of crates that cargo has fetched for this project: one for each of these
/// prefixes (`name-`), if at least `count` exist.
pub fn crates_named(prefixes: &[&str], count: usize) -> Option<Vec<PathBuf>> {
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))?;
    let mut found: Vec<PathBuf> = Vec::new();
    for registry in fs::read_dir(home.join("registry/src")).ok()?.flatten() {
        found.extend(
            fs::read_dir(registry.path())
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path()),
        );
    }
    found.sort();
    let is = |path: &Path, prefix: &str| {
        let rest = path
            .file_name()
            .and_then(OsStr::to_str)
            .and_then(|name| name.strip_prefix(prefix));
        rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let chosen: Vec<PathBuf> = prefixes
        .iter()
        .filter_map(|prefix| found.iter().find(|path| is(path, prefix)).cloned())
        .collect();
    (chosen.len() >= count).then_some(chosen)
}

/// Returns crates with many files.
pub fn crates(count: usize) -> Option<Vec<PathBuf>> {
    crates_named(
        &[
            "rustix-",
            "zerocopy-",
            "futures-util-",
            "clap_builder-",
            "serde_core-",
            "parking_lot-",
            "memchr-",
        ],
        count,
    )
}

/// Makes a `#[test]` of a function `fn(Variant)` for each named variant: `variants! { cargo_build
/// => xfs_passthrough, btrfs_daemon }`. Programs are slow, so each runs in a subset; together they
/// cover every filesystem and I/O path.
macro_rules! variants {
    (@one $body:ident xfs_passthrough) => { $crate::common::for_each_variant! { @test $body xfs_passthrough Xfs Passthrough } };
    (@one $body:ident xfs_daemon) => { $crate::common::for_each_variant! { @test $body xfs_daemon Xfs Daemon } };
    (@one $body:ident btrfs_passthrough) => { $crate::common::for_each_variant! { @test $body btrfs_passthrough Btrfs Passthrough } };
    (@one $body:ident btrfs_daemon) => { $crate::common::for_each_variant! { @test $body btrfs_daemon Btrfs Daemon } };
    ($body:ident => $($name:ident),+) => { mod $body { $($crate::apps::support::variants! { @one $body $name })+ } };
}
pub(crate) use variants;
