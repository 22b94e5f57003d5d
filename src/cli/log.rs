//! `ckptfs log`.

use super::error::Outcome;
use super::output::{Out, Role};
use super::{Context, changes, locate, time};
use crate::engine::api::CheckpointInfo;
use crate::store::record::Reason;

/// List the checkpoints, newest first
#[derive(Debug, clap::Args)]
pub struct Args {
    /// At most so many
    #[arg(short = 'n', long = "max-count", value_name = "COUNT")]
    max_count: Option<usize>,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let mut source = locate::history(context.dir())?;
    let mut checkpoints = source.log()?;
    checkpoints.truncate(args.max_count.unwrap_or(usize::MAX));
    let out = &mut context.out;
    if out.json {
        return Ok(out.json(&checkpoints)?);
    }
    if checkpoints.is_empty() {
        out.talk("no checkpoint yet; make one: ckptfs checkpoint");
    }
    let id_width = checkpoints.iter().map(|checkpoint| checkpoint.id.to_string().len()).max().unwrap_or(0);
    let count_width = checkpoints.iter().map(|checkpoint| changes::count(checkpoint.dirty).len()).max().unwrap_or(0);
    for checkpoint in &checkpoints {
        let line = line(out, checkpoint, id_width, count_width);
        out.line(&line)?;
    }
    Ok(())
}

fn line(out: &Out, checkpoint: &CheckpointInfo, id_width: usize, count_width: usize) -> String {
    let id = out.paint(Role::Id, &format!("{:>id_width$}", checkpoint.id.to_string()));
    let created = time::local(&checkpoint.created);
    let mut line = format!("{id}  {created}  {:>count_width$}", changes::count(checkpoint.dirty));
    if !checkpoint.tags.is_empty() {
        let tags = checkpoint.tags.join(", ");
        line.push_str(&format!("  {}", out.paint(Role::Tag, &format!("[{}]", out.text(&tags)))));
    }
    if let Reason::Guard { restored } = checkpoint.reason {
        line.push_str(&out.paint(Role::Faint, &format!("  (before the restore of {restored})")));
    }
    if !checkpoint.atomic {
        line.push_str(&out.paint(Role::Bad, "  (not atomic)"));
    }
    if let Some(first) = checkpoint.note.lines().next() {
        line.push_str(&format!("  {}", out.text(first)));
    }
    line
}
