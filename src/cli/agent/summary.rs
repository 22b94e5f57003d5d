//! The changes of a command in one line for an agent: grouped by directory, of bounded length, with
//! escaped names.

use std::collections::{BTreeMap, BTreeSet};

use ckptfs_api::{Change, ChangeKind};
use ckptfs_sys::Kind;
use ckptfs_ui::output::escape;

/// A command that changed up to this number of paths, and removed none, is not reported.
const CHANGED_MAX: usize = 10;
/// Limit of the paths, or directories with their content, that are named.
const NAMED_MAX: usize = 20;
/// Limit of the paths in one directory that are named one by one.
const APART_MAX: usize = 4;
/// Limit of a name, in characters.
const NAME_CHARS_MAX: usize = 160;

/// A change: its letter, and the path as printed.
type Line = (char, String);

/// Returns the summary of a command; `None` if it is not worth a report.
///
/// `changes` are those of a restore that would revert the command.
pub fn of(changes: &[Change]) -> Option<String> {
    let done: Vec<(char, &Change)> = changes
        .iter()
        .map(|change| (done(change), change))
        .collect();
    let removed = done.iter().any(|(letter, _)| *letter == 'D');
    if !removed && done.len() <= CHANGED_MAX {
        return None;
    }
    let mut lines: Vec<Line> = Vec::new();
    for letter in ['D', 'R', 'M', 'T', 'A'] {
        let of_letter: Vec<&Change> = done
            .iter()
            .filter(|(found, _)| *found == letter)
            .map(|(_, change)| *change)
            .collect();
        lines.extend(drawn_together(letter, &of_letter));
    }
    let more = lines.len().saturating_sub(NAMED_MAX);
    let mut told: Vec<String> = lines
        .into_iter()
        .take(NAMED_MAX)
        .map(|(letter, text)| format!("{letter} {text}"))
        .collect();
    told.extend((more > 0).then(|| format!("and {more} more")));
    Some(format!("This command changed: {}", told.join(", ")))
}

/// Returns the letter of the change that a restore would revert in this way.
fn done(change: &Change) -> char {
    match change.change {
        ChangeKind::Added => 'D',
        ChangeKind::Deleted => 'A',
        other => other.letter(),
    }
}

/// Groups changes: an added or removed directory is named with its number of files, and so are many
/// files of one directory.
fn drawn_together(letter: char, changes: &[&Change]) -> Vec<Line> {
    let dirs: BTreeSet<&[u8]> = changes
        .iter()
        .filter(|change| change.kind == Kind::Dir && matches!(letter, 'D' | 'A'))
        .map(|change| change.path.0.as_slice())
        .collect();
    let mut tops: BTreeMap<&[u8], usize> = dirs
        .iter()
        .filter(|dir| top(dir, &dirs).is_none())
        .map(|dir| (*dir, 0))
        .collect();
    let mut apart: BTreeMap<&[u8], Vec<&Change>> = BTreeMap::new();
    for change in changes {
        let path = change.path.0.as_slice();
        if let Some(top) = top(path, &dirs) {
            *tops.entry(top).or_default() += usize::from(change.kind != Kind::Dir);
        } else if !dirs.contains(path) {
            apart.entry(parent(path)).or_default().push(change);
        }
    }
    let mut lines: Vec<Line> = tops
        .into_iter()
        .map(|(dir, files)| (letter, format!("{}/ ({})", shown(dir), count(files))))
        .collect();
    for (dir, files) in apart {
        if files.len() > APART_MAX && letter != 'R' {
            let dir = if dir.is_empty() {
                ".".into()
            } else {
                shown(dir)
            };
            lines.push((letter, format!("{dir}/ ({})", count(files.len()))));
        } else {
            lines.extend(files.into_iter().map(|file| (letter, name(file))));
        }
    }
    lines
}

/// Returns the topmost of some directories that contains a path.
fn top<'a>(path: &[u8], dirs: &BTreeSet<&'a [u8]>) -> Option<&'a [u8]> {
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    ends.map(|(at, _)| path.get(..at).unwrap_or_default())
        .find_map(|above| dirs.get(above).copied())
}

fn parent(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte == b'/');
    end.and_then(|end| path.get(..end)).unwrap_or_default()
}

/// Formats a path; of a rename, both in the order of the command, which a restore reverses.
fn name(change: &Change) -> String {
    match &change.from {
        Some(now) => format!("{} -> {}", shown(&change.path.0), shown(&now.0)),
        None => shown(&change.path.0),
    }
}

fn shown(path: &[u8]) -> String {
    let text = escape(path);
    match text.char_indices().nth(NAME_CHARS_MAX) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

fn count(files: usize) -> String {
    if files == 1 {
        "1 file".to_owned()
    } else {
        format!("{files} files")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    fn change(how: ChangeKind, kind: Kind, path: &str) -> Change {
        Change::new(path.as_bytes().to_vec(), how, kind)
    }

    #[test]
    fn little_that_removed_nothing_is_not_told() {
        let some: Vec<Change> = (0..CHANGED_MAX)
            .map(|n| change(ChangeKind::Modified, Kind::File, &format!("f{n}")))
            .collect();
        assert_eq!(of(&some), None);
        assert_eq!(of(&[]), None);
        let more = [some, vec![change(ChangeKind::Modified, Kind::File, "g")]].concat();
        assert_eq!(
            of(&more).as_deref(),
            Some("This command changed: M ./ (11 files)")
        );
    }

    #[test]
    fn a_removed_directory_is_told_with_how_many_files_it_had() {
        let all = [
            change(ChangeKind::Modified, Kind::File, ".env"),
            change(ChangeKind::Added, Kind::Dir, "src"),
            change(ChangeKind::Added, Kind::Dir, "src/a"),
            change(ChangeKind::Added, Kind::File, "src/a/1"),
            change(ChangeKind::Added, Kind::File, "src/b"),
            change(ChangeKind::Added, Kind::File, "srcs"),
            change(ChangeKind::Deleted, Kind::File, "x\n\x1b[31m"),
        ];
        assert_eq!(
            of(&all).as_deref(),
            Some(r"This command changed: D src/ (2 files), D srcs, M .env, A x\n\x1b[31m")
        );
    }

    #[test]
    fn it_has_a_bounded_length() {
        let all: Vec<Change> = (0..500)
            .map(|n| {
                let path = format!("{n}/{}", "é".repeat(5000));
                change(ChangeKind::Added, Kind::File, &path)
            })
            .collect();
        let told = of(&all).expect("files were removed");
        assert!(told.chars().count() < NAMED_MAX * (NAME_CHARS_MAX + 10) + 100);
        assert!(told.ends_with("and 480 more"), "{told}");
    }
}
