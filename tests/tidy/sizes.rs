//! Size limits of files and functions, and rustfmt's default line width.

use std::path::{Path, PathBuf};

use super::code::{code_of, functions};
use super::{expect_none, our_code, read};

const FILE_LINES_MAX: usize = 600;

const FUNCTION_LINES_MAX: usize = 70;

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

/// rustfmt's default line width.
const WIDTH_DEFAULT: u64 = 100;

/// Returns the settings in rustfmt.toml that change a width from rustfmt's default.
fn other_widths(settings: &str) -> Vec<String> {
    let set = settings.lines().filter_map(|line| {
        let (name, value) = line.split('#').next()?.split_once('=')?;
        Some((name.trim(), value.trim()))
    });
    let is_other = |(name, value): &(&str, &str)| match *name {
        "max_width" => value.parse() != Ok(WIDTH_DEFAULT),
        "use_small_heuristics" => *value != "\"Default\"",
        _ => name.ends_with("_width"),
    };
    let shown = |(name, value)| format!("rustfmt.toml: {name} = {value}");
    set.filter(is_other).map(shown).collect()
}

#[test]
fn lines_are_as_long_as_everywhere() {
    assert_eq!(
        other_widths("edition = \"2024\"\nmax_width = 100 # ours\n"),
        [""; 0]
    );
    for other in [
        "max_width = 150",
        "comment_width=160",
        "use_small_heuristics = \"Max\"",
    ] {
        assert_eq!(other_widths(other).len(), 1, "{other}");
    }
    expect_none(
        "the default widths of rustfmt are used",
        &other_widths(&read(Path::new("rustfmt.toml"))),
    );
}
