//! `ckptfs ops`.

use std::io::{self, Write};

use super::audit;
use ckptfs_api::{ListOperations, OperationInfo, OperationKind};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::Outcome;
use ckptfs_ui::output::{Out, Role, width};
use ckptfs_ui::{locate, time};

/// Default limit of the listed operations.
const LISTED: usize = 50;

/// List the operations on the history, for `undo`, newest first
#[derive(Debug, clap::Args)]
pub struct Args {
    /// List at most COUNT operations
    #[arg(short = 'n', long = "max-count", visible_alias = "limit", value_name = "COUNT", default_value_t = LISTED)]
    max_count: usize,
    /// Only operations before this one
    #[arg(long, value_name = "OP")]
    before: Option<u64>,
    /// List all actions and their users, oldest first: checkpoints, restores, mounts, ...
    #[arg(long, conflicts_with_all = ["max_count", "before"])]
    all: bool,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    context.out.page();
    if args.all {
        return audit::run(context);
    }
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
        match args.before {
            Some(before) => out.talk(&format!("no operations before {before}")),
            None if args.max_count > 0 => out.talk("no operations yet"),
            None => {}
        }
    }
    let width = width(&operations, |operation| operation.number.to_string());
    for operation in &operations {
        let line = line(out, operation, width)?;
        out.bytes(&line)?;
    }
    if operations.len() == args.max_count
        && let Some(oldest) = operations.last().filter(|oldest| oldest.number > 1)
    {
        out.talk(&format!(
            "to list older ones: ckptfs ops --before {}",
            oldest.number
        ));
    }
    Ok(())
}

fn line(out: &Out, operation: &OperationInfo, width: usize) -> io::Result<Vec<u8>> {
    let number = out.paint(Role::Id, &format!("{:>width$}", operation.number));
    let mut line = format!("{number}  {}  ", time::local(&operation.at)).into_bytes();
    line.extend_from_slice(&what(out, operation)?);
    if let Some(undone) = operation.undoes {
        write!(line, "  (undoes {undone})")?;
    }
    match (operation.in_effect, operation.undone_by) {
        (false, Some(by)) => write!(
            line,
            "{}",
            out.paint(Role::Faint, &format!("  (undone by {by})"))
        )?,
        (true, Some(_)) => write!(line, "{}", out.paint(Role::Faint, "  (redone)"))?,
        (_, None) => {}
    }
    if let Some(why) = &operation.obstacle {
        write!(
            line,
            "{}",
            out.paint(
                Role::Bad,
                &format!("  (cannot be undone: {})", out.text(why)),
            )
        )?;
    }
    let by = &operation.by;
    write!(
        line,
        "{}",
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
    )?;
    line.push(b'\n');
    Ok(line)
}

/// Formats the kind and the arguments of an operation.
pub fn what(out: &Out, operation: &OperationInfo) -> io::Result<Vec<u8>> {
    let id = operation
        .checkpoint
        .map(|id| format!(" {id}"))
        .unwrap_or_default();
    let verb = match operation.what {
        OperationKind::Checkpoint => "checkpoint",
        OperationKind::Restore => "restore",
        OperationKind::Merge => "merge",
        OperationKind::Delete if operation.freed => "delete --now",
        OperationKind::Delete if operation.by_rule => "expire",
        OperationKind::Delete => "delete",
        OperationKind::Revive => "bring back",
        OperationKind::Tag => "tag",
        OperationKind::Pin => "pin",
        OperationKind::Unpin => "unpin",
        OperationKind::DropBranch => "branch drop",
        OperationKind::RestoreBranch => "branch restore",
    };
    let of = match &operation.branch {
        Some(name) => format!(" {}", out.text(name)),
        None => id,
    };
    let mut text = format!("{verb}{of}").into_bytes();
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
        write!(text, "{of}{}", out.text(&tags))?;
    }
    for path in operation.paths.iter().take(3) {
        text.push(b' ');
        text.extend_from_slice(&out.name(&path.0));
    }
    if operation.paths.len() > 3 {
        write!(text, " and {} more", operation.paths.len() - 3)?;
    }
    if let Some(guard) = operation.guard {
        write!(text, " (before: {guard})")?;
    }
    if let Some(reason) = operation
        .reason
        .as_ref()
        .filter(|reason| !reason.is_empty())
    {
        write!(
            text,
            ": {}",
            out.text(reason.lines().next().unwrap_or_default())
        )?;
    }
    Ok(text)
}
