//! Every source and test file is compiled.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::code::{code_of, words};
use super::{expect_none, files, our_code, read, root};

/// Returns the files that `path` includes with `mod name;` or `#[path]`.
fn submodules(path: &Path) -> Vec<PathBuf> {
    let source = read(path);
    let stem = path.file_stem().unwrap();
    let is_root = ["lib", "main", "mod"].iter().any(|name| stem == *name)
        || path.parent() == Some(Path::new("tests"));
    let dir = if is_root {
        path.parent().unwrap().to_owned()
    } else {
        path.with_extension("")
    };
    let code = code_of(&source);
    let all = words(&code);
    let declared = all.windows(2).filter(|pair| {
        pair[0].1 == "mod"
            && code[pair[1].0 + pair[1].1.len()..]
                .trim_start()
                .starts_with(';')
    });
    let mut found: Vec<PathBuf> = declared
        .flat_map(|pair| {
            [
                dir.join(format!("{}.rs", pair[1].1)),
                dir.join(pair[1].1).join("mod.rs"),
            ]
        })
        .collect();
    for given in source
        .lines()
        .filter_map(|line| line.trim().strip_prefix("#[path = \"")?.split('"').next())
    {
        found.push(normal(&path.parent().unwrap().join(given)));
    }
    found.retain(|path| root().join(path).is_file());
    found
}

/// Resolves `..` and `.` lexically.
fn normal(path: &Path) -> PathBuf {
    let mut result = PathBuf::new();
    for part in path {
        match part.to_str() {
            Some("..") => drop(result.pop()),
            Some(".") => {}
            _ => result.push(part),
        }
    }
    result
}

/// Returns the roots of compilation units, and whether each is a test target.
fn targets() -> Vec<(PathBuf, bool)> {
    let mut found = ["src/main.rs", "src/build.rs", "tests/testkit/lib.rs"]
        .map(|path| (PathBuf::from(path), false))
        .to_vec();
    for manifest in files("src", "toml") {
        let dir = manifest.parent().unwrap();
        found.extend(["lib.rs", "main.rs", "build.rs"].map(|name| (dir.join(name), false)));
    }
    for dir in ["tests", "benches"] {
        for path in files(dir, "rs") {
            let depth = path.iter().count();
            if depth == 2 || (depth == 3 && path.ends_with("main.rs")) {
                found.push((path, dir == "tests"));
            }
        }
    }
    found.retain(|(path, _)| root().join(path).is_file());
    found
}

/// Returns every file that is compiled as part of the target.
fn reachable(target: &Path) -> BTreeSet<PathBuf> {
    let mut seen = BTreeSet::new();
    let mut pending = vec![target.to_owned()];
    while let Some(path) = pending.pop() {
        if seen.insert(path.clone()) {
            pending.extend(submodules(&path));
        }
    }
    seen
}

#[test]
fn no_file_is_an_orphan() {
    let compiled: BTreeSet<PathBuf> = targets()
        .iter()
        .flat_map(|(target, _)| reachable(target))
        .collect();
    let mut offences: Vec<String> = our_code()
        .iter()
        .filter(|path| !compiled.contains(*path))
        .map(|path| format!("{}: no target compiles it", path.display()))
        .collect();
    for (target, _) in targets().iter().filter(|(_, is_test)| *is_test) {
        let own = reachable(target)
            .into_iter()
            .filter(|path| !path.starts_with("tests/it/common"));
        let tests = own.filter(|path| has_tests(&code_of(&read(path)))).count();
        if tests == 0 {
            offences.push(format!("{}: a test target without tests", target.display()));
        }
    }
    expect_none(
        "every Rust file is compiled and every test target has tests",
        &offences,
    );
}

/// Returns whether the code has `#[test]` functions or one of the macros that generate them.
fn has_tests(code: &str) -> bool {
    [
        "#[test]",
        "for_each_variant!",
        "proptest!",
        "prop_state_machine!",
    ]
    .iter()
    .any(|sign| code.contains(sign))
}

/// Returns the names of the public items that a source file defines: functions, methods, types and
/// constants, but not those of traits.
fn public_items(code: &str) -> Vec<&str> {
    let all = words(code);
    let mut found = Vec::new();
    for three in all.windows(3) {
        let [(_, visible), (_, kind), (at, name)] = three else {
            continue;
        };
        let kinds = ["fn", "struct", "enum", "const", "static", "type", "trait"];
        if *visible == "pub" && kinds.contains(kind) && *name != "fn" && *at > 0 {
            found.push(*name);
        }
    }
    found
}

#[test]
fn every_public_item_is_used() {
    let mut counts = std::collections::HashMap::<String, usize>::new();
    let code: Vec<(PathBuf, String)> = our_code()
        .into_iter()
        .map(|path| (path.clone(), code_of(&read(&path))))
        .collect();
    for (_, code) in &code {
        for (_, word) in words(code) {
            *counts.entry(word.to_owned()).or_default() += 1;
        }
    }
    let mut offences = Vec::new();
    for (path, code) in code.iter().filter(|(path, _)| path.starts_with("src")) {
        for name in public_items(code) {
            if counts.get(name) == Some(&1) {
                offences.push(format!("{}: {name}", path.display()));
            }
        }
    }
    expect_none("every public item is used", &offences);
    assert_eq!(
        public_items(
            "pub fn a() { pub struct B; } fn c() {} pub const D: u8 = 1; pub const fn e() {}"
        ),
        ["a", "B", "D"]
    );
}
