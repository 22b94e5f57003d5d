//! Failures as people read them.

use strsim::levenshtein;

use super::api::{TreePath, VerbError};
use super::word::word;
use crate::history::select::Unselected;
use crate::store::ids::CheckpointId;
use crate::sys::Errno;

/// A name of more bytes is not compared with those there are.
const NEAREST_BYTES_MAX: usize = 200;

/// An error without a hint.
pub fn error(code: &str, message: impl Into<String>) -> VerbError {
    VerbError {
        code: code.into(),
        message: message.into(),
        hint: None,
    }
}

/// An error with a hint.
pub fn hinted(code: &str, message: impl Into<String>, hint: impl Into<String>) -> VerbError {
    VerbError {
        code: code.into(),
        message: message.into(),
        hint: Some(hint.into()),
    }
}

/// Something failed with an errno.
pub(super) fn failed(what: &str, errno: Errno) -> VerbError {
    let (code, hint) = match errno {
        Errno::ENOSPC | Errno::EDQUOT => (
            "no-space",
            Some("free space on the filesystem, or free checkpoints: ckptfs delete --now ID"),
        ),
        Errno::EROFS => ("read-only", None),
        Errno::EBUSY => ("busy", None),
        Errno::EACCES | Errno::EPERM => ("no-permission", None),
        _ => ("io", Some("see .ckptfs/daemon.log for what failed")),
    };
    VerbError {
        code: code.into(),
        message: format!("{what}: {errno}"),
        hint: hint.map(str::to_owned),
    }
}

/// A process has a file for too long. The path is somebody else's text.
pub(super) fn in_the_way(what: &str, path: &[u8]) -> VerbError {
    VerbError {
        code: "busy".into(),
        message: format!("{what}: a process that reads or writes {:?} keeps it locked", String::from_utf8_lossy(path)),
        hint: Some(
            "try again; `fuser -v FILE` names who has it open; where the daemon does all I/O (--io=daemon) nobody can keep a file locked".into(),
        ),
    }
}

/// The store, or the directory that it is in, cannot be used.
pub(super) fn unusable(errno: Errno) -> VerbError {
    if errno != Errno::EXDEV {
        return failed("the store cannot be used", errno);
    }
    // The number of a file does not tell it from others then.
    let message = "files of this directory are on other devices than the directory, as in an overlay of several filesystems";
    let hint = "mount a directory of the filesystem that is below";
    VerbError {
        code: "other-filesystem".into(),
        message: message.into(),
        hint: Some(hint.into()),
    }
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
        None if known.is_empty() => {
            "there is no checkpoint yet; `ckptfs checkpoint` makes one".into()
        }
        None => "`ckptfs log` lists all checkpoints".into(),
    };
    VerbError {
        code: "unknown-checkpoint".into(),
        message: format!("there is no checkpoint {name:?}"),
        hint: Some(hint),
    }
}

/// Of no path that was named can it be told what it was.
pub(super) fn cannot_be_told(path: Option<&TreePath>, id: CheckpointId) -> VerbError {
    let path = path
        .map(|path| String::from_utf8_lossy(&path.0).into_owned())
        .unwrap_or_default();
    VerbError {
        code: "io".into(),
        message: format!("what {path:?} was in checkpoint {id} cannot be told: it stays as it is"),
        hint: Some(
            "`ckptfs verify` says what is damaged, `ckptfs log PATH` which checkpoints know it"
                .into(),
        ),
    }
}

/// The checkpoint was deleted, or its making undone.
pub(super) fn hidden(id: CheckpointId) -> VerbError {
    VerbError {
        code: "unknown-checkpoint".into(),
        message: format!("checkpoint {id} is deleted"),
        hint: Some(
            "it is not freed yet: `ckptfs ops` says what was done, `ckptfs undo` brings it back"
                .into(),
        ),
    }
}

/// What the checkpoint needed is gone.
pub(super) fn freed(id: CheckpointId) -> VerbError {
    VerbError {
        code: "freed".into(),
        message: format!("checkpoint {id} was freed"),
        hint: None,
    }
}

/// There is no such operation.
pub(super) fn no_operation(number: u64) -> VerbError {
    VerbError {
        code: "unknown-operation".into(),
        message: format!("there is no operation {number}"),
        hint: Some("`ckptfs ops` lists all operations".into()),
    }
}

/// There is not so much to be undone (`verb`) or done again.
pub(super) fn too_far(verb: &str, there: usize) -> VerbError {
    let message = if there == 0 {
        format!("nothing can be {verb}")
    } else {
        format!("only {there} operations can be {verb}")
    };
    VerbError {
        code: "too-far".into(),
        message,
        hint: Some("`ckptfs ops` lists all operations".into()),
    }
}

/// Somebody else was faster.
pub(super) fn undone_meanwhile(number: u64) -> VerbError {
    VerbError {
        code: "undone".into(),
        message: format!("operation {number} was undone by somebody else meanwhile"),
        hint: Some("`ckptfs ops` says by whom".into()),
    }
}

/// Something is in the way of undoing an operation.
pub(super) fn cannot_undo(number: u64, why: VerbError) -> VerbError {
    let message = format!("operation {number} cannot be undone: {}", why.message);
    let hint = match why.code.as_str() {
        "pinned" | "tag-taken" => why.hint,
        _ => Some("what was done before it can be undone: ckptfs undo --skip".into()),
    };
    VerbError {
        code: why.code,
        message,
        hint,
    }
}

/// A restore was of more names than its operation can tell.
pub(super) fn too_many_names() -> VerbError {
    VerbError {
        code: "too-many-names".into(),
        message: "it restored too many single paths".into(),
        hint: None,
    }
}

/// Undoing would hide what somebody asked for.
pub(super) fn was_asked_for(number: u64, id: CheckpointId) -> VerbError {
    VerbError {
        code: "asked-for".into(),
        message: format!(
            "operation {number} made checkpoint {id}: to undo it would hide that, and leave the tree as it is"
        ),
        hint: Some(format!(
            "ckptfs restore {id} makes the tree what it was then; ckptfs undo --force hides the checkpoint; ckptfs undo --skip goes past it"
        )),
    }
}

/// Something was removed since the last operation.
pub(super) fn burst_since(id: CheckpointId) -> VerbError {
    VerbError {
        code: "burst-since".into(),
        message: format!(
            "many files were removed or emptied since the last operation; checkpoint {id} was made just before"
        ),
        hint: Some(format!(
            "to bring back what was there then: ckptfs restore {id}; to undo the last operation all the same: ckptfs undo --force"
        )),
    }
}

/// A checkpoint has no room for so many tags.
pub(super) fn too_many_tags(count: usize) -> VerbError {
    VerbError {
        code: "bad-tag".into(),
        message: format!("{count} tags are too many for one checkpoint"),
        hint: None,
    }
}

/// Why a name means no checkpoint.
pub(super) fn unselected(name: &str, why: Unselected, known: &[String]) -> VerbError {
    let error = |code: &str, message: String, hint: &str| VerbError {
        code: code.into(),
        message,
        hint: Some(hint.into()),
    };
    match why {
        Unselected::Unknown => unknown_state(name, known),
        Unselected::Ambiguous(tags) => {
            let tags: Vec<String> = tags.iter().take(5).map(|tag| format!("{tag:?}")).collect();
            error(
                "ambiguous",
                format!(
                    "{name:?} can mean more than one checkpoint: {}",
                    tags.join(", ")
                ),
                "write more of the tag, or a number",
            )
        }
        Unselected::Beginning(tag) => not_exact(name, &tag),
        Unselected::TooFar(before) => {
            let from = name.rsplit_once('~').map_or(name, |(from, _)| from);
            error(
                "unknown-checkpoint",
                format!("only {before} checkpoints are kept before {from:?}"),
                "`ckptfs log` lists all checkpoints",
            )
        }
        Unselected::TooEarly => error(
            "unknown-checkpoint",
            format!("no checkpoint is as old as {name:?}"),
            "`ckptfs log` tells when each was made",
        ),
        Unselected::NoTime(problem) => bad_time(problem),
    }
}

/// What changes or deletes something wants to know for certain.
pub fn not_exact(name: &str, tag: &str) -> VerbError {
    VerbError {
        code: "not-exact".into(),
        message: format!("{name:?} is only the beginning of the tag {tag:?}"),
        hint: Some("what restores or deletes wants the whole tag, or a number".into()),
    }
}

/// A time that is none.
pub(super) fn bad_time(problem: String) -> VerbError {
    VerbError {
        code: "bad-time".into(),
        message: problem,
        hint: Some("for example: ckptfs diff '@{10min ago}', ckptfs find --since 2h".into()),
    }
}

/// The checkpoint does not have the tag.
pub(super) fn not_its_tag(tag: &str, id: CheckpointId, its: &[String]) -> VerbError {
    let hint = if its.is_empty() {
        "it has none".to_owned()
    } else {
        format!("it has {}", its.join(", "))
    };
    VerbError {
        code: "unknown-tag".into(),
        message: format!("checkpoint {id} has no tag {tag:?}"),
        hint: Some(hint),
    }
}

/// No state has the path.
pub(super) fn never_there(path: &[u8]) -> VerbError {
    VerbError {
        code: "unknown-path".into(),
        message: format!(
            "{} is in no checkpoint and not in the tree",
            String::from_utf8_lossy(path)
        ),
        hint: Some(
            "a path starts at the working directory; `ckptfs diff ID` lists what changed".into(),
        ),
    }
}

/// The checkpoint is not to be deleted.
pub(super) fn pinned(id: CheckpointId, reason: &str) -> VerbError {
    let because = if reason.is_empty() {
        String::new()
    } else {
        format!(" ({reason})")
    };
    VerbError {
        code: "pinned".into(),
        message: format!("checkpoint {id} is pinned{because}"),
        hint: Some(format!("if it may go after all: ckptfs unpin {id}")),
    }
}

/// The tag belongs to another checkpoint.
pub(super) fn tag_taken(tag: &str, id: CheckpointId) -> VerbError {
    VerbError {
        code: "tag-taken".into(),
        message: format!("the tag {tag:?} belongs to checkpoint {id}"),
        hint: Some(format!(
            "choose another tag, or take it: ckptfs untag {}",
            word(tag)
        )),
    }
}

/// Nothing has this path, neither now nor then.
pub(super) fn unknown_path(path: &[u8], id: CheckpointId) -> VerbError {
    VerbError {
        code: "unknown-path".into(),
        message: format!(
            "{} exists neither now nor in checkpoint {id}",
            String::from_utf8_lossy(path)
        ),
        hint: Some(format!("`ls .snapshots/{id}/` shows what was there")),
    }
}

/// The known name with the fewest edits, if they are few.
pub(super) fn nearest<'a>(name: &str, known: &'a [String]) -> Option<&'a String> {
    // What is longer than any tag is no misspelt one, and would take long to compare.
    if name.len() > NEAREST_BYTES_MAX {
        return None;
    }
    let best = known.iter().min_by_key(|other| levenshtein(name, other))?;
    let edits = levenshtein(name, best);
    (edits <= 2 && edits < name.chars().count()).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_offered_and_nothing_far() {
        let known = vec!["v1".to_owned(), "before-refactor".to_owned()];
        assert_eq!(
            nearest("before-refacter", &known).map(String::as_str),
            Some("before-refactor")
        );
        assert_eq!(nearest("zzz", &known), None);
    }
}
