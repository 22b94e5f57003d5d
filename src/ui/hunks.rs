//! The hunks of a patch: for `git apply`, or for reading, with colors, the changes within a line,
//! or word by word (git-diff(1), `--word-diff=plain`).

use std::ops::Range;
use std::time::{Duration, Instant};

use similar::{Algorithm, ChangeTag, DiffOp, DiffTag, TextDiff, capture_diff_slices_deadline};

use crate::output::{Out, Role};

/// Time after which the difference of one file is approximated.
const DIFF_TIME_MAX: Duration = Duration::from_secs(5);
/// Time after which the words of one change, or the changes within its lines, are approximated.
const WORDS_TIME_MAX: Duration = Duration::from_millis(500);
/// Unchanged lines around a change.
const CONTEXT_LINES: usize = 3;
const NO_NEWLINE: &[u8] = b"\\ No newline at end of file";

type Diff<'a> = TextDiff<'a, 'a, 'a, [u8]>;

/// Style of a patch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Mark added and removed words in the line, instead of whole lines.
    pub words: bool,
}

/// Appends the hunks from one text to another.
pub fn print(patch: &mut Vec<u8>, old: &[u8], new: &[u8], style: Style, out: &Out) {
    // A line ends with a newline, as in git, and not with a carriage return alone.
    let [old, new] = [old, new].map(|text| {
        let lines = text.split_inclusive(|byte| *byte == b'\n');
        lines.collect::<Vec<&[u8]>>()
    });
    let diff = TextDiff::configure()
        .algorithm(Algorithm::Myers)
        .timeout(DIFF_TIME_MAX)
        .newline_terminated(true)
        .diff_slices(&old, &new);
    let mut unified = diff.unified_diff();
    unified.context_radius(CONTEXT_LINES);
    for hunk in unified.iter_hunks() {
        let header = out.paint(Role::Tag, &hunk.header().to_string());
        patch.extend_from_slice(header.as_bytes());
        patch.push(b'\n');
        for op in hunk.ops() {
            if style.words {
                words_of(patch, &diff, op, out);
            } else if out.has_color() && op.tag() == DiffTag::Replace {
                emphasised(patch, &diff, op, out);
            } else {
                for change in diff.iter_changes(op) {
                    line(patch, change.tag(), &[(false, change.value())], out);
                }
            }
        }
    }
}

/// Appends the lines of a change, with emphasis on the changes within them.
fn emphasised<'a>(patch: &mut Vec<u8>, diff: &'a Diff<'a>, op: &DiffOp, out: &Out) {
    let deadline = Instant::now() + WORDS_TIME_MAX;
    for change in diff.iter_inline_changes_deadline(op, Some(deadline)) {
        line(patch, change.tag(), change.values(), out);
    }
}

/// Appends one line, in parts with or without emphasis.
fn line(patch: &mut Vec<u8>, tag: ChangeTag, parts: &[(bool, &[u8])], out: &Out) {
    let (sign, role, strong) = match tag {
        ChangeTag::Equal => (" ", None, None),
        ChangeTag::Delete => ("-", Some(Role::Bad), Some(Role::BadPart)),
        ChangeTag::Insert => ("+", Some(Role::Good), Some(Role::GoodPart)),
    };
    patch.extend(out.painted(role, sign.as_bytes()));
    let is_other = |(is_emphasised, text): &(bool, &[u8])| *is_emphasised || *text == b"\n";
    // Emphasis on a whole line is useless.
    let strong = if parts.iter().all(is_other) {
        role
    } else {
        strong
    };
    for (is_emphasised, text) in parts {
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        let role = if *is_emphasised { strong } else { role };
        patch.extend(out.painted(role, &out.content(text)));
    }
    patch.push(b'\n');
    let is_ended = parts.last().is_some_and(|(_, text)| text.ends_with(b"\n"));
    if !is_ended {
        patch.extend([NO_NEWLINE, b"\n"].concat());
    }
}

/// Appends the lines of a change, or between changes, word by word.
fn words_of(patch: &mut Vec<u8>, diff: &Diff<'_>, op: &DiffOp, out: &Out) {
    let lines = |all: &[&[u8]], of: Range<usize>| all.get(of).unwrap_or_default().concat();
    let new = lines(diff.new_slices(), op.new_range());
    if op.tag() == DiffTag::Equal {
        marked(patch, &new, None, out);
    } else {
        words(patch, &lines(diff.old_slices(), op.old_range()), &new, out);
    }
    if !patch.ends_with(b"\n") {
        patch.push(b'\n');
    }
}

/// Appends the new text, with added and removed words marked. White space is ignored, and printed
/// as in the new text.
fn words(patch: &mut Vec<u8>, old: &[u8], new: &[u8], out: &Out) {
    let (old_words, new_words) = (split(old), split(new));
    let ops = capture_diff_slices_deadline(
        Algorithm::Myers,
        &texts(old, &old_words),
        &texts(new, &new_words),
        Some(Instant::now() + WORDS_TIME_MAX),
    );
    let mut told = 0;
    for op in ops.iter().filter(|op| op.tag() != DiffTag::Equal) {
        let (gone, came) = (
            span(&old_words, op.old_range()),
            span(&new_words, op.new_range()),
        );
        marked(patch, part(new, told..came.start), None, out);
        let marks = (Role::Bad, "[-", "-]");
        marked(patch, part(old, gone), Some(marks), out);
        told = came.end;
        let marks = (Role::Good, "{+", "+}");
        marked(patch, part(new, came), Some(marks), out);
    }
    marked(patch, part(new, told..new.len()), None, out);
}

fn part(text: &[u8], of: Range<usize>) -> &[u8] {
    text.get(of).unwrap_or_default()
}

fn texts<'a>(text: &'a [u8], words: &[Range<usize>]) -> Vec<&'a [u8]> {
    words.iter().map(|word| part(text, word.clone())).collect()
}

/// Appends a part of a text, each line of it between marks.
fn marked(patch: &mut Vec<u8>, text: &[u8], marks: Option<(Role, &str, &str)>, out: &Out) {
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let end = if line.ends_with(b"\n") { "\n" } else { "" };
        let shown = out.content(line.strip_suffix(b"\n").unwrap_or(line));
        match marks {
            Some((role, before, after)) if !shown.is_empty() => {
                let all = [before.as_bytes(), &shown, after.as_bytes()].concat();
                patch.extend(out.painted(Some(role), &all));
            }
            _ => patch.extend_from_slice(&shown),
        }
        patch.extend_from_slice(end.as_bytes());
    }
}

/// Returns the ranges of the words of a text.
fn split(text: &[u8]) -> Vec<Range<usize>> {
    let mut words = Vec::new();
    let mut start = 0;
    for word in text.split(u8::is_ascii_whitespace) {
        if !word.is_empty() {
            words.push(start..start + word.len());
        }
        start += word.len() + 1;
    }
    words
}

/// Returns the range from the first of some words to the last; without words, the end of the word
/// before.
fn span(words: &[Range<usize>], of: Range<usize>) -> Range<usize> {
    match words.get(of.clone()) {
        Some([first, .., last]) => first.start..last.end,
        Some([only]) => only.clone(),
        _ => {
            let before = of.start.checked_sub(1).and_then(|at| words.get(at));
            let at = before.map_or(0, |word| word.end);
            at..at
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worded(old: &str, new: &str) -> String {
        let (mut patch, out) = (Vec::new(), Out::to_memory(0));
        print(
            &mut patch,
            old.as_bytes(),
            new.as_bytes(),
            Style { words: true },
            &out,
        );
        String::from_utf8(patch).expect("text")
    }

    /// The output of `git diff --word-diff` of git 2.39.
    #[test]
    fn words_are_marked_as_git_marks_them() {
        let told = [
            ("a b c\nx y\n", "a c\nx q y\n", "a[-b-] c\nx {+q+} y\n"),
            (
                "one two three\n",
                "one 2 drei\nmore\n",
                "one [-two three-]{+2 drei+}\n{+more+}\n",
            ),
            (
                "one two three\nzz\nlast",
                "more\nlast",
                "[-one two three-]\n[-zz-]{+more+}\nlast\n",
            ),
        ];
        for (old, new, expected) in told {
            let patch = worded(old, new);
            let (_, hunk) = patch.split_once(" @@\n").expect("a header");
            assert_eq!(hunk, expected);
        }
    }

    /// The crate similar ends a line there and git does not, so the patch was invalid.
    #[test]
    fn a_carriage_return_alone_ends_no_line() {
        let (mut patch, out) = (Vec::new(), Out::to_memory(0));
        print(
            &mut patch,
            b"a\rb\nc\r",
            b"a\rc\nc\r",
            Style::default(),
            &out,
        );
        assert_eq!(
            String::from_utf8(patch).expect("text"),
            "@@ -1,2 +1,2 @@\n-a\rb\n+a\rc\n c\r\n\\ No newline at end of file\n"
        );
    }
}
