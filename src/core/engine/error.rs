//! Errors for the user.

use std::io;
use std::path::Path;

use strsim::levenshtein;

use crate::history::select::SelectError;
use ckptfs_api::display::{count, word};
use ckptfs_api::{CheckpointId, TreePath};
pub use ckptfs_api::{Code, VerbError, error, hinted, io_error, not_exact};
use ckptfs_sys::Errno;

/// Longer names are not compared for suggestions.
const NEAREST_BYTES_MAX: usize = 200;

/// Returns a function that converts an errno.
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

/// The index or the journal could not be read.
pub(super) fn history_unread(errno: Errno) -> VerbError {
    failed("the history cannot be read")(errno)
}

/// A captured version cannot be measured.
pub(super) fn version_unread(errno: Errno) -> VerbError {
    failed("a version cannot be read")(errno)
}

/// Two states could not be compared.
pub(super) fn not_compared(errno: Errno) -> VerbError {
    failed("the two states cannot be compared")(errno)
}

/// The tree could not be compared with a checkpoint.
pub(super) fn tree_not_compared(errno: Errno) -> VerbError {
    failed("the tree cannot be compared")(errno)
}

/// The deletion could not be recorded.
pub(super) fn not_deleted(errno: Errno) -> VerbError {
    failed("the checkpoint was not deleted")(errno)
}

/// A frame of the journal cannot be read.
pub(super) fn journal_unread(cause: impl Into<Errno>) -> VerbError {
    failed("the journal cannot be read; `ckptfs verify` says more")(cause)
}

/// The directory of a store cannot be opened offline.
pub(super) fn directory_not_opened(cause: io::Error) -> VerbError {
    failed("the directory cannot be opened")(cause)
}

/// The verb needs a daemon.
pub(super) fn not_mounted(message: &str) -> VerbError {
    hinted(Code::NotMounted, message, "mount it: ckptfs mount DIR")
}

/// A process blocks a file for too long. The path is untrusted text.
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

/// The store or its directory cannot be used.
pub(super) fn unusable(errno: Errno) -> VerbError {
    if errno != Errno::EXDEV {
        return failed("the store cannot be used")(errno);
    }
    // Inode numbers are then not unique.
    let message = "files in this directory are on other devices than the directory itself, as in an overlay of several filesystems";
    let hint = "mount a directory of the underlying filesystem";
    hinted(Code::OtherFilesystem, message, hint)
}

/// The index cannot be written, so no more epochs can be closed.
pub(super) fn index_failed(why: &str) -> VerbError {
    hinted(
        Code::IndexFailed,
        format!("the checkpoint was not made: the index failed ({why})"),
        "nothing is lost: unmount and mount again to rebuild the index",
    )
}

/// The run was abandoned, or belongs to an earlier daemon.
pub(super) fn unknown_run() -> VerbError {
    hinted(
        Code::UnknownRun,
        "the daemon no longer knows this run; what was done so far stays done",
        "start again",
    )
}

/// The export was abandoned, or belongs to an earlier daemon.
pub(super) fn unknown_export() -> VerbError {
    hinted(
        Code::UnknownRun,
        "the daemon no longer knows this export",
        "run the same command again: in a directory it goes on with what is there, a tar stream begins anew",
    )
}

/// No checkpoint exists to compare with.
pub(super) fn no_checkpoint() -> VerbError {
    hinted(
        Code::UnknownCheckpoint,
        "there is no checkpoint yet",
        "make one: ckptfs checkpoint",
    )
}

/// No change was made by a matching process; `known` lists the writers.
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

/// Several processes had this pid, one after the other.
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

/// The text is not a valid process selector.
pub(super) fn bad_process(who: &str) -> VerbError {
    hinted(
        Code::BadProcess,
        format!("{who:?} names no process"),
        "give a process id, the path of a control group (/...), or a name; ckptfs status --by process lists them",
    )
}

/// The store to check is in use.
pub(super) fn served() -> VerbError {
    hinted(
        Code::InUse,
        "a daemon serves this directory",
        "verify it while it is mounted: ckptfs verify; or unmount it first",
    )
}

/// A hook aborted an operation.
pub(super) fn hook_failed(verb: &str, why: &str, dir: &Path) -> VerbError {
    hinted(
        Code::HookFailed,
        format!("the {verb} was not made: {why}"),
        format!("hooks are in {}", dir.display()),
    )
}

/// The note exceeds the record's limit.
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

/// The former state of all named paths is unknown.
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

/// The checkpoint was deleted, or its creation undone.
pub(super) fn hidden(id: CheckpointId) -> VerbError {
    hinted(
        Code::UnknownCheckpoint,
        format!("checkpoint {id} is deleted"),
        "it is not freed yet: `ckptfs undo` brings it back, `ckptfs ops` lists what was done",
    )
}

/// The data of the checkpoint was freed.
pub(super) fn freed(id: CheckpointId) -> VerbError {
    error(Code::Freed, format!("checkpoint {id} was freed"))
}

/// The operation does not exist.
pub(super) fn no_operation(number: u64) -> VerbError {
    hinted(
        Code::UnknownOperation,
        format!("there is no operation {number}"),
        "`ckptfs ops` lists all operations",
    )
}

/// Fewer operations can be undone (`verb`) or redone.
pub(super) fn too_far(verb: &str, there: usize) -> VerbError {
    let message = if there == 0 {
        format!("nothing can be {verb}")
    } else {
        format!("only {} can be {verb}", count(there, "operation"))
    };
    hinted(Code::TooFar, message, "`ckptfs ops` lists all operations")
}

/// Another process undid it concurrently.
pub(super) fn undone_meanwhile(number: u64) -> VerbError {
    hinted(
        Code::Undone,
        format!("operation {number} was undone by another process meanwhile"),
        "`ckptfs ops` shows by whom",
    )
}

/// A restore or merge cannot be undone without the later operations.
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

/// An operation cannot be undone.
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

/// A restore had more paths than its operation records.
pub(super) fn too_many_names() -> VerbError {
    error(Code::TooManyNames, "it restored too many single paths")
}

/// Undoing would hide a requested checkpoint.
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

/// Files were removed since the last operation.
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

/// The checkpoint would exceed the limit of tags.
pub(super) fn too_many_tags(count: usize) -> VerbError {
    error(
        Code::BadTag,
        format!("{count} tags are too many for one checkpoint"),
    )
}

/// Returns the error for a name that selects no checkpoint.
pub(super) fn unselected(name: &str, why: SelectError, known: &[String]) -> VerbError {
    match why {
        SelectError::Unknown => unknown_state(name, known),
        SelectError::Ambiguous(tags) => {
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
        SelectError::Beginning(tag) => not_exact(name, &tag),
        SelectError::TooFar(before) => {
            let from = name.rsplit_once('~').map_or(name, |(from, _)| from);
            hinted(
                Code::UnknownCheckpoint,
                format!("there are only {before} checkpoints before {from:?}"),
                "`ckptfs log` lists all checkpoints",
            )
        }
        SelectError::TooEarly => hinted(
            Code::UnknownCheckpoint,
            format!("no checkpoint is as old as {name:?}"),
            "`ckptfs log` shows when each was made",
        ),
        SelectError::NoTime(problem) => bad_time(problem),
    }
}

/// The time cannot be parsed.
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

/// The path does not exist in any state.
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

/// The checkpoint is pinned.
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

/// The path exists in no state compared.
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

/// Returns the closest known name, if few edits away.
pub(super) fn nearest<'a>(name: &str, known: &'a [String]) -> Option<&'a String> {
    // Longer than any tag: not a misspelling, and slow to compare.
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
