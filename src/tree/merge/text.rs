//! Three versions of a text, by lines.

use diffy::{ConflictStyle, MergeOptions};

/// A file of more bytes is no text: lines are compared in memory, in time that grows with what
/// differs.
pub const BYTES_MAX: u64 = 8 * 1024 * 1024;
/// A NUL among so many bytes at the beginning says that a file is no text, as git has it
/// (`buffer_is_binary` in xdiff-interface.c).
const LOOKED_AT: usize = 8000;

/// What came of three versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Text {
    /// What both sides did is in it.
    Clean(Vec<u8>),
    /// Both changed the same lines: there are both versions with the base between them, as `git
    /// merge-file --diff3` shows it.
    Conflict(Vec<u8>),
    /// One of them is no text.
    Binary,
}

/// Merges by lines what both sides did to a text.
pub fn merge(base: &[u8], ours: &[u8], theirs: &[u8]) -> Text {
    let is_binary = |bytes: &[u8]| bytes[..bytes.len().min(LOOKED_AT)].contains(&0);
    if [base, ours, theirs].into_iter().any(is_binary) {
        return Text::Binary;
    }
    let mut options = MergeOptions::new();
    options.set_conflict_style(ConflictStyle::Diff3);
    match options.merge_bytes(base, ours, theirs) {
        Ok(text) => Text::Clean(text),
        Err(text) => Text::Conflict(text),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::Command;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

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
            .args(["merge-file", "-p", "--diff3"])
            .args(&paths)
            .output()
            .expect("git");
        (done.status.success(), done.stdout)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..crate::sys::fuzz::config() })]

        /// What git merges cleanly is merged so. No line is there twice: where one is, what belongs to which is a matter of taste, and
        /// the two differ in one merge of some hundreds.
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
                prop_assert_eq!(merge(&base, &ours, &theirs), Text::Clean(text));
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
        );
        assert_eq!(
            merged,
            Text::Clean(b"ONE\ntwo\nthree\nfour\nFIVE\n".to_vec())
        );
        let merged = merge(b"a\n", b"b\n", b"c\n");
        let marked = b"<<<<<<< ours\nb\n||||||| original\na\n=======\nc\n>>>>>>> theirs\n";
        assert_eq!(merged, Text::Conflict(marked.to_vec()));
        assert_eq!(merge(b"a\0", b"b", b"c"), Text::Binary);
    }
}
