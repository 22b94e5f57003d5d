//! `ckptfs ops`.

use super::context::Context;
use super::error::Outcome;
use super::output::{Out, Role};
use super::{locate, time};
use crate::engine::api::{ListOperations, OperationInfo, OperationKind};

/// Operations that are listed unless told otherwise.
const LISTED: usize = 50;

/// List what was done to the history, newest first: what `undo` undoes
#[derive(Debug, clap::Args)]
pub struct Args {
    /// At most so many
    #[arg(short = 'n', long = "max-count", visible_alias = "limit", value_name = "COUNT", default_value_t = LISTED)]
    max_count: usize,
    /// Only those before this one
    #[arg(long, value_name = "OP")]
    before: Option<u64>,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    let operations = served.client.ask(ListOperations {
        before: args.before,
        limit: args.max_count,
    })?;
    let out = &mut context.out;
    if out.json {
        return Ok(out.json(&operations)?);
    }
    if operations.is_empty() {
        out.talk("nothing was done yet");
    }
    let width = operations
        .iter()
        .map(|operation| operation.number.to_string().len())
        .max()
        .unwrap_or(0);
    for operation in &operations {
        let line = line(out, operation, width);
        out.bytes(&line)?;
    }
    if operations.len() == args.max_count
        && let Some(oldest) = operations.last().filter(|oldest| oldest.number > 1)
    {
        out.talk(&format!(
            "older ones: ckptfs ops --before {}",
            oldest.number
        ));
    }
    Ok(())
}

fn line(out: &Out, operation: &OperationInfo, width: usize) -> Vec<u8> {
    let number = out.paint(Role::Id, &format!("{:>width$}", operation.number));
    let mut line = format!("{number}  {}  ", time::local(&operation.at)).into_bytes();
    line.extend_from_slice(&what(out, operation));
    if let Some(undone) = operation.undoes {
        line.extend_from_slice(format!("  (undoes {undone})").as_bytes());
    }
    match (operation.in_effect, operation.undone_by) {
        (false, Some(by)) => line.extend_from_slice(
            out.paint(Role::Faint, &format!("  (undone by {by})"))
                .as_bytes(),
        ),
        (true, Some(_)) => {
            line.extend_from_slice(out.paint(Role::Faint, "  (done again)").as_bytes())
        }
        (_, None) => {}
    }
    if let Some(why) = &operation.obstacle {
        line.extend_from_slice(
            out.paint(
                Role::Bad,
                &format!("  (cannot be undone: {})", out.text(why)),
            )
            .as_bytes(),
        );
    }
    let by = &operation.by;
    line.extend_from_slice(
        out.paint(
            Role::Faint,
            format!(
                "  by uid {} pid {} {}",
                by.uid,
                by.pid,
                out.text(&by.process)
            )
            .trim_end(),
        )
        .as_bytes(),
    );
    line.push(b'\n');
    line
}

/// What an operation was, for people.
pub fn what(out: &Out, operation: &OperationInfo) -> Vec<u8> {
    let id = operation
        .checkpoint
        .map(|id| format!(" {id}"))
        .unwrap_or_default();
    let verb = match operation.what {
        OperationKind::Checkpoint => "checkpoint",
        OperationKind::Restore => "restore",
        OperationKind::Delete if operation.freed => "delete --now",
        OperationKind::Delete => "delete",
        OperationKind::Revive => "bring back",
        OperationKind::Tag => "tag",
        OperationKind::Pin => "pin",
        OperationKind::Unpin => "unpin",
    };
    let mut text = format!("{verb}{id}").into_bytes();
    for change in &operation.tags {
        let of = if operation.checkpoint.is_some() {
            String::new()
        } else {
            format!(" {}:", change.checkpoint)
        };
        let lost = change.lost.iter().map(|tag| format!(" -{tag}"));
        let tags: String = lost
            .chain(change.got.iter().map(|tag| format!(" +{tag}")))
            .collect();
        text.extend_from_slice(format!("{of}{}", out.text(&tags)).as_bytes());
    }
    for path in operation.paths.iter().take(3) {
        text.push(b' ');
        text.extend_from_slice(&out.name(&path.0));
    }
    if operation.paths.len() > 3 {
        text.extend_from_slice(format!(" and {} more", operation.paths.len() - 3).as_bytes());
    }
    if let Some(guard) = operation.guard {
        text.extend_from_slice(format!(" (before: {guard})").as_bytes());
    }
    if let Some(reason) = operation
        .reason
        .as_ref()
        .filter(|reason| !reason.is_empty())
    {
        text.extend_from_slice(
            format!(": {}", out.text(reason.lines().next().unwrap_or_default())).as_bytes(),
        );
    }
    text
}
