//! `ckptfs undo`.

use std::collections::BTreeSet;

use super::branch::drop::tell_git;
use super::ops;
use ckptfs_api::{UNDO_PROCESS, UndoOptions, UndoWalk, Undone, UndoneStep};
use ckptfs_sys as sys;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{Failure, Outcome};
use ckptfs_ui::interrupt::Interrupt;
use ckptfs_ui::locate::ServedTree;
use ckptfs_ui::output::Out;
use ckptfs_ui::{changes, locate};

/// Undo the last operations: restores, merges, deletions, tags, pins
///
/// Nothing is destroyed: before a restore is undone, the tree is saved as a checkpoint, and `ckptfs
/// redo` reverts the undo. A checkpoint is undone only with --force: it is hidden, and `redo`
/// brings it back with its number, tags and note.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of operations, the newest first
    #[arg(value_name = "COUNT", default_value_t = 1, conflicts_with_all = ["to", "op"], value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Return to the state right after this operation, even on an abandoned line; 0: before the
    /// first
    #[arg(long, value_name = "OP")]
    to: Option<u64>,
    /// Undo only this operation, such as the deletion of a checkpoint; not of a restore or merge
    #[arg(long, value_name = "OP", conflicts_with = "to")]
    op: Option<u64>,
    /// Skip operations that can no longer be undone
    #[arg(long)]
    skip: bool,
    /// Also hide checkpoints that were made on request, and ignore that files were removed since
    #[arg(long)]
    force: bool,
    /// Only show what would be undone
    #[arg(short = 'n', long)]
    dry_run: bool,
    #[command(flatten)]
    listed: changes::ListAllArg,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let walk = match (args.to, args.op) {
        (Some(to), _) => UndoWalk::To(to),
        (None, Some(op)) => UndoWalk::Only(op),
        (None, None) => UndoWalk::Undo(args.count as usize),
    };
    walk_and_tell(
        UndoOptions {
            walk,
            skip: args.skip,
            force: args.force,
            dry_run: args.dry_run,
        },
        "undone",
        args.listed,
        context,
    )
}

/// Performs the walk, and prints each step; `done` is the participle for it.
pub fn walk_and_tell(
    options: UndoOptions,
    done: &str,
    listed: changes::ListAllArg,
    context: &mut Context,
) -> Outcome {
    if done == "undone" {
        sys::name_process(UNDO_PROCESS);
    }
    let mut served = locate::served(context.dir())?;
    let interrupt = Interrupt::gives_up(&served.client)?;
    let what = if done == "undone" {
        "undoing"
    } else {
        "redoing"
    };
    let undone = interrupt.ask(&mut served.client, options, what, &context.out)?;
    let out = &mut context.out;
    if out.json {
        out.json(&undone)?;
    } else {
        if undone.steps.is_empty() && undone.tree.is_none() {
            out.talk("nothing to do: the tree is already in that state");
        }
        for step in &undone.steps {
            let mut line = match (&step.skipped, options.dry_run) {
                (Some(_), _) => b"skipped: ".to_vec(),
                (None, true) => format!("would be {done}: ").into_bytes(),
                (None, false) => format!("{done}: ").into_bytes(),
            };
            let of = step.original.as_ref().unwrap_or(&step.operation);
            line.extend_from_slice(format!("{} ", of.number).as_bytes());
            line.extend_from_slice(&ops::what(out, of)?);
            line.extend_from_slice(out.text(&remark(step)).as_bytes());
            line.push(b'\n');
            out.bytes(&line)?;
            if let (true, None, false, Some(id)) =
                (of.by_rule, &step.skipped, options.dry_run, of.checkpoint)
            {
                out.talk(&format!(
                    "the next automatic gc deletes it again, unless it is pinned: ckptfs pin {id}"
                ));
            }
            for path in &step.unknown {
                out.warn(&format!(
                    "the earlier state of {} is not known: it is left as it is",
                    String::from_utf8_lossy(&path.0)
                ));
            }
        }
    }
    tell_git_of(&mut served, &undone, &context.out);
    if let Some(restored) = undone.tree.filter(|_| !context.out.json) {
        super::restore::print(&restored, listed, context)?;
    }
    match undone.stopped {
        None => interrupt.end(&context.out),
        // The data contains the reason.
        Some(_) if context.out.json => Err(Failure::No),
        Some(why) => {
            context.out.flush()?;
            Err(why.into())
        }
    }
}

/// Updates git after operations on branches.
pub fn tell_git_of(served: &mut ServedTree, undone: &Undone, out: &Out) {
    let moved: BTreeSet<&str> = undone
        .steps
        .iter()
        .filter(|step| step.by_operation.is_some())
        .flat_map(|step| [Some(&step.operation), step.original.as_ref()])
        .filter_map(|operation| operation?.branch.as_deref())
        .collect();
    if !moved.is_empty() {
        tell_git(served, &moved, out);
    }
}

/// Formats the outcome of a step, to follow its name.
pub fn remark(step: &UndoneStep) -> String {
    match (&step.skipped, step.guard) {
        (Some(why), _) => format!("; {why}"),
        (None, Some(guard)) => format!(
            "; {}; the previous state is checkpoint {guard}",
            changes::count(step.changes.unwrap_or(0))
        ),
        (None, None) => String::new(),
    }
}
