//! `ckptfs delete`.

use serde::Serialize;

use super::freeing::freeing;
use crate::executor::whole;
use ckptfs_api::{CheckpointInfo, Delete, Query, StateName, VerbResult};
use ckptfs_daemon::VerbExecutor;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::Outcome;
use ckptfs_ui::{changes, time};

/// Delete a checkpoint; `ckptfs undo` brings it back until it is freed
///
/// Its space is freed by `ckptfs gc`, or at once with --now. Works without a mount too.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A number, a tag, or `latest`
    #[arg(value_name = "ID")]
    id: String,
    /// Free its space at once; this cannot be undone. Also works for a checkpoint that is already
    /// deleted, by its number
    #[arg(long)]
    now: bool,
    /// Only show what would be deleted
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Do not ask for confirmation (without a terminal, it is never asked for)
    #[arg(short, long)]
    yes: bool,
}

/// Output of `--json`.
#[derive(Serialize)]
struct Deleted<'a> {
    deleted: &'a CheckpointInfo,
    dry_run: bool,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let mut history = freeing(context.dir())?;
    let checkpoint = match whole(&args.id, &mut history) {
        Err(missing) if args.now => deleted_already(&mut history, &args.id)?.ok_or(missing)?,
        shown => shown?,
    };
    let what = if args.now {
        format!("{} for good", describe(&checkpoint))
    } else {
        describe(&checkpoint)
    };
    if args.dry_run {
        return print(&checkpoint, true, &format!("would delete {what}"), context);
    }
    context.out.go_on(
        args.yes || !args.now,
        &format!("Delete {what}?"),
        "nothing was deleted",
    )?;
    // By number, because a tag or `latest` may have moved since.
    let state = StateName(checkpoint.id.to_string());
    let deleted = history.ask(Delete {
        state,
        now: args.now,
    })?;
    print(&deleted, false, &format!("deleted {what}"), context)
}

/// Returns the checkpoint with this number if it is deleted and not yet freed.
fn deleted_already(history: &mut VerbExecutor, id: &str) -> VerbResult<Option<CheckpointInfo>> {
    let deleted = history.ask(Query {
        hidden: true,
        ..Query::default()
    })?;
    Ok(deleted
        .into_iter()
        .find(|checkpoint| checkpoint.id.to_string() == id))
}

fn print(checkpoint: &CheckpointInfo, dry_run: bool, text: &str, context: &mut Context) -> Outcome {
    context.out.answer(
        &Deleted {
            deleted: checkpoint,
            dry_run,
        },
        |out| out.text_line(text),
    )
}

fn describe(checkpoint: &CheckpointInfo) -> String {
    let tags = if checkpoint.tags.is_empty() {
        String::new()
    } else {
        format!(" [{}]", checkpoint.tags.join(", "))
    };
    format!(
        "checkpoint {}{tags} of {} ({})",
        checkpoint.id,
        time::local(&checkpoint.created),
        changes::count(checkpoint.dirty)
    )
}
