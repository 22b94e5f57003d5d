//! Changes as a patch for `git apply` (git-diff(1), "Generating patch text with -p").
//!
//! It contains regular files and symbolic links; git supports no other types, and no directories.
//! Binary content is written as by `git diff --binary`, except for a terminal, where the file is
//! only named. Files larger than [`BYTES_MAX`] are left out, because git rejects a patch that only
//! names them.

use std::collections::HashSet;
use std::io::{self, Read};

use miniz_oxide::deflate::compress_to_vec_zlib;

use crate::hunks::{self, Style};
use crate::output::{Out, Role};
use crate::past::StateTree;
use ckptfs_api::{Change, ChangeKind, TreePath};
use ckptfs_sys::{self as sys, Errno, Kind, SysResult};

/// A larger file is left out.
const BYTES_MAX: u64 = 64 << 20;
/// A NUL in this many bytes makes a file binary, as in git (`FIRST_FEW_BYTES` in
/// xdiff-interface.c).
const LOOKED_AT_BYTES: usize = 8000;

/// One side of a change.
struct Side {
    /// Mode as in git.
    mode: &'static str,
    content: Vec<u8>,
}

impl Side {
    fn is_binary(&self) -> bool {
        self.content
            .iter()
            .take(LOOKED_AT_BYTES)
            .any(|byte| *byte == 0)
    }
}

/// Paths that are in no patch.
#[derive(Debug, Default)]
pub struct SkippedPaths {
    /// Paths with a type that git does not support.
    pub strange: Vec<TreePath>,
    /// Paths that could not be read.
    pub unread: Vec<(TreePath, Errno)>,
}

/// Prints the patch from `from` to `to`. Returns the paths that are not in it.
pub fn print(
    out: &mut Out,
    changes: &[Change],
    (from, to): (&StateTree, &StateTree),
    style: Style,
) -> io::Result<SkippedPaths> {
    let mut left_out = SkippedPaths::default();
    let told: HashSet<&[u8]> = changes
        .iter()
        .filter(|change| change.change != ChangeKind::Deleted)
        .map(|change| change.path.0.as_slice())
        .collect();
    for change in changes {
        if let (Kind::Dir, Some(before)) = (change.kind, &change.from) {
            moved_along(out, before, &change.path, &told, to, &mut left_out)?;
        }
        let before = change.from.as_ref().unwrap_or(&change.path);
        let old = if change.change == ChangeKind::Added {
            Ok(None)
        } else {
            side(from, before)
        };
        let new = if change.change == ChangeKind::Deleted {
            Ok(None)
        } else {
            side(to, &change.path)
        };
        match (old, new) {
            (Ok(None), Ok(None)) if change.kind == Kind::Dir => {}
            (Ok(Some(old)), Ok(Some(new))) if old.mode.get(..2) != new.mode.get(..2) => {
                // Another type: in git a deletion and an addition.
                let part = text((before, &change.path), Some(&old), None, style, out);
                out.bytes(&part)?;
                let part = text((before, &change.path), None, Some(&new), style, out);
                out.bytes(&part)?;
            }
            (Ok(old), Ok(new)) if old.is_some() || new.is_some() => {
                let paths = (before, &change.path);
                let part = text(paths, old.as_ref(), new.as_ref(), style, out);
                out.bytes(&part)?
            }
            (Err(errno), _) | (_, Err(errno)) => left_out.unread.push((change.path.clone(), errno)),
            (Ok(_), Ok(_)) if change.kind == Kind::Dir => {}
            (Ok(_), Ok(_)) => left_out.strange.push(change.path.clone()),
        }
    }
    Ok(left_out)
}

/// Prints a rename for each file that moved with a directory and has no change itself, because git
/// does not support directories.
fn moved_along(
    out: &mut Out,
    before: &TreePath,
    after: &TreePath,
    told: &HashSet<&[u8]>,
    to: &StateTree,
    left_out: &mut SkippedPaths,
) -> io::Result<()> {
    let mut open = vec![(before.0.clone(), after.0.clone())];
    while let Some((before, after)) = open.pop() {
        let names = to
            .open_dir(&TreePath(after.clone()))
            .and_then(sys::list_dir);
        let mut names = match names {
            Ok(names) => names,
            Err(errno) => {
                left_out.unread.push((TreePath(after), errno));
                continue;
            }
        };
        names.sort_by(|a, b| a.name.cmp(&b.name));
        let mut below = Vec::new();
        for entry in names {
            let (before, after) = (
                [&before[..], b"/", &entry.name].concat(),
                [&after[..], b"/", &entry.name].concat(),
            );
            if told.contains(after.as_slice()) {
                continue;
            }
            let path = TreePath(after);
            match to.stat(&path).map(|stat| stat.kind) {
                Ok(Kind::Dir) => below.push((before, path.0)),
                Ok(Kind::File | Kind::Symlink) => {
                    let (a, b) = (quoted(b"a/", &before), quoted(b"b/", &path.0));
                    let (from, to) = (quoted(b"", &before), quoted(b"", &path.0));
                    let lines: [&[&[u8]]; 4] = [
                        &[b"diff --git ", &a, b" ", &b],
                        &[b"similarity index 100%"],
                        &[b"rename from ", &from],
                        &[b"rename to ", &to],
                    ];
                    for line in lines {
                        let line = out.painted(Some(Role::Strong), &line.concat());
                        out.bytes(&[&line[..], b"\n"].concat())?;
                    }
                }
                Ok(_) => left_out.strange.push(path),
                Err(errno) => left_out.unread.push((path, errno)),
            }
        }
        open.extend(below.into_iter().rev());
    }
    Ok(())
}

/// Reads one side of a change; `None` if nothing is there that git supports.
fn side(tree: &StateTree, path: &TreePath) -> SysResult<Option<Side>> {
    let there = match tree.open_path(path) {
        Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
        there => there?,
    };
    let stat = sys::stat_fd(&there)?;
    match stat.kind {
        Kind::Symlink => Ok(Some(Side {
            mode: "120000",
            content: sys::readlink_fd(&there)?,
        })),
        Kind::File => {
            let mode = if stat.mode & 0o111 == 0 {
                "100644"
            } else {
                "100755"
            };
            if stat.size > BYTES_MAX {
                return Err(Errno::EFBIG);
            }
            let mut content = Vec::new();
            tree.open_file(path)?
                .take(BYTES_MAX)
                .read_to_end(&mut content)?;
            Ok(Some(Side { mode, content }))
        }
        _ => Ok(None),
    }
}

/// Returns the patch of one path; empty if only attributes changed that git does not store: times,
/// owners.
fn text(
    (before, after): (&TreePath, &TreePath),
    old: Option<&Side>,
    new: Option<&Side>,
    style: Style,
    out: &Out,
) -> Vec<u8> {
    let is_same = |(old, new): (&Side, &Side)| {
        old.content == new.content && old.mode == new.mode && before == after
    };
    if old.zip(new).is_some_and(is_same) {
        return Vec::new();
    }
    let (a, b) = (quoted(b"a/", &before.0), quoted(b"b/", &after.0));
    let mut patch = Vec::new();
    let mut line = |parts: &[&[u8]]| {
        patch.extend(out.painted(Some(Role::Strong), &parts.concat()));
        patch.push(b'\n');
    };
    line(&[b"diff --git ", &a, b" ", &b]);
    match (old, new) {
        (None, Some(new)) => line(&[b"new file mode ", new.mode.as_bytes()]),
        (Some(old), None) => line(&[b"deleted file mode ", old.mode.as_bytes()]),
        (Some(old), Some(new)) if old.mode != new.mode => {
            line(&[b"old mode ", old.mode.as_bytes()]);
            line(&[b"new mode ", new.mode.as_bytes()]);
        }
        _ => {}
    }
    if before != after {
        line(&[b"rename from ", &quoted(b"", &before.0)]);
        line(&[b"rename to ", &quoted(b"", &after.0)]);
    }
    let null = b"/dev/null".to_vec();
    let (a, b) = (
        if old.is_some() { a } else { null.clone() },
        if new.is_some() { b } else { null },
    );
    let is_binary = old.is_some_and(Side::is_binary) || new.is_some_and(Side::is_binary);
    let content = |side: Option<&'_ Side>| side.map(|side| side.content.clone());
    let (before, after) = (content(old), content(new));
    let (old, new) = (
        before.clone().unwrap_or_default(),
        after.clone().unwrap_or_default(),
    );
    if old == new {
        return patch;
    }
    if is_binary && !out.is_for_programs() {
        line(&[b"Binary files ", &a, b" and ", &b, b" differ"]);
        return patch;
    }
    if is_binary {
        let (from, to) = (blob(before.as_deref()), blob(after.as_deref()));
        line(&[b"index ", from.as_bytes(), b"..", to.as_bytes()]);
        line(&[b"GIT binary patch"]);
        patch.extend(literal(&new));
        patch.extend(literal(&old));
        return patch;
    }
    line(&[b"--- ", &a, end_of(&a)]);
    line(&[b"+++ ", &b, end_of(&b)]);
    hunks::print(&mut patch, &old, &new, style, out);
    patch
}

/// Returns the tab with which git marks the end of a name that contains a space.
fn end_of(name: &[u8]) -> &'static [u8] {
    if name.contains(&b' ') && !name.starts_with(b"\"") {
        b"\t"
    } else {
        b""
    }
}

/// Returns the hash of a blob with this content in git; zeros without content.
fn blob(content: Option<&[u8]>) -> String {
    let Some(content) = content else {
        return "0".repeat(40);
    };
    let mut hash = sha1_smol::Sha1::new();
    hash.update(format!("blob {}\0", content.len()).as_bytes());
    hash.update(content);
    hash.digest().to_string()
}

/// The digits of base 85 in git (base85.c).
const DIGITS: &[u8; 85] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
/// Level of compression in git.
const LEVEL: u8 = 6;
/// Bytes in a line of a binary patch (emit_binary_diff_body, diff.c).
const LINE_BYTES: usize = 52;

/// Returns one direction of a binary patch: all of the content, deflated, in lines of base 85 that
/// begin with their number of bytes as a letter.
fn literal(content: &[u8]) -> Vec<u8> {
    let deflated = compress_to_vec_zlib(content, LEVEL);
    let mut text = format!("literal {}\n", content.len()).into_bytes();
    for line in deflated.chunks(LINE_BYTES) {
        let length = line.len() as u8;
        text.push(match length {
            1..=26 => b'A' + length - 1,
            _ => b'a' + length - 27,
        });
        for group in line.chunks(4) {
            let mut bytes = [0; 4];
            bytes
                .iter_mut()
                .zip(group)
                .for_each(|(to, from)| *to = *from);
            let mut number = u32::from_be_bytes(bytes);
            let mut digits = [0; 5];
            for digit in digits.iter_mut().rev() {
                *digit = DIGITS.get(number as usize % 85).copied().unwrap_or(b'0');
                number /= 85;
            }
            text.extend(digits);
        }
        text.push(b'\n');
    }
    text.push(b'\n');
    text
}

/// Quotes a name as git does: in double quotes with C escapes if necessary (`core.quotePath`).
fn quoted(prefix: &[u8], name: &[u8]) -> Vec<u8> {
    let plain = |byte: &u8| (0x20..0x7f).contains(byte) && !b"\"\\".contains(byte);
    let whole = [prefix, name].concat();
    if whole.iter().all(plain) {
        return whole;
    }
    let mut text = vec![b'"'];
    for byte in whole {
        match byte {
            b'"' | b'\\' => text.extend([b'\\', byte]),
            b'\n' => text.extend(b"\\n"),
            b'\t' => text.extend(b"\\t"),
            byte if plain(&byte) => text.push(byte),
            byte => text.extend(format!("\\{byte:03o}").into_bytes()),
        }
    }
    text.push(b'"');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(mode: &'static str, content: &str) -> Side {
        Side {
            mode,
            content: content.into(),
        }
    }

    fn patch_of(name: &str, old: Option<&Side>, new: &Side) -> Vec<u8> {
        let (path, out) = (TreePath(name.into()), Out::to_memory(0));
        text((&path, &path), old, Some(new), Style::default(), &out)
    }

    #[test]
    fn a_change_with_a_new_mode_and_no_newline_at_the_end() {
        let (a, b) = (side("100644", "1\n2\n"), side("100755", "1\n3"));
        let patch = patch_of("a b", Some(&a), &b);
        let expected = "diff --git a/a b b/a b\nold mode 100644\nnew mode 100755\n--- a/a b\t\n+++ b/a b\t\n@@ -1,2 +1,2 @@\n 1\n-2\n+3\n\\ No newline at end of file\n";
        assert_eq!(String::from_utf8(patch).unwrap(), expected);
    }

    /// A restored file has another time; its patch was a header without content.
    #[test]
    fn what_git_sees_no_change_of_is_not_in_the_patch() {
        let same = side("100644", "1\n");
        assert!(patch_of("f", Some(&same), &side("100644", "1\n")).is_empty());
        assert!(!patch_of("f", Some(&same), &side("100755", "1\n")).is_empty());
    }

    #[test]
    fn what_is_binary_is_named_to_people_and_whole_to_programs() {
        let patch = patch_of("x", None, &side("100644", "a\0b"));
        assert_eq!(
            String::from_utf8(patch).unwrap(),
            "diff --git a/x b/x\nnew file mode 100644\nBinary files /dev/null and b/x differ\n"
        );
        // `printf 'a\0b' | git hash-object --stdin`
        let name = "20b5be91886d0b6f26dc98a225c0dac05fe2c86e";
        assert_eq!(blob(Some(b"a\0b")), name);
        let empty = String::from_utf8(literal(b"")).unwrap();
        // Eight bytes are ten digits.
        assert!(empty.starts_with("literal 0\nH"), "{empty}");
        assert_eq!(empty.len(), "literal 0\nH0123456789\n\n".len());
    }

    #[test]
    fn names_are_quoted_as_git_does() {
        assert_eq!(quoted(b"a/", b"plain name"), b"a/plain name");
        assert_eq!(
            quoted(b"a/", b"\xc3\xa9\"\n\x01"),
            br#""a/\303\251\"\n\001""#
        );
    }
}
