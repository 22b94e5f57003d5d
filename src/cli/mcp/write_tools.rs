//! The tools that modify the tree or its history: `checkpoint`, `restore`, `undo`.

use super::super::ops;
use super::super::restore::warn_of_holders;
use super::super::undo::{remark, tell_git_of};
use super::results::{
    Changes, CheckpointResult, Restored, UnappliedPath, Undone, UndoneOperation, name, warnings,
};
use super::{McpContext, params, paths_of, state_or_latest};
use ckptfs_api::{
    self, CheckpointOptions, Code, OnlyBy, RestoreOptions, RestoredOnly, SharedPath, StateName,
    TreePath, UndoOptions, UndoWalk, UndoneStep, VerbResult,
};
use ckptfs_ui::error::{hinted, io_error};
use ckptfs_ui::locate;
use ckptfs_ui::output::{Out, escape};

pub fn checkpoint(seat: &McpContext, asked: params::Checkpoint) -> VerbResult<CheckpointResult> {
    let made = seat.served()?.client.ask(CheckpointOptions {
        note: asked.message,
        tags: asked.tags,
        if_changed: asked.if_changed,
        ..CheckpointOptions::default()
    })?;
    Ok(CheckpointResult {
        made: !made.unchanged,
        checkpoint: (&made).into(),
    })
}

pub fn restore(seat: &McpContext, asked: params::Restore) -> VerbResult<Restored> {
    let mut served = seat.served()?;
    let paths = paths_of(&served, &asked.paths)?;
    let limit = params::limit(asked.limit);
    let to = asked.to.map(StateName);
    let done = if asked.only_by_me {
        let only = OnlyBy {
            to,
            who: seat.me()?,
            paths,
            also_shared: false,
            past_rewinds: false,
            of_user: None,
            dry_run: asked.dry_run,
            times: None,
        };
        mine(&mut served, only)?
    } else {
        if to.is_none() && paths.is_empty() {
            return Err(hinted(
                Code::Usage,
                "restoring the whole tree needs the checkpoint to be named",
                "give `to`: a number, a tag, or \"latest\"",
            ));
        }
        let options = RestoreOptions {
            to: state_or_latest(to.map(|to| to.0)),
            paths,
            dry_run: asked.dry_run,
            times: None,
        };
        let restored = served.client.ask(options)?;
        RestoredOnly {
            restored,
            shared: Vec::new(),
        }
    };
    let out = Out::to_memory(0);
    warn_of_holders(&served.root, &done.restored, &out);
    Ok(told(&done, out.kept().1, limit))
}

/// Reverts the changes of the agent.
///
/// # Errors
/// `unknown-process`: it has changed nothing; the hint suggests a call that works.
fn mine(served: &mut locate::ServedTree, only: OnlyBy) -> VerbResult<RestoredOnly> {
    served.client.ask(only).map_err(|why| {
        if why.code != Code::UnknownProcess {
            return why;
        }
        let hint = why.hint.unwrap_or_default();
        hinted(
            Code::UnknownProcess,
            "nothing that differs from that checkpoint was changed by you (the process that started this server, and its children)",
            format!("{hint}; with only_by_me: false and `paths` their changes are taken back"),
        )
    })
}

fn told(done: &RestoredOnly, said: Vec<String>, limit: usize) -> Restored {
    let ckptfs_api::Restored {
        restored,
        guard,
        changes,
        unknown,
        dropped,
        mounted,
        split,
        dry_run,
        duration_us: _,
    } = &done.restored;
    let because = |why: &'static str| {
        move |path: &TreePath| UnappliedPath {
            path: name(path),
            why: why.to_owned(),
        }
    };
    let all: Vec<UnappliedPath> = done
        .shared
        .iter()
        .map(shared)
        .chain(unknown.iter().map(because(
            "it was changed while nothing was mounted, so its earlier state is not known",
        )))
        .chain(
            dropped
                .iter()
                .map(because("its old content was dropped by a retention rule")),
        )
        .chain(
            mounted
                .iter()
                .map(because("another filesystem is mounted there")),
        )
        .collect();
    let split = split.iter().map(|path| {
        format!(
            "{} is no longer a hard link to names that were not restored: it is a separate file now",
            name(path)
        )
    });
    Restored {
        restored: restored.0,
        guard: guard.map(|guard| guard.0),
        changed: Changes::first(changes, limit),
        kept_left_out: all.len().saturating_sub(limit) as u64,
        kept: all.into_iter().take(limit).collect(),
        warnings: warnings(said.into_iter().chain(split).collect()),
        dry_run: *dry_run,
    }
}

fn shared(shared: &SharedPath) -> UnappliedPath {
    let why = if shared.by.is_empty() {
        "it cannot be taken back without changes of others".to_owned()
    } else {
        format!("{} changed it too", escape(shared.by.join(", ").as_bytes()))
    };
    UnappliedPath {
        path: name(&shared.path),
        why,
    }
}

pub fn undo(seat: &McpContext, asked: params::Undo) -> VerbResult<Undone> {
    if !(1..=100).contains(&asked.count) {
        return Err(hinted(
            Code::Usage,
            "count is from 1 to 100",
            "ckptfs ops lists the operations",
        ));
    }
    let mut served = seat.served()?;
    let undone = served.client.ask(UndoOptions {
        walk: UndoWalk::Undo(asked.count as usize),
        skip: false,
        force: false,
        dry_run: asked.dry_run,
    })?;
    let out = Out::to_memory(0);
    tell_git_of(&mut served, &undone, &out);
    Ok(Undone {
        steps: undone
            .steps
            .iter()
            .map(|one| step(&out, one))
            .collect::<VerbResult<_>>()?,
        stopped: undone.stopped.map(|why| match why.hint {
            Some(hint) => format!("{}; {hint}", why.message),
            None => why.message,
        }),
        warnings: warnings(out.kept().1),
        dry_run: undone.dry_run,
    })
}

fn step(out: &Out, step: &UndoneStep) -> VerbResult<UndoneOperation> {
    let of = step.original.as_ref().unwrap_or(&step.operation);
    let mut what = ops::what(out, of).map_err(|cause| io_error("the answer", cause))?;
    what.extend_from_slice(remark(step).as_bytes());
    Ok(UndoneOperation {
        operation: of.number,
        what: escape(&what),
        guard: step.guard.map(|guard| guard.0),
    })
}
