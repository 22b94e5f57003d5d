//! `ckptfs log`.

use std::path::{Path, PathBuf};

use super::context::Context;
use super::error::Outcome;
use super::graph::Graph;
use super::output::{Out, Role, width};
use super::tree_path::in_tree;
use super::{changes, locate, time};
use crate::control::History;
use crate::engine::api::{
    CheckpointInfo, ListVersions, Query, ShowCheckpoint, StateName, VersionInfo, VersionKind,
};
use crate::store::record::Reason;

/// Checkpoints that are asked for at once.
const PAGE: usize = 256;

/// List the checkpoints, or every version of one path, newest first
#[derive(Debug, clap::Args)]
pub struct Args {
    /// At most so many
    #[arg(
        short = 'n',
        long = "max-count",
        visible_alias = "limit",
        value_name = "COUNT"
    )]
    max_count: Option<usize>,
    /// Only those before this one: the next page
    #[arg(long, value_name = "ID", conflicts_with = "path")]
    before: Option<String>,
    /// Draw which checkpoint each comes from
    #[arg(long, conflicts_with_all = ["path", "deleted"])]
    graph: bool,
    /// Those that were deleted and can be brought back by `undo`, or freed for good
    #[arg(long, conflicts_with = "path")]
    deleted: bool,
    /// List the versions of this file, or the checkpoints that changed something below this
    /// directory
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    if let Some(path) = &args.path {
        return versions(path, args.max_count.unwrap_or(usize::MAX), context);
    }
    let mut source = locate::history(context.dir())?;
    let before = match args.before {
        Some(before) => Some(
            source
                .ask(ShowCheckpoint {
                    state: StateName(before),
                })?
                .id,
        ),
        None => None,
    };
    let query = Query {
        limit: args.max_count,
        before,
        hidden: args.deleted,
        counted: true,
        ..Query::default()
    };
    if context.out.json {
        return Ok(context.out.json(&source.ask(query)?)?);
    }
    let graph = args.graph.then(Graph::default);
    let printed = print_by_page(
        &mut source,
        query,
        Printer {
            graph,
            ..Printer::default()
        },
        &mut context.out,
    )?;
    if printed == 0 && !args.deleted && before.is_none() {
        context
            .out
            .talk("no checkpoint yet; make one: ckptfs checkpoint");
    }
    Ok(())
}

/// Asks for so many checkpoints at once and prints them, so that the first are there at once
/// however many there are. Gives how many there were.
fn print_by_page(
    source: &mut History,
    mut query: Query,
    mut printer: Printer,
    out: &mut Out,
) -> Outcome<usize> {
    let (mut printed, limit) = (0, query.limit.unwrap_or(usize::MAX));
    while printed < limit {
        let page = PAGE.min(limit - printed);
        query.limit = Some(page);
        let checkpoints = source.ask(query.clone())?;
        printer.print(&checkpoints, out)?;
        printed += checkpoints.len();
        query.before = checkpoints.last().map(|oldest| oldest.id);
        if checkpoints.len() < page {
            break;
        }
        out.flush()?;
    }
    Ok(printed)
}

/// Prints one line for each checkpoint.
pub fn print_checkpoints(checkpoints: &[CheckpointInfo], out: &mut Out) -> Outcome {
    Printer::default().print(checkpoints, out)
}

/// Prints one line for each checkpoint, in columns as wide as they had to be so far.
#[derive(Default)]
struct Printer {
    graph: Option<Graph>,
    id_width: usize,
    count_width: usize,
}

impl Printer {
    fn print(&mut self, checkpoints: &[CheckpointInfo], out: &mut Out) -> Outcome {
        for checkpoint in checkpoints {
            self.id_width = self.id_width.max(checkpoint.id.to_string().len());
            self.count_width = self.count_width.max(count(checkpoint).len());
        }
        for checkpoint in checkpoints {
            let mut line = line(out, checkpoint, self.id_width, self.count_width);
            if let Some(graph) = &mut self.graph {
                let (above, before) = graph.next(checkpoint.id, checkpoint.parent);
                for joins in above {
                    out.line(&joins)?;
                }
                line.insert_str(0, &before);
            }
            out.line(&line)?;
        }
        Ok(())
    }
}

fn versions(path: &Path, max: usize, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    let path = in_tree(&served.root, &served.cwd, path)?;
    let mut versions = served.client.ask(ListVersions { path })?;
    versions.truncate(max);
    let out = &mut context.out;
    if out.json {
        return Ok(out.json(&versions)?);
    }
    let id = |version: &VersionInfo| {
        version
            .checkpoint
            .as_ref()
            .map_or("live".to_owned(), |checkpoint| checkpoint.id.to_string())
    };
    let size = |version: &VersionInfo| {
        version
            .size
            .map_or(String::new(), |size| format!("{size} B"))
    };
    let (id_width, size_width) = (width(&versions, id), width(&versions, size));
    for version in &versions {
        let (letter, role) = letter(version.change);
        let made = version
            .checkpoint
            .as_ref()
            .map_or(" ".repeat("2026-11-21 09:00:00".len()), |checkpoint| {
                time::local(&checkpoint.created)
            });
        let mut line = format!(
            "{}  {made}  {}  {:>size_width$}",
            out.paint(Role::Id, &format!("{:>id_width$}", id(version))),
            out.paint(role, letter),
            size(version)
        );
        if let Some(checkpoint) = &version.checkpoint {
            line.push_str(&remarks(out, checkpoint));
        }
        out.line(line.trim_end())?;
    }
    Ok(())
}

fn letter(change: VersionKind) -> (&'static str, Role) {
    match change {
        VersionKind::Added => ("A", Role::Good),
        VersionKind::Modified => ("M", Role::Notice),
        VersionKind::Deleted => ("D", Role::Bad),
        VersionKind::TypeChanged => ("T", Role::Notice),
        VersionKind::Unknown => ("?", Role::Bad),
    }
}

/// As many as `diff` tells; as the operations counted them, if it would take long to compare.
fn count(checkpoint: &CheckpointInfo) -> String {
    match checkpoint.changes {
        Some(exact) => changes::count(exact),
        None => changes::count(checkpoint.dirty),
    }
}

fn line(out: &Out, checkpoint: &CheckpointInfo, id_width: usize, count_width: usize) -> String {
    let id = out.paint(
        Role::Id,
        &format!("{:>id_width$}", checkpoint.id.to_string()),
    );
    let created = time::local(&checkpoint.created);
    format!(
        "{id}  {created}  {:>count_width$}{}",
        count(checkpoint),
        remarks(out, checkpoint)
    )
}

/// Tags, what it guards, and the note's first line.
fn remarks(out: &Out, checkpoint: &CheckpointInfo) -> String {
    let mut line = String::new();
    if !checkpoint.tags.is_empty() {
        let tags = checkpoint.tags.join(", ");
        line.push_str(&format!(
            "  {}",
            out.paint(Role::Tag, &format!("[{}]", out.text(&tags)))
        ));
    }
    if let Reason::Guard { restored } = checkpoint.reason {
        let what = if restored == checkpoint.id {
            "  (before a merge)".to_owned()
        } else {
            format!("  (before the restore of {restored})")
        };
        line.push_str(&out.paint(Role::Faint, &what));
    }
    if let Reason::Auto { trigger } = checkpoint.reason {
        line.push_str(&out.paint(Role::Faint, &format!("  (auto:{})", trigger.name())));
    }
    match checkpoint.pinned.as_deref() {
        Some("") => line.push_str(&out.paint(Role::Notice, "  (pinned)")),
        Some(reason) => line.push_str(&out.paint(
            Role::Notice,
            &format!(
                "  (pinned: {})",
                out.text(reason.lines().next().unwrap_or_default())
            ),
        )),
        None => {}
    }
    if checkpoint.has_dropped {
        line.push_str(&out.paint(Role::Faint, "  (some dropped)"));
    }
    if !checkpoint.atomic {
        line.push_str(&out.paint(Role::Bad, "  (not atomic)"));
    }
    if let Some(first) = checkpoint.note.lines().next() {
        line.push_str(&format!("  {}", out.text(first)));
    }
    line
}
