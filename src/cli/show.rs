//! `ckptfs show`.

use super::error::Outcome;
use super::output::Role;
use super::{Context, locate, time};
use crate::engine::api::StateName;
use crate::store::record::Reason;

/// Show one checkpoint
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A number, a tag, or `latest`
    #[arg(value_name = "ID")]
    id: String,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let mut source = locate::history(context.dir())?;
    let checkpoint = source.show(&StateName(args.id))?;
    let out = &mut context.out;
    if out.json {
        return Ok(out.json(&checkpoint)?);
    }
    let reason = match &checkpoint.reason {
        Reason::Directory { name } => format!("mkdir .snapshots/{name}"),
        Reason::Auto { trigger } => format!("auto:{}", trigger.name()),
        Reason::Asked => "asked for".to_owned(),
        Reason::Guard { restored } => format!("made before the restore of {restored}"),
    };
    let atomic = if checkpoint.atomic { "yes" } else { "no: files written all the time were captured one after the other" };
    let lines = [
        ("checkpoint", out.paint(Role::Id, &checkpoint.id.to_string())),
        ("created", time::local(&checkpoint.created)),
        ("tags", out.paint(Role::Tag, &out.text(&checkpoint.tags.join(", ")))),
        ("changes", checkpoint.dirty.to_string()),
        ("atomic", atomic.to_owned()),
        ("reason", reason),
    ];
    for (label, value) in lines {
        let line = format!("{} {value}", out.paint(Role::Faint, &format!("{label:<10}")));
        out.line(line.trim_end())?;
    }
    if !checkpoint.note.is_empty() {
        out.line("")?;
        for line in checkpoint.note.lines() {
            let line = format!("    {}", out.text(line));
            out.line(&line)?;
        }
    }
    Ok(())
}
