//! Failures as people read them.

mod code;

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use strsim::levenshtein;

pub use self::code::Code;
use super::api::TreePath;
use super::word::{count, word};
use crate::history::select::Unselected;
use crate::store::ids::CheckpointId;
use crate::sys::Errno;

/// A name of more bytes is not compared with those there are.
const NEAREST_BYTES_MAX: usize = 200;

/// A failed verb: one line for a person, and the command that may help.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct VerbError {
    /// What kind of failure, for programs.
    pub code: Code,
    /// What failed on what.
    pub message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// The result of a verb.
pub type VerbResult<T> = Result<T, VerbError>;

/// An error without a hint.
pub fn error(code: Code, message: impl Into<String>) -> VerbError {
    VerbError {
        code,
        message: message.into(),
        hint: None,
    }
}

/// An error with a hint.
pub fn hinted(code: Code, message: impl Into<String>, hint: impl Into<String>) -> VerbError {
    VerbError {
        hint: Some(hint.into()),
        ..error(code, message)
    }
}

/// The error of a call on `what` (a path, mostly).
pub fn io_error(what: impl std::fmt::Display, cause: impl Into<io::Error>) -> VerbError {
    let cause = cause.into();
    let code = match cause.kind() {
        io::ErrorKind::NotFound => Code::NotFound,
        io::ErrorKind::PermissionDenied => Code::NoPermission,
        io::ErrorKind::StorageFull => Code::NoSpace,
        _ => Code::Io,
    };
    error(code, format!("{what}: {}", plain(&cause)))
}

/// What went wrong, without the number in "No such file or directory (os error 2)": it helps
/// nobody.
pub fn plain(cause: &io::Error) -> String {
    let text = cause.to_string();
    let number = text.find(" (os error").unwrap_or(text.len());
    text[..number].to_owned()
}

/// Something failed with an errno.
pub(super) fn failed<E: Into<Errno>>(what: &str) -> impl Fn(E) -> VerbError + Copy + '_ {
    move |cause| {
        let errno = cause.into();
        let (code, hint) = match errno {
            Errno::ENOSPC | Errno::EDQUOT => (
                Code::NoSpace,
                Some(
                    "free some space on the filesystem, or free checkpoints: ckptfs delete --now ID",
                ),
            ),
            Errno::EROFS => (Code::ReadOnly, None),
            Errno::EBUSY => (Code::Busy, None),
            Errno::EACCES | Errno::EPERM => (Code::NoPermission, None),
            _ => (Code::Io, Some("see .ckptfs/daemon.log for what failed")),
        };
        VerbError {
            hint: hint.map(str::to_owned),
            ..error(code, format!("{what}: {errno}"))
        }
    }
}

/// The index, or the journal, did not say what it was asked for.
pub(super) fn history_unread(errno: Errno) -> VerbError {
    failed("the history cannot be read")(errno)
}

/// A captured version cannot be measured.
pub(super) fn version_unread(errno: Errno) -> VerbError {
    failed("a version cannot be read")(errno)
}

/// It is not known what differs between two states.
pub(super) fn not_compared(errno: Errno) -> VerbError {
    failed("the two states cannot be compared")(errno)
}

/// It is not known what differs from a checkpoint.
pub(super) fn tree_not_compared(errno: Errno) -> VerbError {
    failed("the tree cannot be compared")(errno)
}

/// The record of the deletion was not written.
pub(super) fn not_deleted(errno: Errno) -> VerbError {
    failed("the checkpoint was not deleted")(errno)
}

/// A frame of the journal cannot be read.
pub(super) fn journal_unread(cause: impl Into<Errno>) -> VerbError {
    failed("the journal cannot be read; `ckptfs verify` says more")(cause)
}

/// The directory of a store that is read without a mount.
pub(super) fn directory_not_opened(cause: io::Error) -> VerbError {
    failed("the directory cannot be opened")(cause)
}

/// What only a daemon can do.
pub(super) fn not_mounted(message: &str) -> VerbError {
    hinted(Code::NotMounted, message, "mount it: ckptfs mount DIR")
}

/// A process has a file for too long. The path is somebody else's text.
pub(super) fn in_the_way(what: &str, path: &[u8]) -> VerbError {
    hinted(
        Code::Busy,
        format!(
            "{what}: a process that reads or writes {:?} keeps it locked",
            String::from_utf8_lossy(path)
        ),
        "try again; `fuser -v FILE` shows who has it open; with --io=daemon nobody can keep a file locked",
    )
}

/// The store, or the directory that it is in, cannot be used.
pub(super) fn unusable(errno: Errno) -> VerbError {
    if errno != Errno::EXDEV {
        return failed("the store cannot be used")(errno);
    }
    // The number of a file does not tell it from others then.
    let message = "files in this directory are on other devices than the directory itself, as in an overlay of several filesystems";
    let hint = "mount a directory of the underlying filesystem";
    hinted(Code::OtherFilesystem, message, hint)
}

/// The index cannot be written, so no more epochs are closed.
pub(super) fn index_failed(why: &str) -> VerbError {
    hinted(
        Code::IndexFailed,
        format!("the checkpoint was not made: the index failed ({why})"),
        "nothing is lost: unmount and mount again to rebuild the index",
    )
}

/// A run that was given up, or one of the daemon before.
pub(super) fn unknown_run() -> VerbError {
    hinted(
        Code::UnknownRun,
        "the daemon no longer knows this run; what was done so far stays done",
        "start again",
    )
}

/// An export that was given up, or one of the daemon before.
pub(super) fn unknown_export() -> VerbError {
    hinted(
        Code::UnknownRun,
        "the daemon no longer knows this export",
        "run the same command again: in a directory it goes on with what is there, a tar stream begins anew",
    )
}

/// There is nothing to compare with.
pub(super) fn no_checkpoint() -> VerbError {
    hinted(
        Code::UnknownCheckpoint,
        "there is no checkpoint yet",
        "make one: ckptfs checkpoint",
    )
}

/// Nothing was changed by a process of this name; `known` have changed something.
pub(super) fn unknown_process(who: &str, known: &[String]) -> VerbError {
    let hint = if known.is_empty() {
        "`ckptfs status --by process` lists what changed since the newest checkpoint".to_owned()
    } else {
        format!("these have: {}", known.join(", "))
    };
    hinted(
        Code::UnknownProcess,
        format!("no process {who:?} has changed anything since that checkpoint"),
        hint,
    )
}

/// A number that was given to several processes, one after the other.
pub(super) fn ambiguous_process(pid: u32, known: &[String]) -> VerbError {
    hinted(
        Code::AmbiguousProcess,
        format!(
            "process id {pid} was used by {} different processes",
            known.len()
        ),
        format!("choose one: {}", known.join(", ")),
    )
}

/// What was written is no way to name a process.
pub(super) fn bad_process(who: &str) -> VerbError {
    hinted(
        Code::BadProcess,
        format!("{who:?} names no process"),
        "give a process id, the path of a control group (/...), or a name; ckptfs status --by process lists them",
    )
}

/// A store that is to be checked is in use.
pub(super) fn served() -> VerbError {
    hinted(
        Code::InUse,
        "a daemon serves this directory",
        "verify it while it is mounted: ckptfs verify; or unmount it first",
    )
}

/// A hook stopped an operation.
pub(super) fn hook_failed(verb: &str, why: &str, dir: &Path) -> VerbError {
    hinted(
        Code::HookFailed,
        format!("the {verb} was not made: {why}"),
        format!("hooks are in {}", dir.display()),
    )
}

/// A note that does not fit into a record.
pub(super) fn note_too_long(length: usize, max: usize) -> VerbError {
    hinted(
        Code::TooLarge,
        format!("a note of {length} bytes is too long"),
        format!("a note has at most {max} bytes"),
    )
}

/// No checkpoint has this number or tag.
pub(super) fn unknown_state(name: &str, known: &[String]) -> VerbError {
    let is_git_s = name.starts_with("HEAD") || name == "@";
    let hint = match nearest(name, known) {
        _ if is_git_s => "`latest` is the newest checkpoint, `latest~1` the one before it".into(),
        Some(near) => format!("did you mean {near:?}? `ckptfs log` lists all checkpoints"),
        None if known.is_empty() => {
            "there is no checkpoint yet; `ckptfs checkpoint` makes one".into()
        }
        None => "`ckptfs log` lists all checkpoints".into(),
    };
    hinted(
        Code::UnknownCheckpoint,
        format!("there is no checkpoint {name:?}"),
        hint,
    )
}

/// Of no path that was named can it be told what it was.
pub(super) fn cannot_be_told(path: Option<&TreePath>, id: CheckpointId) -> VerbError {
    let path = path
        .map(|path| String::from_utf8_lossy(&path.0).into_owned())
        .unwrap_or_default();
    hinted(
        Code::Io,
        format!("the state of {path:?} in checkpoint {id} is not known: it is left as it is"),
        "`ckptfs verify` shows what is damaged, `ckptfs log PATH` which checkpoints have it",
    )
}

/// The checkpoint was deleted, or its making undone.
pub(super) fn hidden(id: CheckpointId) -> VerbError {
    hinted(
        Code::UnknownCheckpoint,
        format!("checkpoint {id} is deleted"),
        "it is not freed yet: `ckptfs undo` brings it back, `ckptfs ops` lists what was done",
    )
}

/// What the checkpoint needed is gone.
pub(super) fn freed(id: CheckpointId) -> VerbError {
    error(Code::Freed, format!("checkpoint {id} was freed"))
}

/// There is no such operation.
pub(super) fn no_operation(number: u64) -> VerbError {
    hinted(
        Code::UnknownOperation,
        format!("there is no operation {number}"),
        "`ckptfs ops` lists all operations",
    )
}

/// There is not so much to be undone (`verb`) or done again.
pub(super) fn too_far(verb: &str, there: usize) -> VerbError {
    let message = if there == 0 {
        format!("nothing can be {verb}")
    } else {
        format!("only {} can be {verb}", count(there, "operation"))
    };
    hinted(Code::TooFar, message, "`ckptfs ops` lists all operations")
}

/// Somebody else was faster.
pub(super) fn undone_meanwhile(number: u64) -> VerbError {
    hinted(
        Code::Undone,
        format!("operation {number} was undone by another process meanwhile"),
        "`ckptfs ops` shows by whom",
    )
}

/// A restore or merge is to be undone without the operations after it.
pub(super) fn not_alone(number: u64) -> VerbError {
    let id = number.saturating_sub(1);
    hinted(
        Code::TooFar,
        format!(
            "operation {number} changed the tree; it cannot be undone without the operations after it"
        ),
        format!("to undo all of them: ckptfs undo --to {id}"),
    )
}

pub(super) fn undone_already(number: u64) -> VerbError {
    hinted(
        Code::Undone,
        format!("operation {number} was undone already"),
        "`ckptfs ops` shows by which operation",
    )
}

/// Something is in the way of undoing an operation.
pub(super) fn cannot_undo(number: u64, why: VerbError) -> VerbError {
    let message = format!("operation {number} cannot be undone: {}", why.message);
    let hint = match why.code {
        Code::Pinned | Code::TagTaken => why.hint,
        _ => Some("to undo the one before it: ckptfs undo --skip".into()),
    };
    VerbError {
        code: why.code,
        message,
        hint,
    }
}

/// A restore was of more names than its operation can tell.
pub(super) fn too_many_names() -> VerbError {
    error(Code::TooManyNames, "it restored too many single paths")
}

/// Undoing would hide what somebody asked for.
pub(super) fn was_asked_for(number: u64, id: CheckpointId) -> VerbError {
    hinted(
        Code::AskedFor,
        format!(
            "operation {number} made checkpoint {id}: undoing it would only hide the checkpoint, and leave the tree as it is"
        ),
        format!(
            "ckptfs restore {id} brings the tree back to it; ckptfs undo --force hides it; ckptfs undo --skip skips it"
        ),
    )
}

/// Something was removed since the last operation.
pub(super) fn burst_since(id: CheckpointId) -> VerbError {
    hinted(
        Code::BurstSince,
        format!(
            "many files were removed or emptied since the last operation; checkpoint {id} was made just before"
        ),
        format!(
            "to bring the files back: ckptfs restore {id}; to undo the last operation anyway: ckptfs undo --force"
        ),
    )
}

/// A checkpoint has no room for so many tags.
pub(super) fn too_many_tags(count: usize) -> VerbError {
    error(
        Code::BadTag,
        format!("{count} tags are too many for one checkpoint"),
    )
}

/// Why a name means no checkpoint.
pub(super) fn unselected(name: &str, why: Unselected, known: &[String]) -> VerbError {
    match why {
        Unselected::Unknown => unknown_state(name, known),
        Unselected::Ambiguous(tags) => {
            let tags: Vec<String> = tags.iter().take(5).map(|tag| format!("{tag:?}")).collect();
            hinted(
                Code::Ambiguous,
                format!(
                    "{name:?} can mean more than one checkpoint: {}",
                    tags.join(", ")
                ),
                "type more of the tag, or use a number",
            )
        }
        Unselected::Beginning(tag) => not_exact(name, &tag),
        Unselected::TooFar(before) => {
            let from = name.rsplit_once('~').map_or(name, |(from, _)| from);
            hinted(
                Code::UnknownCheckpoint,
                format!("there are only {before} checkpoints before {from:?}"),
                "`ckptfs log` lists all checkpoints",
            )
        }
        Unselected::TooEarly => hinted(
            Code::UnknownCheckpoint,
            format!("no checkpoint is as old as {name:?}"),
            "`ckptfs log` shows when each was made",
        ),
        Unselected::NoTime(problem) => bad_time(problem),
    }
}

/// What changes or deletes something wants to know for certain.
pub fn not_exact(name: &str, tag: &str) -> VerbError {
    hinted(
        Code::NotExact,
        format!("{name:?} is only the beginning of the tag {tag:?}"),
        "restore and delete need the whole tag, or a number",
    )
}

/// A time that is none.
pub(super) fn bad_time(problem: String) -> VerbError {
    hinted(
        Code::BadTime,
        problem,
        "for example: ckptfs diff '@{10min ago}', ckptfs log --since 2h",
    )
}

/// The checkpoint does not have the tag.
pub(super) fn not_its_tag(tag: &str, id: CheckpointId, its: &[String]) -> VerbError {
    let hint = if its.is_empty() {
        "it has none".to_owned()
    } else {
        format!("it has {}", its.join(", "))
    };
    hinted(
        Code::UnknownTag,
        format!("checkpoint {id} has no tag {tag:?}"),
        hint,
    )
}

/// No state has the path.
pub(super) fn never_there(path: &[u8]) -> VerbError {
    hinted(
        Code::UnknownPath,
        format!(
            "{} is neither in the tree nor in any checkpoint",
            String::from_utf8_lossy(path)
        ),
        "paths are relative to the working directory; `ckptfs diff ID` lists what changed",
    )
}

/// The checkpoint is not to be deleted.
pub(super) fn pinned(id: CheckpointId, reason: &str) -> VerbError {
    let because = if reason.is_empty() {
        String::new()
    } else {
        format!(" ({reason})")
    };
    hinted(
        Code::Pinned,
        format!("checkpoint {id} is pinned{because}"),
        format!("to unpin it: ckptfs pin -d {id}"),
    )
}

/// The tag belongs to another checkpoint.
pub(super) fn tag_taken(tag: &str, id: CheckpointId) -> VerbError {
    hinted(
        Code::TagTaken,
        format!("the tag {tag:?} belongs to checkpoint {id}"),
        format!(
            "choose another tag, or remove that one first: ckptfs tag -d {}",
            word(tag)
        ),
    )
}

/// Nothing has this path, neither now nor then.
pub(super) fn unknown_path(path: &[u8], id: CheckpointId) -> VerbError {
    hinted(
        Code::UnknownPath,
        format!(
            "{} exists neither in the tree nor in checkpoint {id}",
            String::from_utf8_lossy(path)
        ),
        format!("`ls .snapshots/{id}/` shows what was there"),
    )
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
