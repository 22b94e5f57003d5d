//! `ckptfs log`.

use std::path::{Path, PathBuf};

use super::context::Context;
use super::error::{Outcome, hinted};
use super::graph::Graph;
use super::listing::{Printer, remarks};
use super::output::{Out, Role, width};
use super::tree_path::in_tree;
use super::{find, locate, time};
use crate::control::History;
use crate::engine::api::{
    Code, ListVersions, Query, ShowCheckpoint, StateName, VersionInfo, VersionKind,
};

/// Checkpoints that are asked for at once.
const PAGE: usize = 256;

/// List the checkpoints, or every version of one path, newest first
#[derive(Debug, clap::Args)]
pub struct Args {
    /// List at most this many
    #[arg(
        short = 'n',
        long = "max-count",
        visible_alias = "limit",
        value_name = "COUNT"
    )]
    max_count: Option<usize>,
    /// List only those before this one: the next page
    #[arg(long, value_name = "ID", conflicts_with = "path")]
    before: Option<String>,
    /// Draw which checkpoint each one comes from
    #[arg(long, conflicts_with_all = ["path", "deleted"])]
    graph: bool,
    /// List those that were deleted, which `undo` can bring back until they are freed
    #[arg(long, conflicts_with = "path")]
    deleted: bool,
    /// List the versions of this file, or the checkpoints that changed something below this
    /// directory
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
    /// One line per checkpoint, which is the default
    #[arg(long)]
    oneline: bool,
    #[command(flatten)]
    filters: find::Filters,
    /// That changed this path, or something below it; relative to the working directory
    #[arg(long, value_name = "PATH")]
    changed: Option<PathBuf>,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    context.out.page();
    if args.filters != find::Filters::default() || args.changed.is_some() {
        if args.before.is_some() || args.graph || args.deleted || args.path.is_some() {
            return Err(hinted(
                Code::Usage,
                "--before, --graph, --deleted and PATH cannot be combined with filters",
                "leave them out, or leave out the filters (--author, --since, --tag, --changed, ...)",
            )
            .into());
        }
        let found = find::Args {
            filters: args.filters,
            max_count: args.max_count,
            path: args.changed,
        };
        return find::run(found, context);
    }
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
    let printed = print_by_page(&mut source, query, Printer::new(graph), &mut context.out)?;
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
