//! `ckptfs log`.

use std::path::{Path, PathBuf};

use super::error::Outcome;
use super::output::{Out, Role};
use super::tree_path::in_tree;
use super::{Context, changes, locate, time};
use crate::engine::api::{CheckpointInfo, Query, VersionInfo, VersionKind};
use crate::store::record::Reason;

/// List the checkpoints, or every version of one path, newest first
#[derive(Debug, clap::Args)]
pub struct Args {
    /// At most so many
    #[arg(short = 'n', long = "max-count", value_name = "COUNT")]
    max_count: Option<usize>,
    /// List the versions of this file, or the checkpoints that changed something below this directory
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    if let Some(path) = &args.path {
        return versions(path, args.max_count.unwrap_or(usize::MAX), context);
    }
    let mut source = locate::history(context.dir())?;
    let checkpoints = source.find(Query { limit: args.max_count, ..Query::default() })?;
    let out = &mut context.out;
    if out.json {
        return Ok(out.json(&checkpoints)?);
    }
    if checkpoints.is_empty() {
        out.talk("no checkpoint yet; make one: ckptfs checkpoint");
    }
    print_checkpoints(&checkpoints, out)
}

/// Prints one line for each checkpoint.
pub fn print_checkpoints(checkpoints: &[CheckpointInfo], out: &mut Out) -> Outcome {
    let id_width = checkpoints.iter().map(|checkpoint| checkpoint.id.to_string().len()).max().unwrap_or(0);
    let count_width = checkpoints.iter().map(|checkpoint| changes::count(checkpoint.dirty).len()).max().unwrap_or(0);
    for checkpoint in checkpoints {
        let line = line(out, checkpoint, id_width, count_width);
        out.line(&line)?;
    }
    Ok(())
}

fn versions(path: &Path, max: usize, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    let path = in_tree(&served.root, &served.cwd, path)?;
    let mut versions = served.client.versions(path)?;
    versions.truncate(max);
    let out = &mut context.out;
    if out.json {
        return Ok(out.json(&versions)?);
    }
    let id = |version: &VersionInfo| version.checkpoint.as_ref().map_or("live".to_owned(), |checkpoint| checkpoint.id.to_string());
    let size = |version: &VersionInfo| version.size.map_or(String::new(), |size| format!("{size} B"));
    let id_width = versions.iter().map(|version| id(version).len()).max().unwrap_or(0);
    let size_width = versions.iter().map(|version| size(version).len()).max().unwrap_or(0);
    for version in &versions {
        let (letter, role) = letter(version.change);
        let made = version.checkpoint.as_ref().map_or(" ".repeat("2026-11-21 09:00:00".len()), |checkpoint| time::local(&checkpoint.created));
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

fn line(out: &Out, checkpoint: &CheckpointInfo, id_width: usize, count_width: usize) -> String {
    let id = out.paint(Role::Id, &format!("{:>id_width$}", checkpoint.id.to_string()));
    let created = time::local(&checkpoint.created);
    format!("{id}  {created}  {:>count_width$}{}", changes::count(checkpoint.dirty), remarks(out, checkpoint))
}

/// Tags, what it guards, and the note's first line.
fn remarks(out: &Out, checkpoint: &CheckpointInfo) -> String {
    let mut line = String::new();
    if !checkpoint.tags.is_empty() {
        let tags = checkpoint.tags.join(", ");
        line.push_str(&format!("  {}", out.paint(Role::Tag, &format!("[{}]", out.text(&tags)))));
    }
    if let Reason::Guard { restored } = checkpoint.reason {
        line.push_str(&out.paint(Role::Faint, &format!("  (before the restore of {restored})")));
    }
    if let Reason::Auto { trigger } = checkpoint.reason {
        line.push_str(&out.paint(Role::Faint, &format!("  (auto:{})", trigger.name())));
    }
    if !checkpoint.atomic {
        line.push_str(&out.paint(Role::Bad, "  (not atomic)"));
    }
    if let Some(first) = checkpoint.note.lines().next() {
        line.push_str(&format!("  {}", out.text(first)));
    }
    line
}
