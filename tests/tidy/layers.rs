//! Crates depend downward only, the layers of `core` too, and each external crate has one home.

use super::code::{code_of, line_of, words};
use super::{expect_none, files, read};

/// The crates in `src/`, lowest first, each with the crates that it may depend on.
const CRATES: [(&str, &[&str]); 13] = [
    ("sys", &[]),
    ("api", &["sys"]),
    ("ui", &["sys", "api"]),
    ("browse", &["sys", "api", "ui"]),
    ("store", &["sys", "api"]),
    ("core", &["sys", "api", "store"]),
    ("transfer", &["sys", "api", "store", "core"]),
    ("fuse", &["sys", "api", "core"]),
    ("daemon", &["sys", "api", "store", "core"]),
    ("remote", &["sys", "api", "store", "core", "transfer"]),
    (
        "volumes",
        &["sys", "api", "store", "core", "transfer", "daemon"],
    ),
    (
        "cli",
        &[
            "sys", "api", "store", "core", "transfer", "fuse", "daemon", "remote", "volumes", "ui",
        ],
    ),
    // The program.
    ("", &["cli"]),
];

/// The layers of `core`, bottom to top. A layer may import itself and lower layers.
const LAYERS: [&str; 4] = ["history", "tree", "live", "engine"];

/// External crates, and the only directories that may name them.
const HOMES: [(&str, &[&str]); 32] = [
    ("fuser", &["src/fuse"]),
    ("sled", &["src/store"]),
    ("rayon_core", &["src/store"]),
    ("reflink_copy", &["src/sys"]),
    ("parking_lot", &["src/sys"]),
    ("clap", &["src/cli", "src/ui", "src/browse"]),
    ("clap_complete", &["src/cli"]),
    ("clap_mangen", &["src/cli"]),
    ("indicatif", &["src/ui"]),
    ("jsonc_parser", &["src/cli/agent"]),
    ("toml_edit", &["src/core", "src/remote"]),
    ("globset", &["src/core"]),
    ("strsim", &["src/core"]),
    ("hyper", &["src/volumes"]),
    ("object_store", &["src/remote"]),
    ("flate2", &["src/remote/oci"]),
    ("http_auth", &["src/remote/oci"]),
    ("oci_spec", &["src/remote/oci"]),
    ("reqwest", &["src/remote"]),
    ("sha2", &["src/remote"]),
    ("rustic_backend", &["src/remote"]),
    ("rustic_core", &["src/remote"]),
    ("aes256ctr_poly1305aes", &["src/remote/restic"]),
    ("prost", &["src/volumes/csi"]),
    ("prost_types", &["src/volumes/csi"]),
    ("protox", &["src/volumes/build.rs"]),
    ("ratatui", &["src/browse"]),
    ("rmcp", &["src/cli/mcp"]),
    (
        "tokio",
        &[
            "src/volumes/csi",
            "src/volumes",
            "src/cli/mcp",
            "src/remote",
        ],
    ),
    ("tonic", &["src/volumes/csi"]),
    ("tonic_prost_build", &["src/volumes/build.rs"]),
    ("unsafe", &["src/sys"]),
];

fn rank(layer: &str) -> Option<usize> {
    LAYERS.iter().position(|name| *name == layer)
}

/// Returns the top-level modules that the code names: `crate::a`, `crate::{a, b::c}`.
fn imports(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, word) in words(code) {
        if word != "crate" {
            continue;
        }
        let Some(rest) = code[index + word.len()..].trim_start().strip_prefix("::") else {
            continue;
        };
        let rest = rest.trim_start();
        let names: Vec<&str> = match rest.strip_prefix('{') {
            Some(group) => top_names(group),
            None => words(rest)
                .first()
                .map(|(_, name)| *name)
                .into_iter()
                .collect(),
        };
        found.extend(
            names
                .into_iter()
                .map(|name| (line_of(code, index), name.to_owned())),
        );
    }
    found
}

/// Returns the first word of each member of an import group, given the text after its opening
/// brace.
fn top_names(group: &str) -> Vec<&str> {
    let (mut depth, mut start, mut names) = (0, 0, Vec::new());
    for (index, c) in group.char_indices() {
        if depth == 0 && (c == ',' || c == '}') {
            names.extend(words(&group[start..index]).first().map(|(_, name)| *name));
            start = index + 1;
        }
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            _ => {}
        }
    }
    names
}

/// Returns the crates of this workspace among the dependencies of a manifest, without those of
/// tests.
fn dependencies(manifest: &str) -> Vec<&str> {
    let sections = manifest.split("\n[");
    sections
        .filter(|section| section.starts_with("dependencies]"))
        .flat_map(str::lines)
        .filter_map(|line| line.strip_prefix("ckptfs-")?.split(['.', ' ']).next())
        .collect()
}

#[test]
fn crates_depend_downward_only() {
    let mut offences = Vec::new();
    for path in files("src", "toml")
        .into_iter()
        .chain(["Cargo.toml".into()])
    {
        let name = path.strip_prefix("src").map_or("", |below| {
            below.iter().next().and_then(|name| name.to_str()).unwrap()
        });
        let Some((_, allowed)) = CRATES.iter().find(|(known, _)| *known == name) else {
            offences.push(format!("{}: not in the table", path.display()));
            continue;
        };
        for other in dependencies(&read(&path)) {
            if !allowed.contains(&other) {
                offences.push(format!("{name} depends on {other}"));
            }
        }
    }
    expect_none(
        "a crate depends on those that tests/tidy/layers.rs lists",
        &offences,
    );
    assert_eq!(
        dependencies(
            "[a]\nckptfs-x = 1\n[dependencies]\nckptfs-b.workspace = true\nc = 1\nckptfs-d = { }\n[dev-dependencies]\nckptfs-e = 1"
        ),
        ["b", "d"]
    );
}

#[test]
fn layers_import_downward_only() {
    let mut offences = Vec::new();
    for path in files("src/core", "rs") {
        let below = path.strip_prefix("src/core").unwrap();
        let layer = below.iter().next().unwrap().to_str().unwrap();
        let Some(own) = rank(layer) else {
            continue;
        };
        for (line, import) in imports(&code_of(&read(&path))) {
            let allowed = import == layer || rank(&import).is_none_or(|other| other < own);
            if !allowed {
                offences.push(format!(
                    "{}:{line}: {layer} imports {import}",
                    path.display()
                ));
            }
        }
    }
    expect_none(
        "a layer imports only itself and the layers below it",
        &offences,
    );
}

#[test]
fn each_outside_crate_has_one_home() {
    let mut offences = Vec::new();
    for path in files("src", "rs") {
        let code = code_of(&read(&path));
        for (index, word) in words(&code) {
            let Some((_, homes)) = HOMES.iter().find(|(name, _)| *name == word) else {
                continue;
            };
            // A crate name is followed by `::` or stands after `use`; any other occurrence is an
            // identifier of this crate.
            let named =
                word == "unsafe" || code[index + word.len()..].trim_start().starts_with("::");
            if named && !homes.iter().any(|home| path.starts_with(home)) {
                offences.push(format!(
                    "{}:{}: `{word}` belongs in {}",
                    path.display(),
                    line_of(&code, index),
                    homes.join(", ")
                ));
            }
        }
    }
    expect_none("an outside crate is named only in its home", &offences);
}

#[test]
fn imports_are_found_in_groups_too() {
    let names = |code: &str| {
        imports(code)
            .into_iter()
            .map(|(_, name)| name)
            .collect::<Vec<_>>()
    };
    assert_eq!(names("use crate::sys::Stat;"), ["sys"]);
    assert_eq!(
        names("use crate::{store::{ids, record}, sys, live::Tree};"),
        ["store", "sys", "live"]
    );
    assert_eq!(names("fn f() -> crate::engine::Engine {}"), ["engine"]);
    assert_eq!(names("pub(crate) fn f() {}"), Vec::<String>::new());
}
