//! The rules of the house that no lint knows: layers import downward only, each outside crate has
//! one home, files and functions stay short, every source and test file is compiled, links in the
//! documentation resolve, no text has a phrase twice, and nothing strange lies at the top.

#[path = "tidy/code.rs"]
mod code;
#[path = "tidy/commands.rs"]
mod commands;
#[path = "tidy/docs.rs"]
mod docs;
#[path = "tidy/layers.rs"]
mod layers;
#[path = "tidy/phrases.rs"]
mod phrases;
#[path = "tidy/shape.rs"]
mod shape;
#[path = "tidy/sizes.rs"]
mod sizes;
#[path = "tidy/targets.rs"]
mod targets;
#[path = "tidy/top.rs"]
mod top;

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files below `dir` with this extension, as paths from the root of the project.
fn files(dir: &str, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![root().join(dir)];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path.strip_prefix(root()).unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(root().join(path))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[track_caller]
fn expect_none(rule: &str, offences: &[String]) {
    assert!(offences.is_empty(), "{rule}:\n  {}", offences.join("\n  "));
}

/// Every Rust file that is ours.
fn our_code() -> Vec<PathBuf> {
    ["src", "tests", "benches"]
        .iter()
        .flat_map(|dir| files(dir, "rs"))
        .collect()
}
