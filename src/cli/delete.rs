//! `ckptfs delete`.

use std::io::{self, BufRead, IsTerminal, Write};

use serde::Serialize;

use super::error::{Failure, Outcome};
use super::{Context, changes, locate, time};
use crate::engine::api::{CheckpointInfo, StateName};

/// Delete a checkpoint and free what only it needed; this cannot be undone
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A number, a tag, or `latest`
    #[arg(value_name = "ID")]
    id: String,
    /// Only tell what would be deleted
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Do not ask; without a terminal nothing is asked anyway
    #[arg(short, long)]
    yes: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Deleted<'a> {
    deleted: &'a CheckpointInfo,
    dry_run: bool,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    let checkpoint = served.client.show(StateName(args.id))?;
    let what = describe(&checkpoint);
    if args.dry_run {
        return print(&checkpoint, true, &format!("would delete {what}"), context);
    }
    let ask = !args.yes && io::stdin().is_terminal() && io::stderr().is_terminal();
    if ask && !confirmed(&context.out.talk_text(&format!("Delete {what}?")))? {
        context.out.talk("nothing was deleted");
        return Err(Failure::No);
    }
    // By number: a tag or `latest` may mean another checkpoint by now.
    let deleted = served.client.delete(StateName(checkpoint.id.to_string()))?;
    print(&deleted, false, &format!("deleted {what}"), context)
}

fn print(checkpoint: &CheckpointInfo, dry_run: bool, text: &str, context: &mut Context) -> Outcome {
    let out = &mut context.out;
    if out.json {
        return Ok(out.json(&Deleted { deleted: checkpoint, dry_run })?);
    }
    let text = out.text(text).into_owned();
    Ok(out.line(&text)?)
}

fn describe(checkpoint: &CheckpointInfo) -> String {
    let tags = if checkpoint.tags.is_empty() { String::new() } else { format!(" [{}]", checkpoint.tags.join(", ")) };
    format!("checkpoint {}{tags} of {} ({})", checkpoint.id, time::local(&checkpoint.created), changes::count(checkpoint.dirty))
}

pub fn confirmed(question: &str) -> io::Result<bool> {
    write!(io::stderr(), "{question} [y/N] ")?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
