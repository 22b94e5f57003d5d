//! The documentation refers only to existing files and functions: links, tests, and the paths
//! through the code.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::code::{code_of, functions};
use super::{expect_none, files, read, root};

/// Returns the link targets in a Markdown text, except those in code.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        // Text between backticks is code: every second part.
        let prose: String = line
            .split('`')
            .enumerate()
            .map(|(part, text)| if part % 2 == 0 { text } else { "code" })
            .collect();
        for rest in prose.split("](").skip(1) {
            found.extend(
                rest.split_once(')')
                    .map(|(target, _)| target.split(' ').next().unwrap().to_owned()),
            );
        }
    }
    found
}

#[test]
fn links_in_the_documentation_resolve() {
    let mut pages: Vec<PathBuf> = ["docs", "docker", "mount", "benches", "tests"]
        .iter()
        .flat_map(|dir| files(dir, "md"))
        .collect();
    pages.extend(
        ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
            .map(PathBuf::from)
            .into_iter()
            .filter(|page| root().join(page).is_file()),
    );
    let mut offences = Vec::new();
    for page in pages {
        for link in links(&read(&page)) {
            let target = link.split('#').next().unwrap();
            let elsewhere =
                target.is_empty() || target.contains("://") || target.starts_with("mailto:");
            if !elsewhere && !root().join(page.parent().unwrap()).join(target).exists() {
                offences.push(format!("{}: {link}", page.display()));
            }
        }
    }
    expect_none("a link in the documentation leads to a file", &offences);
}

/// Returns the functions in `dir` that a page names between backticks, as `DIR/FILE::FUNCTION`.
fn named_functions(page: &str, dir: &str) -> Vec<(PathBuf, String)> {
    let code = page.split('`').skip(1).step_by(2);
    code.filter(|text| text.starts_with(dir))
        .filter_map(|text| text.split_once("::"))
        .map(|(file, name)| (file.into(), name.into()))
        .collect()
}

#[test]
fn tests_that_the_documentation_names_exist() {
    let mut offences = Vec::new();
    for page in files("docs", "md") {
        let page_text = read(&page);
        for (file, name) in [
            named_functions(&page_text, "tests/"),
            named_functions(&page_text, "src/"),
        ]
        .concat()
        {
            let found = root().join(&file).is_file()
                && functions(&code_of(&read(&file)))
                    .iter()
                    .any(|(_, known, _)| *known == name);
            if !found {
                offences.push(format!("{}: {}::{name}", page.display(), file.display()));
            }
        }
    }
    assert!(
        !named_functions(&read(Path::new("docs/semantics.md")), "tests/").is_empty(),
        "each promise names its test"
    );
    expect_none("a function named in the documentation exists", &offences);
}

/// Maximum number of files on one of design.md's paths through the code.
const PATH_FILES_MAX: usize = 12;

#[test]
fn a_newcomer_follows_each_path_through_few_files() {
    let page = read(Path::new("docs/design.md"));
    let section = page
        .split("\n## ")
        .find(|section| section.starts_with("Four paths"))
        .expect("design.md describes four paths");
    let paths: Vec<&str> = section.split("\n**").skip(1).collect();
    assert_eq!(
        paths.len(),
        4,
        "a write, a checkpoint, a read of a view, a restore"
    );
    for path in paths {
        let files: BTreeSet<PathBuf> = named_functions(path, "src/")
            .into_iter()
            .map(|(file, _)| file)
            .collect();
        let title = path.split("**").next().unwrap_or_default();
        assert!(
            (3..=PATH_FILES_MAX).contains(&files.len()),
            "{title} names {} files",
            files.len()
        );
    }
}

#[test]
fn named_functions_are_found_between_backticks() {
    assert_eq!(
        named_functions("| a | `tests/b.rs::c` | `d::e`, tests/f.rs::g", "tests/"),
        [(PathBuf::from("tests/b.rs"), "c".to_owned())]
    );
}

#[test]
fn links_in_code_do_not_count() {
    assert_eq!(
        links("[a](b.md#c) `[d](e)`\n```\n[f](g)\n```\n[h](i \"title\")"),
        ["b.md#c", "i"]
    );
}
