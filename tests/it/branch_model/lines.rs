//! A three-way merge of texts whose lines are all different. Lines are therefore unambiguous, and
//! the changes can be read off.

use std::collections::BTreeSet;

/// The result of a merge.
#[derive(Debug, PartialEq, Eq)]
pub enum Lines {
    Clean(Vec<u8>),
    Conflict,
    /// Tools differ: both sides changed adjacent lines, or a line was moved.
    Unclear,
}

/// Lines of the base and their replacement. An empty range is an insertion before `start`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hunk<'t> {
    start: usize,
    end: usize,
    instead: Vec<&'t [u8]>,
}

fn lines(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|byte| *byte == b'\n').collect()
}

fn are_different(lines: &[&[u8]]) -> bool {
    lines.iter().collect::<BTreeSet<_>>().len() == lines.len()
}

/// Returns the changes to the base, or `None` if lines were reordered.
fn hunks<'t>(base: &[&[u8]], now: &[&'t [u8]]) -> Option<Vec<Hunk<'t>>> {
    let (mut hunks, mut next, mut instead) = (Vec::new(), 0, Vec::new());
    let mut close = |next: usize, end: usize, instead: &mut Vec<&'t [u8]>| {
        if next < end || !instead.is_empty() {
            hunks.push(Hunk {
                start: next,
                end,
                instead: std::mem::take(instead),
            });
        }
    };
    for line in now {
        match base.iter().position(|old| old == line) {
            Some(at) if at >= next => {
                close(next, at, &mut instead);
                next = at + 1;
            }
            Some(_) => return None,
            None => instead.push(*line),
        }
    }
    close(next, base.len(), &mut instead);
    Some(hunks)
}

/// Returns the relation of two different hunks.
fn meet(a: &Hunk<'_>, b: &Hunk<'_>) -> Option<Lines> {
    let (start, end) = (a.start.max(b.start), a.end.min(b.end));
    let both_put_here = a.start == a.end && b.start == b.end && a.start == b.start;
    match () {
        () if start > end => None,
        () if start < end || both_put_here => Some(Lines::Conflict),
        () => Some(Lines::Unclear),
    }
}

/// Merges three texts.
pub fn merge(base: &[u8], ours: &[u8], theirs: &[u8]) -> Lines {
    let is_binary = |text: &[u8]| text[..text.len().min(8000)].contains(&0);
    if [base, ours, theirs].iter().any(|text| is_binary(text)) {
        return Lines::Conflict;
    }
    let (base, ours, theirs) = (lines(base), lines(ours), lines(theirs));
    if ![&base, &ours, &theirs]
        .iter()
        .all(|text| are_different(text))
    {
        return Lines::Unclear;
    }
    let (Some(a), Some(b)) = (hunks(&base, &ours), hunks(&base, &theirs)) else {
        return Lines::Unclear;
    };
    let met: Vec<Lines> = a
        .iter()
        .flat_map(|a| b.iter().filter(move |b| *b != a).map(move |b| (a, b)))
        .filter_map(|(a, b)| meet(a, b))
        .collect();
    if met.contains(&Lines::Unclear) {
        return Lines::Unclear;
    }
    if !met.is_empty() {
        return Lines::Conflict;
    }
    let mut all: Vec<&Hunk<'_>> = a
        .iter()
        .chain(b.iter().filter(|hunk| !a.contains(hunk)))
        .collect();
    all.sort_by_key(|hunk| (hunk.start, hunk.end));
    let (mut merged, mut next) = (Vec::new(), 0);
    for hunk in all {
        merged.extend_from_slice(&base[next..hunk.start]);
        merged.extend_from_slice(&hunk.instead);
        next = hunk.end;
    }
    merged.extend_from_slice(&base[next..]);
    Lines::Clean(merged.concat())
}

#[test]
fn lines_are_merged() {
    let text = |lines: &str| -> Vec<u8> {
        let lines = lines.chars().map(|line| format!("{line}\n"));
        lines.collect::<String>().into()
    };
    let merged = |a, b, c| merge(&text(a), &text(b), &text(c));
    let clean = |lines| Lines::Clean(text(lines));
    assert_eq!(merged("abcdef", "Abcdef", "abcdeF"), clean("AbcdeF"));
    assert_eq!(merged("abcdef", "xabcdef", "abcdefy"), clean("xabcdefy"));
    assert_eq!(merged("abcdef", "abdef", "abcdeZ"), clean("abdeZ"));
    assert_eq!(merged("abcdef", "abdeZ", "aXcdeZ"), Lines::Unclear);
    assert_eq!(merged("abcdef", "abcdeZ", "XbcdeZ"), clean("XbcdeZ"));
    assert_eq!(merged("abc", "aXc", "aYc"), Lines::Conflict);
    assert_eq!(merged("abc", "aXc", "ac"), Lines::Conflict);
    assert_eq!(merged("abc", "Xbc", "aYc"), Lines::Unclear);
}
