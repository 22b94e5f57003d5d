//! The top level of the repository contains no unexpected files.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use super::{expect_none, root};

const TOP_LEVEL: [&str; 21] = [
    ".ci",
    ".git-blame-ignore-revs",
    ".gitignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "benches",
    "clippy.toml",
    "deny.toml",
    "docker",
    "docs",
    "mount",
    "rustfmt.toml",
    "src",
    "tests",
];

/// Returns the top-level names that git tracks or, without git, the directory entries.
fn top_level() -> BTreeSet<String> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached"])
        .current_dir(root())
        .output();
    if let Ok(output) = listed.as_ref()
        && output.status.success()
        && !output.stdout.is_empty()
    {
        let text = String::from_utf8_lossy(&output.stdout);
        return text
            .lines()
            .map(|path| path.split('/').next().unwrap().to_owned())
            .collect();
    }
    let entries = fs::read_dir(root())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    entries
        .filter(|name| name != "target" && name != ".git")
        .collect()
}

#[test]
fn the_top_level_is_exactly_what_it_should_be() {
    let found = top_level();
    let strange = found
        .iter()
        .filter(|name| !TOP_LEVEL.contains(&name.as_str()))
        .map(|name| format!("{name} does not belong here"));
    let missing = TOP_LEVEL
        .iter()
        .filter(|name| !root().join(name).exists())
        .map(|name| format!("{name} is missing"));
    expect_none(
        "the top level holds exactly the names in tests/tidy/top.rs",
        &strange.chain(missing).collect::<Vec<_>>(),
    );
}
