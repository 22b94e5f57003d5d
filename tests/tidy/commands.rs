//! Commands in messages can be pasted into a shell.

use super::{expect_none, files, read};

/// Placeholders that need no quoting: numbers and our fixed words.
const SAFE_IN_COMMANDS: [&str; 5] = ["id", "guard", "checkpoint", "state", "client"];

/// Returns whether a literal shows a `ckptfs` command with an unquoted placeholder. `around`
/// contains the lines that may have its arguments.
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
    // `@{10min ago}` is a state, not a placeholder.
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
        "values in a command that is shown are quoted with `engine::word`",
        &offences,
    );
}
