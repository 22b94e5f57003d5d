//! Failures as people read them.

use super::api::VerbError;
use crate::store::ids::CheckpointId;
use crate::sys::Errno;

/// A name of more bytes is not compared with those there are.
const NEAREST_BYTES_MAX: usize = 200;

/// Something failed with an errno.
pub(super) fn failed(what: &str, errno: Errno) -> VerbError {
    let (code, hint) = match errno {
        Errno::ENOSPC | Errno::EDQUOT => ("no-space", Some("free space on the filesystem, or delete checkpoints: ckptfs delete ID")),
        Errno::EROFS => ("read-only", None),
        Errno::EBUSY => ("busy", None),
        Errno::EACCES | Errno::EPERM => ("no-permission", None),
        _ => ("io", Some("see .ckptfs/daemon.log for what failed")),
    };
    VerbError { code: code.into(), message: format!("{what}: {errno}"), hint: hint.map(str::to_owned) }
}

/// The index cannot be written, so no more epochs are closed.
pub(super) fn index_failed(why: &str) -> VerbError {
    VerbError {
        code: "index-failed".into(),
        message: format!("the checkpoint was not made: the index failed ({why})"),
        hint: Some("nothing is lost: unmount and mount again, and the index is made anew".into()),
    }
}

/// No checkpoint has this number or tag.
pub(super) fn unknown_state(name: &str, known: &[String]) -> VerbError {
    let hint = match nearest(name, known) {
        Some(near) => format!("did you mean {near:?}? `ckptfs log` lists all checkpoints"),
        None if known.is_empty() => "there is no checkpoint yet; `ckptfs checkpoint` makes one".into(),
        None => "`ckptfs log` lists all checkpoints".into(),
    };
    VerbError { code: "unknown-checkpoint".into(), message: format!("there is no checkpoint {name:?}"), hint: Some(hint) }
}

/// The tag belongs to another checkpoint.
pub(super) fn tag_taken(tag: &str, id: CheckpointId) -> VerbError {
    VerbError {
        code: "tag-taken".into(),
        message: format!("the tag {tag:?} belongs to checkpoint {id}"),
        hint: Some(format!("choose another tag, or `rm .snapshots/{tag}` first")),
    }
}

/// Nothing has this path, neither now nor then.
pub(super) fn unknown_path(path: &[u8], id: CheckpointId) -> VerbError {
    VerbError {
        code: "unknown-path".into(),
        message: format!("{} exists neither now nor in checkpoint {id}", String::from_utf8_lossy(path)),
        hint: Some(format!("`ls .snapshots/{id}/` shows what was there")),
    }
}

/// The known name with the fewest edits, if they are few.
fn nearest<'a>(name: &str, known: &'a [String]) -> Option<&'a String> {
    // What is longer than any tag is no misspelt one, and would take long to compare.
    if name.len() > NEAREST_BYTES_MAX {
        return None;
    }
    let best = known.iter().min_by_key(|other| edits(name, other))?;
    (edits(name, best) <= 2 && edits(name, best) < name.chars().count()).then_some(best)
}

/// Levenshtein's distance.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut last = i + 1;
        for (cell, right) in row.iter_mut().skip(1).zip(&b) {
            let next = (diagonal + usize::from(left != *right)).min(last + 1).min(*cell + 1);
            diagonal = *cell;
            *cell = next;
            last = next;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_offered_and_nothing_far() {
        let known = vec!["v1".to_owned(), "before-refactor".to_owned()];
        assert_eq!(nearest("before-refacter", &known).map(String::as_str), Some("before-refactor"));
        assert_eq!(nearest("zzz", &known), None);
        assert_eq!(edits("kitten", "sitting"), 3);
    }
}
