//! `ckptfs pull --branch`: makes a checkpoint of a remote one of a branch of this tree.
//!
//! A branch has its own lineage, and begins as a local checkpoint: files that are in that already,
//! by their hashes, are neither fetched nor made. Afterwards the branch can be read, compared and
//! merged as any other.

use std::path::PathBuf;
use std::time::Instant;

use serde::Serialize;

use super::super::branch::create::{BranchOptions, make};
use super::super::export_common::{self, Copied};
use super::super::remotes::names;
use super::pull::{Args, choose, fetch};
use super::push::is_of;
use super::repository;
use ckptfs_api::{
    CheckpointId, CheckpointOptions, ListBranches, ListCheckpoints, VerbResult, host_path,
    microseconds,
};
use ckptfs_core::engine::checkpoint::check_tag;
use ckptfs_remote::restic::{OpenPurpose, PushedSnapshot};
use ckptfs_store::journal::codec::TAGS_MAX;
use ckptfs_sys::{self as sys, OpenKind};
use ckptfs_transfer::write::Writer;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{ErrorContext, Outcome};
use ckptfs_ui::locate::{self, ServedTree};
use ckptfs_ui::past;

#[derive(Serialize)]
struct Answer {
    /// The checkpoint in the remote, and the one of the branch.
    pulled: CheckpointId,
    checkpoint: Option<CheckpointId>,
    snapshot: String,
    store: String,
    branch: String,
    #[serde(with = "host_path")]
    path: PathBuf,
    /// Base of the branch, if it was made for this.
    #[serde(skip_serializing_if = "Option::is_none")]
    base: Option<CheckpointId>,
    dry_run: bool,
    #[serde(flatten)]
    copied: Option<Copied>,
    duration_us: u64,
}

/// Pulls into a branch.
pub fn pull(args: &Args, name: &str, context: &mut Context) -> Outcome {
    let started = Instant::now();
    let names = names()?;
    let mut served = locate::served(context.dir())?;
    let remote = repository::open(names.get(&args.remote)?, OpenPurpose::Verb)?;
    let pushed = choose(
        remote.pushed(None)?,
        (&args.remote, args.id.as_deref()),
        context,
    )?;
    let (path, base) = branch(&mut served, name, &pushed, args.dry_run, context)?;
    let mut answer = Answer {
        pulled: pushed.checkpoint,
        checkpoint: None,
        snapshot: pushed.snapshot.clone(),
        store: pushed.store.clone(),
        branch: name.to_owned(),
        path: path.clone(),
        base,
        dry_run: args.dry_run,
        copied: None,
        duration_us: 0,
    };
    if args.dry_run {
        return tell(&answer, context);
    }
    let mut on = locate::served(Some(&path))?;
    // The present state stays in the history, and the pull compares with it.
    let before = on.client.ask(CheckpointOptions {
        note: format!("before a pull from {}", args.remote),
        if_changed: true,
        ..CheckpointOptions::default()
    })?;
    sys::umask0();
    let dir = export_common::open_destination(&path)?;
    let there = format!("{}/{}", past::snapdir(on.client.store()), before.id);
    let there = sys::open_beneath(&dir, there.as_bytes(), OpenKind::Dir).on(path.display())?;
    let writer = Writer::of_compared_mount(dir.try_clone().on(path.display())?);
    let refused = fetch(
        remote,
        &pushed,
        (&path, &dir),
        Some(there),
        &writer,
        context,
    )?;
    let copied = Copied::new(&writer, &refused, Vec::new());
    if refused.is_empty() {
        answer.checkpoint = Some(checkpoint(&mut on, args, &pushed)?);
    }
    answer.duration_us = microseconds(started.elapsed());
    answer.copied = Some(copied);
    tell(&answer, context)?;
    answer.copied.as_ref().map_or(Ok(()), |copied| {
        copied.report(
            &context.out,
            "everything else is in the branch, of which no checkpoint was made; the remote may be damaged there",
        )
    })
}

/// Returns the path of the branch, and its base if it was made now. An existing branch is
/// continued.
fn branch(
    served: &mut ServedTree,
    name: &str,
    pushed: &PushedSnapshot,
    dry_run: bool,
    context: &Context,
) -> VerbResult<(PathBuf, Option<CheckpointId>)> {
    let all = served.client.ask(ListBranches::default())?;
    if let Some(there) = all.into_iter().find(|branch| branch.name == name) {
        return Ok((there.path, None));
    }
    // The same checkpoint, if it is local, or the newest before it, because most files are equal.
    let own = repository::store_of(served)?;
    let kept = served.client.ask(ListCheckpoints)?;
    let near = kept
        .iter()
        .filter(|one| own.as_ref() == Some(&pushed.store) && one.id <= pushed.checkpoint)
        .max_by_key(|one| (is_of(pushed, one), one.id))
        .or_else(|| kept.iter().max_by_key(|one| one.id));
    let how = BranchOptions::without_git(near.map(|near| near.id.to_string()));
    let made = make(served, name, &how, dry_run, &context.out)?;
    Ok((made.branch.path, made.branch.base))
}

/// Makes a checkpoint of the pulled tree, on disk, with a note of its origin.
fn checkpoint(
    on: &mut ServedTree,
    args: &Args,
    pushed: &PushedSnapshot,
) -> VerbResult<CheckpointId> {
    let known = on.client.ask(ListCheckpoints)?;
    // Another program may have set tags that are not possible here.
    let is_free =
        |tag: &&String| check_tag(tag).is_ok() && !known.iter().any(|one| one.tags.contains(tag));
    let tags = pushed.tags.iter().filter(is_free);
    let snapshot = pushed.snapshot.get(..8).unwrap_or(&pushed.snapshot);
    let made = on.client.ask(CheckpointOptions {
        note: format!(
            "checkpoint {} of {} (snapshot {snapshot})",
            pushed.checkpoint, args.remote
        ),
        tags: tags.take(TAGS_MAX).cloned().collect(),
        sync: true,
        of_ns: i64::try_from(pushed.created.as_nanosecond()).ok(),
        ..CheckpointOptions::default()
    })?;
    Ok(made.id)
}

fn tell(answer: &Answer, context: &mut Context) -> Outcome {
    context.out.answer(answer, |out| {
        let path = answer.path.display().to_string();
        let (id, path) = (answer.pulled, out.text(&path).into_owned());
        out.line(&match (&answer.copied, answer.checkpoint) {
            (None, _) => format!(
                "checkpoint {id} would be pulled into the branch {}, {path}",
                answer.branch
            ),
            (Some(copied), Some(made)) => format!(
                "checkpoint {id} is checkpoint {made} of the branch {}, {path}: {}",
                answer.branch,
                copied.how(answer.duration_us)
            ),
            (Some(copied), None) => {
                format!("{path}: {}", copied.how(answer.duration_us))
            }
        })
    })
}
