//! Three-way merge of text by lines.

use diffy::{ConflictStyle, IncompleteHunkStyle, MergeOptions};

/// Size limit of a text, in bytes: lines are compared in memory, in time that grows with the
/// differences.
pub const BYTES_MAX: u64 = 8 * 1024 * 1024;
/// A NUL in the first bytes marks a file as binary, as in git (`buffer_is_binary` in
/// xdiff-interface.c).
const LOOKED_AT: usize = 8000;

/// Default length of a conflict marker, as in git.
const MARKER: usize = 7;

/// The names of the versions in conflict markers.
#[derive(Clone, Copy, Debug)]
pub struct Labels<'l> {
    /// The side merged into.
    pub ours: &'l str,
    /// The common ancestor.
    pub base: &'l str,
    /// The side merged.
    pub theirs: &'l str,
}

/// The result of a text merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Text {
    /// The merged text.
    Clean(Vec<u8>),
    /// The text with conflict markers: both versions, with the base between them, as `git
    /// merge-file --diff3` prints it.
    Conflict(Vec<u8>),
    /// One version is binary.
    Binary,
}

/// Merges the changes of both sides by lines. Markers are longer than the default if a line of the
/// text begins like a marker.
pub fn merge(base: &[u8], ours: &[u8], theirs: &[u8], labels: Labels<'_>) -> Text {
    let is_binary = |bytes: &[u8]| bytes[..bytes.len().min(LOOKED_AT)].contains(&0);
    if [base, ours, theirs].into_iter().any(is_binary) {
        return Text::Binary;
    }
    let mut options = MergeOptions::new();
    let marker = marker_length([base, ours, theirs]);
    options
        .set_conflict_style(ConflictStyle::Diff3)
        .set_incomplete_hunk_style(IncompleteHunkStyle::Git)
        .set_conflict_marker_length(marker);
    match options.merge_bytes(base, ours, theirs) {
        Ok(text) => Text::Clean(text),
        Err(text) => Text::Conflict(labeled(&text, marker, labels)),
    }
}

/// Returns the marker length that distinguishes markers from the lines of these texts.
pub fn marker_length(texts: [&[u8]; 3]) -> usize {
    texts
        .into_iter()
        .map(longest_marker)
        .fold(MARKER, usize::max)
}

/// Returns one more than the longest run of a marker character at the start of a line, or 0 if no
/// run is as long as a marker.
fn longest_marker(text: &[u8]) -> usize {
    let run = |line: &[u8]| {
        let first = line.first().copied().filter(|byte| b"<|=>".contains(byte));
        first.map_or(0, |first| {
            line.iter().take_while(|byte| **byte == first).count()
        })
    };
    let longest = text.split(|byte| *byte == b'\n').map(run).max();
    longest
        .filter(|run| *run >= MARKER)
        .map_or(0, |run| run + 1)
}

/// Replaces the labels of markers; no line of the text begins like a marker of this length.
fn labeled(text: &[u8], marker: usize, labels: Labels<'_>) -> Vec<u8> {
    let line = |sign: &str, label: &str| format!("{} {label}\n", sign.repeat(marker)).into_bytes();
    let known = [
        (line("<", "ours"), line("<", labels.ours)),
        (line("|", "original"), line("|", labels.base)),
        (line(">", "theirs"), line(">", labels.theirs)),
    ];
    let relabel = |line: &[u8]| {
        let known = known.iter().find(|(given, _)| given == line);
        known.map_or_else(|| line.to_vec(), |(_, wanted)| wanted.clone())
    };
    text.split_inclusive(|byte| *byte == b'\n')
        .flat_map(relabel)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::Command;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const LABELS: Labels<'_> = Labels {
        ours: "here",
        base: "before",
        theirs: "there",
    };

    fn git(base: &[u8], ours: &[u8], theirs: &[u8]) -> (bool, Vec<u8>) {
        let dir = tempfile::tempdir().expect("a directory");
        let file = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            std::fs::File::create(&path)
                .and_then(|mut file| file.write_all(bytes))
                .expect("written");
            path
        };
        let paths = [
            file("ours", ours),
            file("base", base),
            file("theirs", theirs),
        ];
        let done = Command::new("git")
            .args([
                "merge-file",
                "-p",
                "--diff3",
                "-L",
                "here",
                "-L",
                "before",
                "-L",
                "there",
            ])
            .args(&paths)
            .output()
            .expect("git");
        (done.status.success(), done.stdout)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ckptfs_testkit::config() })]

        /// Clean merges equal those of git. The lines are distinct: repeated lines can be matched
        /// in several valid ways, and the two differ in one of some hundred merges.
        #[test]
        fn a_clean_merge_is_that_of_git(
            lines in 1..20_usize,
            ours in vec((0..20_usize, any::<bool>()), 0..4),
            theirs in vec((0..20_usize, any::<bool>()), 0..4),
        ) {
            let edited = |edits: &[(usize, bool)], who: &str| {
                let mut text: Vec<String> = (0..lines).map(|line| format!("{line}\n")).collect();
                for (number, (at, replaces)) in edits.iter().enumerate() {
                    let (at, line) = (at % text.len(), format!("{who} {number}\n"));
                    if *replaces {
                        text[at] = line;
                    } else {
                        text.insert(at, line);
                    }
                }
                text.concat().into_bytes()
            };
            let (base, ours, theirs) = (edited(&[], ""), edited(&ours, "ours"), edited(&theirs, "theirs"));
            let (clean, text) = git(&base, &ours, &theirs);
            if clean {
                prop_assert_eq!(merge(&base, &ours, &theirs, LABELS), Text::Clean(text));
            }
        }
    }

    #[test]
    fn what_both_did_in_other_places_is_there_and_what_they_did_in_one_is_marked() {
        let base = b"one\ntwo\nthree\nfour\nfive\n";
        let merged = merge(
            base,
            b"ONE\ntwo\nthree\nfour\nfive\n",
            b"one\ntwo\nthree\nfour\nFIVE\n",
            LABELS,
        );
        assert_eq!(
            merged,
            Text::Clean(b"ONE\ntwo\nthree\nfour\nFIVE\n".to_vec())
        );
        for (base, ours, theirs) in [("a\n", "b\n", "c\n"), ("a", "b", "c")] {
            let [base, ours, theirs] = [base, ours, theirs].map(str::as_bytes);
            let marked = git(base, ours, theirs).1;
            assert!(marked.starts_with(b"<<<<<<< here\nb\n||||||| before\na\n======="));
            assert_eq!(merge(base, ours, theirs, LABELS), Text::Conflict(marked));
        }
        assert_eq!(merge(b"a\0", b"b", b"c", LABELS), Text::Binary);
    }

    #[test]
    fn a_marker_is_longer_than_what_looks_like_one() {
        let merged = merge(b"=======\n", b"<<<<<<<< ours\n", b"c\n", LABELS);
        let marked = b"<<<<<<<<< here\n<<<<<<<< ours\n||||||||| before\n=======\n=========\nc\n>>>>>>>>> there\n";
        assert_eq!(merged, Text::Conflict(marked.to_vec()));
    }
}
