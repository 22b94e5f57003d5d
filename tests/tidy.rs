//! The rules of the house that no lint knows: layers import downward only, each outside crate has
//! one home, files and functions stay short, every source and test file is compiled, links in the
//! documentation resolve, and nothing strange lies at the top.

#[path = "tidy/shape.rs"]
mod shape;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The layers, bottom to top. A layer may import itself and those below; those of one rank know
/// nothing of each other.
const LAYERS: [&[&str]; 10] = [
    &["sys"],
    &["store"],
    &["history"],
    &["tree"],
    &["live"],
    &["engine"],
    &["fuse", "control", "transfer"],
    &["volumes"],
    &["csi"],
    &["cli"],
];

/// What may be named only there.
const HOMES: [(&str, &[&str]); 19] = [
    ("fuser", &["src/fuse"]),
    ("sled", &["src/store"]),
    ("rayon_core", &["src/store"]),
    ("reflink_copy", &["src/sys"]),
    ("parking_lot", &["src/sys"]),
    ("clap", &["src/cli", "src/main.rs"]),
    ("clap_complete", &["src/cli", "src/main.rs"]),
    ("indicatif", &["src/cli", "src/main.rs"]),
    ("toml_edit", &["src/engine"]),
    ("globset", &["src/engine"]),
    ("strsim", &["src/engine"]),
    ("hyper", &["src/volumes"]),
    ("prost", &["src/csi"]),
    ("prost_types", &["src/csi"]),
    ("protox", &["src/csi/build.rs"]),
    ("tokio", &["src/csi", "src/volumes"]),
    ("tonic", &["src/csi"]),
    ("tonic_prost_build", &["src/csi/build.rs"]),
    ("unsafe", &["src/sys"]),
];

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;

/// Everything that may be at the top level.
const TOP_LEVEL: [&str; 20] = [
    ".ci",
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

/// The source with comments and the insides of literals blanked; every line stays on its line.
fn code_of(source: &str) -> String {
    let text: Vec<char> = source.chars().collect();
    let mut code = String::with_capacity(source.len());
    let mut at = 0;
    while at < text.len() {
        let end = match text[at] {
            '/' if text.get(at + 1) == Some(&'/') => line_end(&text, at),
            '/' if text.get(at + 1) == Some(&'*') => comment_end(&text, at),
            '"' => string_end(&text, at),
            'r' if !in_word(&text, at) => raw_string_end(&text, at).unwrap_or(at),
            '\'' => char_end(&text, at).unwrap_or(at),
            _ => at,
        };
        if end == at {
            code.push(text[at]);
            at += 1;
        } else {
            code.extend(
                text[at..end]
                    .iter()
                    .map(|&c| if c == '\n' { '\n' } else { ' ' }),
            );
            at = end;
        }
    }
    code
}

/// Whether the character at `at` continues a word (`for"` is no raw string); `b` and `c` may stand
/// before one.
fn in_word(text: &[char], at: usize) -> bool {
    let before = |back: usize| at.checked_sub(back).map(|index| text[index]);
    let word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if matches!(before(1), Some('b' | 'c')) {
        word(before(2))
    } else {
        word(before(1))
    }
}

fn line_end(text: &[char], at: usize) -> usize {
    (at..text.len())
        .find(|&i| text[i] == '\n')
        .unwrap_or(text.len())
}

fn comment_end(text: &[char], at: usize) -> usize {
    let (mut depth, mut i) = (0, at);
    while i + 1 < text.len() {
        match (text[i], text[i + 1]) {
            ('/', '*') => (depth, i) = (depth + 1, i + 2),
            ('*', '/') => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    text.len()
}

fn string_end(text: &[char], at: usize) -> usize {
    let mut i = at + 1;
    while i < text.len() && text[i] != '"' {
        i += if text[i] == '\\' { 2 } else { 1 };
    }
    (i + 1).min(text.len())
}

fn raw_string_end(text: &[char], at: usize) -> Option<usize> {
    let hashes = text[at + 1..].iter().take_while(|&&c| c == '#').count();
    if text.get(at + 1 + hashes) != Some(&'"') {
        return None;
    }
    let closes = |i: usize| {
        text[i] == '"'
            && text[i + 1..]
                .iter()
                .take(hashes)
                .filter(|&&c| c == '#')
                .count()
                == hashes
    };
    (at + 2 + hashes..text.len())
        .find(|&i| closes(i))
        .map(|i| i + 1 + hashes)
}

/// A character literal, or `None` for a lifetime.
fn char_end(text: &[char], at: usize) -> Option<usize> {
    if text.get(at + 1) == Some(&'\\') {
        return (at + 3..text.len())
            .find(|&i| text[i] == '\'')
            .map(|i| i + 1);
    }
    (text.get(at + 2) == Some(&'\'')).then_some(at + 3)
}

/// The words of some code, with the index of each.
fn words(code: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut start = None;
    for (index, c) in code.char_indices().chain([(code.len(), ' ')]) {
        let inside = c.is_alphanumeric() || c == '_';
        match start {
            None if inside => start = Some(index),
            Some(from) if !inside => {
                found.push((from, &code[from..index]));
                start = None;
            }
            _ => {}
        }
    }
    found
}

fn line_of(code: &str, index: usize) -> usize {
    code[..index].matches('\n').count() + 1
}

fn rank(layer: &str) -> Option<usize> {
    LAYERS.iter().position(|names| names.contains(&layer))
}

/// The layer of a file in `src/`, or `None` for the crate's two roots, which may see everything.
fn layer_of(path: &Path) -> Option<String> {
    let below = path.strip_prefix("src").unwrap();
    if below == Path::new("lib.rs") || below == Path::new("main.rs") {
        return None;
    }
    Some(
        below
            .iter()
            .next()
            .unwrap()
            .to_string_lossy()
            .trim_end_matches(".rs")
            .to_owned(),
    )
}

/// The top-level modules that the code names: `crate::a`, `crate::{a, b::c}`, and the same with
/// `ckptfs::`.
fn imports(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, word) in words(code) {
        if word != "crate" && word != "ckptfs" {
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

/// The first word of each member of an import group, whose opening brace is already gone.
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

#[test]
fn layers_import_downward_only() {
    let mut offences = Vec::new();
    for path in files("src", "rs") {
        let Some(layer) = layer_of(&path) else {
            continue;
        };
        let Some(own) = rank(&layer) else {
            offences.push(format!(
                "{}: `{layer}` is no layer (the table is in tests/tidy.rs)",
                path.display()
            ));
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
            // As a crate it is followed by `::` or stands after `use`; anything else is a name of
            // our own.
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

/// Every Rust file that is ours.
fn our_code() -> Vec<PathBuf> {
    ["src", "tests", "benches"]
        .iter()
        .flat_map(|dir| files(dir, "rs"))
        .collect()
}

#[test]
fn files_are_short() {
    let long = |path: &PathBuf| {
        let lines = read(path).lines().count();
        (lines > FILE_LINES_MAX).then(|| format!("{}: {lines} lines", path.display()))
    };
    let offences: Vec<String> = our_code().iter().filter_map(long).collect();
    expect_none(
        &format!("a file has at most {FILE_LINES_MAX} lines"),
        &offences,
    );
}

/// Line, name and length in lines of each function with a body.
fn functions(code: &str) -> Vec<(usize, &str, usize)> {
    let all = words(code);
    let mut found = Vec::new();
    for (position, (index, word)) in all.iter().enumerate() {
        let Some((name_at, name)) = all.get(position + 1).filter(|_| *word == "fn") else {
            continue;
        };
        // `fn(u8) -> u8` is a type.
        if !code[index + 2..*name_at].trim().is_empty() {
            continue;
        }
        if let Some(end) = body_end(code, *name_at) {
            let line = line_of(code, *index);
            found.push((line, *name, line_of(code, end) - line + 1));
        }
    }
    found
}

/// The index of the brace that closes the body of the function whose name is at `from`, or `None`
/// for a mere declaration.
fn body_end(code: &str, from: usize) -> Option<usize> {
    let (mut parentheses, mut braces) = (0, 0);
    for (offset, c) in code[from..].char_indices() {
        match c {
            '(' | '[' => parentheses += 1,
            ')' | ']' => parentheses -= 1,
            ';' if parentheses == 0 && braces == 0 => return None,
            '{' => braces += 1,
            '}' => {
                braces -= 1;
                if braces == 0 && parentheses == 0 {
                    return Some(from + offset);
                }
            }
            _ => {}
        }
    }
    None
}

#[test]
fn functions_are_short() {
    let mut offences = Vec::new();
    for path in our_code() {
        for (line, name, length) in functions(&code_of(&read(&path))) {
            if length > FUNCTION_LINES_MAX {
                offences.push(format!(
                    "{}:{line}: {name} has {length} lines",
                    path.display()
                ));
            }
        }
    }
    expect_none(
        &format!("a function has at most {FUNCTION_LINES_MAX} lines"),
        &offences,
    );
}

/// The files that `mod name;` in `path` takes in.
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

/// Without `..` and `.`.
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

/// The roots of compilation units, and whether each is a test target.
fn targets() -> Vec<(PathBuf, bool)> {
    let mut found = ["src/lib.rs", "src/main.rs", "src/csi/build.rs"]
        .map(|path| (PathBuf::from(path), false))
        .to_vec();
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

/// Every file that is compiled as part of the target.
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

/// Tests are functions with the attribute, or come from one of these macros.
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

/// The targets of the links in some Markdown, without those in code.
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
        // What lies between backticks is code: every second part.
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

/// What may stand in a command that is shown as it is: numbers, and words of ours.
const SAFE_IN_COMMANDS: [&str; 5] = ["id", "guard", "checkpoint", "state", "client"];

/// Whether a literal shows a command of ours with something in it that was not made one word.
/// `around`: the lines that its arguments may be in.
fn shows_an_unquoted_name(literal: &str, around: &str) -> bool {
    let Some(command) = literal
        .find("ckptfs ")
        .map(|at| &literal[at + 7..])
        .filter(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '-'))
    else {
        return false;
    };
    let placeholders = command
        .split('{')
        .skip(1)
        .filter_map(|rest| rest.split_once('}'))
        .map(|(name, _)| name);
    let quoted = ["word(", ".id", ".number", "key.name"]
        .iter()
        .any(|sign| around.contains(sign));
    // `@{10min ago}` is a state, and no placeholder.
    placeholders
        .filter(|name| !name.contains(' '))
        .any(|name| match name.bytes().next() {
            None | Some(b'0'..=b'9') => !quoted,
            Some(first) => !first.is_ascii_uppercase() && !SAFE_IN_COMMANDS.contains(&name),
        })
}

#[test]
fn a_name_in_a_command_that_is_shown_is_one_word() {
    let bad = |literal: &str, around: &str| shows_an_unquoted_name(literal, around);
    assert!(
        bad("ckptfs mount {root}", "")
            && bad("do: ckptfs -C {} status", "x.display()")
            && bad("ckptfs log {0}", "(path)")
    );
    assert!(
        !bad("ckptfs mount {}", "word(root)")
            && !bad("ckptfs restore {guard}", "")
            && !bad("{name} is not of ckptfs here", "")
    );
    let mut offences = Vec::new();
    for path in files("src", "rs") {
        let text = read(&path);
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines
            .iter()
            .enumerate()
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
        {
            let around = lines[number..lines.len().min(number + 4)].join(" ");
            if line
                .split('"')
                .skip(1)
                .step_by(2)
                .any(|literal| shows_an_unquoted_name(literal, &around))
            {
                offences.push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    expect_none(
        "what is not ours in a command that is shown is quoted with `engine::word`",
        &offences,
    );
}

/// The functions in `dir` that a page names between backticks, as `DIR/FILE::FUNCTION`.
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

/// Files that one of the paths through the code that design.md tells may lead through.
const PATH_FILES_MAX: usize = 12;

#[test]
fn a_newcomer_follows_each_path_through_few_files() {
    let page = read(Path::new("docs/design.md"));
    let section = page
        .split("\n## ")
        .find(|section| section.starts_with("Four paths"))
        .expect("design.md tells of four paths");
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
            "{title} leads through {} files",
            files.len()
        );
    }
}

/// What git keeps; without git, what is there.
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
        "the top level holds exactly the names in tests/tidy.rs",
        &strange.chain(missing).collect::<Vec<_>>(),
    );
}

/// The scanner itself: a rule that sees nothing would pass for ever.
mod scanner {
    use super::*;

    #[test]
    fn comments_and_literals_are_no_code() {
        let source = "a /* b /* c */ d */ \"e \\\" f\" r#\"g \" h\"# 'i' '\\'' j::<'k> // l\nm";
        let code = code_of(source);
        let seen: Vec<&str> = words(&code).into_iter().map(|(_, word)| word).collect();
        assert_eq!(seen, ["a", "j", "k", "m"]);
        assert_eq!(code.lines().count(), 2);
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
        assert_eq!(names("fn f() -> ckptfs::engine::Engine {}"), ["engine"]);
        assert_eq!(names("pub(crate) fn f() {}"), Vec::<String>::new());
    }

    #[test]
    fn functions_are_measured_from_their_name_to_their_brace() {
        let code = "trait T { fn declared(&self);\n fn given(&self) {\n } }\nfn long<F>(f: F, g: fn(u8)) -> [u8; 2]\nwhere F: Fn()\n{\n if a { b }\n}\n";
        let found = functions(code);
        assert_eq!(found, [(2, "given", 2), (4, "long", 5)]);
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
}
