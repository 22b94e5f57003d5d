//! `ckptfs log`.

use std::path::{Path, PathBuf};

use super::{diff, find};
use crate::executor;
use ckptfs_api::{
    Change, Code, ListVersions, Query, ShowCheckpoint, StateName, TreePath, VersionInfo,
    VersionKind,
};
use ckptfs_daemon::VerbExecutor;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{Failure, Outcome, hinted};
use ckptfs_ui::graph::Graph;
use ckptfs_ui::hunks::Style;
use ckptfs_ui::listing::{Printer, remarks};
use ckptfs_ui::output::{Out, Role, width};
use ckptfs_ui::tree_path::in_tree;
use ckptfs_ui::{changes, locate, past, time};

/// Checkpoints per request.
const PAGE: usize = 256;

/// List the checkpoints, or every version of one path, newest first
#[derive(Debug, clap::Args)]
pub struct Args {
    /// List at most COUNT entries
    #[arg(
        short = 'n',
        long = "max-count",
        visible_alias = "limit",
        value_name = "COUNT"
    )]
    max_count: Option<usize>,
    /// List only checkpoints before this one: the next page
    #[arg(long, value_name = "ID", conflicts_with = "path")]
    before: Option<String>,
    /// Draw a graph of the checkpoints and their parents
    #[arg(long, conflicts_with_all = ["path", "deleted"])]
    graph: bool,
    /// List deleted checkpoints, which `undo` can bring back until they are freed
    #[arg(long, conflicts_with = "path")]
    deleted: bool,
    /// List the versions of this file, or the checkpoints with changes below this directory
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
    /// Show the changes of each checkpoint as a patch; with PATH only those of PATH
    #[arg(short, long, conflicts_with_all = ["graph", "deleted", "json"])]
    patch: bool,
    /// One line per checkpoint (the default)
    #[arg(long)]
    oneline: bool,
    #[command(flatten)]
    filters: find::Filters,
    /// With changes of this path, or of something below it; relative to the working directory
    #[arg(long, value_name = "PATH")]
    changed: Option<PathBuf>,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    context.out.page();
    if args.filters != find::Filters::default() || args.changed.is_some() {
        let other = args.before.is_some() || args.graph || args.deleted || args.patch;
        if other || args.path.is_some() {
            return Err(hinted(
                Code::Usage,
                "--before, --graph, --deleted, --patch and PATH cannot be combined with filters",
                "leave them out, or leave out the filters (--author, --since, --tag, --changed, ...)",
            )
            .into());
        }
        let found = find::Search {
            filters: args.filters,
            max_count: args.max_count,
            path: args.changed,
        };
        return find::run(found, context);
    }
    if args.patch {
        return patches(&args, context);
    }
    if let Some(path) = &args.path {
        return versions(path, args.max_count.unwrap_or(usize::MAX), context);
    }
    let mut source = executor::history(context.dir())?;
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
    if printed == 0 && !args.deleted && before.is_none() && args.max_count != Some(0) {
        context
            .out
            .talk("no checkpoint yet; make one: ckptfs checkpoint");
    }
    Ok(())
}

/// Requests and prints checkpoints by page, so that the first appear at once. Returns their number.
fn print_by_page(
    source: &mut VerbExecutor,
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

/// Prints each checkpoint, and its changes since its parent.
///
/// # Errors
/// `incomplete`, at the end, if part of a patch cannot be read.
fn patches(args: &Args, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    let path = args.path.as_ref();
    let path = path.map(|path| in_tree(&served.root, &served.cwd, path));
    let paths: Vec<TreePath> = path.transpose()?.into_iter().collect();
    let asked = |change: &Change| paths.is_empty() || changes::is_below(change, &paths);
    let before = args.before.as_ref();
    let before = before.map(|before| past::state(&mut served, before));
    let mut query = Query {
        before: before.transpose()?.flatten().map(|before| before.id),
        path: paths.first().cloned(),
        counted: true,
        ..Query::default()
    };
    let (mut printer, mut incomplete) = (Printer::default(), None);
    let mut left = args.max_count.unwrap_or(usize::MAX);
    while left > 0 {
        let count = PAGE.min(left);
        query.limit = Some(count);
        let page = served.client.ask(query.clone())?;
        for checkpoint in &page {
            printer.print(std::slice::from_ref(checkpoint), &mut context.out)?;
            let Some(parent) = checkpoint.parent else {
                continue;
            };
            let from = past::state(&mut served, &parent.to_string())?;
            let states = (&from, &Some(checkpoint.clone()));
            match diff::print_patch(&mut served, states, asked, Style::default(), context) {
                Err(Failure::Verb(why)) if why.code == Code::Incomplete => {
                    incomplete = Some(Failure::Verb(why));
                }
                told => told?,
            }
        }
        context.out.flush()?;
        query.before = page.last().map(|oldest| oldest.id);
        left = if page.len() < count { 0 } else { left - count };
    }
    incomplete.map_or(Ok(()), Err)
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
