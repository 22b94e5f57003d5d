//! `ckptfs status`.

use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use serde::Serialize;

use super::mount_users::{self, MountUser, MountUsers, VisibleTree};
use super::{detached, nested, size, stats};
use ckptfs_api::display::count;
use ckptfs_api::{
    BranchInfo, CompareByProcess, DaemonInfo, DuOptions, GetStats, GetStatus, ListBranches,
    MeasuredInfo, OriginInfo, Stats, Status, TreePath, VerbResult,
};
use ckptfs_core::engine::metrics;
use ckptfs_ui::changes;
use ckptfs_ui::changes_by_process::{self, By};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::Outcome;
use ckptfs_ui::locate::ServedTree;
use ckptfs_ui::tree_path::in_tree;
use ckptfs_ui::{locate, mounts, time};

/// Limit of the named branches.
const BRANCHES_SHOWN_MAX: usize = 10;
/// Age up to which a measured size of the history is reused for the metrics.
const MEASURED_S: i64 = 3600;

/// Show the mount and the differences from the newest checkpoint
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these paths, and paths below them; relative to the working directory
    #[arg(value_name = "PATHS", conflicts_with_all = ["by", "metrics"])]
    paths: Vec<PathBuf>,
    /// Group the changes by their origin
    #[arg(long, value_enum, value_name = "WHAT")]
    by: Option<By>,
    /// List every change, and statistics of the daemon: requests by kind, memory, open files
    #[arg(short, long, conflicts_with = "by")]
    verbose: bool,
    /// Print the daemon's metrics in the text format of Prometheus
    #[arg(long, conflicts_with_all = ["by", "json"])]
    metrics: bool,
}

/// Output of `--json`.
#[derive(Serialize)]
struct StatusReport<'a> {
    #[serde(flatten)]
    status: &'a Status,
    /// Processes that use the directory below the mount.
    below: &'a [MountUser],
    /// Of a detached mount: the processes that the daemon still serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<&'a [MountUser]>,
    /// Mountpoints in the tree, relative to its root; their content is in no checkpoint.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mounted: Vec<TreePath>,
    /// Branches of the tree.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    branches: &'a [BranchInfo],
    #[serde(skip_serializing_if = "Option::is_none")]
    stats: Option<Stats>,
}

/// Returns the statistics of the daemon, with the size of the history, which is measured again if
/// outdated.
fn measured_stats(served: &mut ServedTree) -> VerbResult<Stats> {
    let stats = served.client.ask(GetStats)?;
    let is_fresh = |measured: &MeasuredInfo| {
        let at: Option<jiff::Timestamp> = measured.at.parse().ok();
        at.is_some_and(|at| at.duration_until(jiff::Timestamp::now()).as_secs() < MEASURED_S)
    };
    if stats.upkeep.history.as_ref().is_some_and(is_fresh) {
        return Ok(stats);
    }
    let mut asked = DuOptions::default();
    loop {
        let part = served.client.ask(asked.clone())?;
        if part.finished {
            return served.client.ask(GetStats);
        }
        asked.run = Some(part.run);
    }
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    if args.by == Some(By::Process) {
        let all = served.client.ask(CompareByProcess {
            from: None,
            to: None,
        })?;
        return changes_by_process::tell(&mut context.out, &all);
    }
    let paths: Vec<TreePath> = args
        .paths
        .iter()
        .map(|path| in_tree(&served.root, &served.cwd, path))
        .collect::<VerbResult<_>>()?;
    let mut status = served.client.ask(GetStatus)?;
    if !paths.is_empty() {
        status
            .dirty
            .retain(|change| changes::is_below(change, &paths));
    }
    if args.metrics {
        let tree = metrics::Tree {
            volume: None,
            status,
            stats: measured_stats(&mut served)?,
        };
        return Ok(context.out.bytes(metrics::text(&[tree]).as_bytes())?);
    }
    let branches = served.client.ask(ListBranches {
        unmerged: true,
        ..ListBranches::default()
    })?;
    let stats = args
        .verbose
        .then(|| served.client.ask(GetStats))
        .transpose()?;
    let waits_for = detached::served(&status);
    let below = match waits_for {
        Some(_) => Vec::new(),
        None => below(&status),
    };
    if context.out.json {
        return Ok(context.out.json(&StatusReport {
            status: &status,
            below: &below,
            waits_for: waits_for.as_ref().map(|found| found.holders.as_slice()),
            mounted: inside(&status).into_iter().map(tree_path).collect(),
            branches: &branches,
            stats,
        })?);
    }
    if args.verbose {
        context.out.page();
    }
    let lines = match paths.is_empty() {
        true => print(&status, &branches, waits_for.as_ref(), context)?,
        false => 0,
    };
    print_changes(&status, !paths.is_empty(), (args.verbose, lines), context)?;
    if let Some(stats) = &stats {
        stats::print(stats, &mut context.out)?;
    }
    mount_users::warn(&below, &context.out);
    if let Some(found) = &waits_for {
        let (message, hint) = detached::explained(&status, found);
        context.out.warn(&format!("{message}; {hint}"));
    }
    Ok(())
}

/// Returns the processes that use the directory below the mount. A mount over the directory itself
/// is in the way of all processes that did not use the directory before.
fn below(status: &Status) -> Vec<MountUser> {
    let Some(tree) = VisibleTree::below(&status.backing) else {
        return Vec::new();
    };
    if !status.had_below && status.mount == status.backing && !tree.is_elsewhere() {
        return Vec::new();
    }
    let daemon: Vec<u32> = [Some(status.daemon.pid), status.daemon.holder]
        .into_iter()
        .flatten()
        .collect();
    tree.users(&daemon, mount_users::QUICK).holders
}

fn tree_path(path: PathBuf) -> TreePath {
    TreePath(path.into_os_string().into_vec())
}

/// Returns the mountpoints in the tree, relative to its root.
fn inside(status: &Status) -> Vec<PathBuf> {
    let table = mounts::all().unwrap_or_default();
    let mount = mounts::top(&table, &status.mount).filter(|mount| mount.is_ours());
    mount.map_or_else(Vec::new, |mount| nested::in_mount(&table, mount))
}

/// Prints the properties of the mount, and returns the number of lines.
fn print(
    status: &Status,
    branches: &[BranchInfo],
    waits_for: Option<&MountUsers>,
    context: &mut Context,
) -> Outcome<usize> {
    let out = &mut context.out;
    let latest = match status.latest {
        Some(latest) => format!(
            "{}, latest {latest}",
            count(status.checkpoints, "checkpoint")
        ),
        None => "no checkpoint yet".into(),
    };
    let daemon = &status.daemon;
    let how = match waits_for {
        Some(_) => " (unmounted lazily)",
        None => "",
    };
    let mut lines = vec![
        ("mount", path(&status.mount) + how),
        (
            "backing",
            format!(
                "{} ({}, {})",
                path(&status.backing),
                status.filesystem,
                status.capture
            ),
        ),
        ("io", format!("{}, writes {}", status.io, status.writes)),
        (
            "daemon",
            format!(
                "pid {}, version {}, since {}{}",
                daemon.pid,
                daemon.version,
                time::local(&daemon.started),
                takeovers(daemon)
            ),
        ),
        ("history", latest),
    ];
    let inside = inside(status);
    if !inside.is_empty() {
        lines.push((
            "mounted",
            format!("{} (not in checkpoints)", nested::named(&inside)),
        ));
    }
    if let Some(origin) = &status.origin {
        lines.push(("remote", remote(origin)));
    }
    if !branches.is_empty() {
        lines.push(("branches", named(branches)));
    }
    if let Some(unmerged) = unmerged(branches) {
        lines.push(("unmerged", unmerged));
    }
    if status.shared.files > 0 {
        lines.push(("same", same(status)));
    }
    if let Some(absence) = &status.absence {
        lines.push(("absence", changes::absence(absence)));
    }
    for (label, value) in &lines {
        out.labelled(label, value)?;
    }
    Ok(lines.len())
}

fn same(status: &Status) -> String {
    let (files, bytes) = (status.shared.files, size::human(status.shared.bytes));
    let files = count(files, "file");
    format!("{files}, {bytes}, shared with identical files since the mount")
}

/// Prints the changes since the newest checkpoint, or those of the given paths.
fn print_changes(
    status: &Status,
    of_paths: bool,
    (all, lines): (bool, usize),
    context: &mut Context,
) -> Outcome {
    let out = &mut context.out;
    let there = if of_paths { " there" } else { "" };
    match status.base {
        Some(latest) if status.dirty.is_empty() => {
            out.line(&format!("nothing changed{there} since checkpoint {latest}"))?
        }
        Some(latest) => out.line(&format!(
            "{}{there} since checkpoint {latest}:",
            changes::count(status.dirty.len() as u64)
        ))?,
        None => out.line("make the first checkpoint: ckptfs checkpoint")?,
    }
    changes::print_fitting(out, &status.dirty, lines + 1, (!all).then_some("-v"))?;
    for warning in &status.warnings {
        out.warn(warning);
    }
    Ok(())
}

/// Formats the branches that have unmerged changes.
fn unmerged(branches: &[BranchInfo]) -> Option<String> {
    let left = |branch: &BranchInfo| {
        let paths = branch.unmerged.filter(|paths| *paths > 0)?;
        Some(format!("{} ({})", branch.name, changes::count(paths)))
    };
    let named: Vec<String> = branches.iter().filter_map(left).collect();
    let shown: Vec<&str> = named
        .iter()
        .take(BRANCHES_SHOWN_MAX)
        .map(String::as_str)
        .collect();
    let more = named.len() - shown.len();
    let rest = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    (!named.is_empty()).then(|| format!("{}{rest} (ckptfs merge NAME)", shown.join(", ")))
}

/// Formats the names of the branches; `branch list` counts their changes.
fn named(branches: &[BranchInfo]) -> String {
    let names: Vec<&str> = branches
        .iter()
        .take(BRANCHES_SHOWN_MAX)
        .map(|branch| branch.name.as_str())
        .collect();
    let more = branches.len() - names.len();
    let rest = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    format!("{}{rest} (ckptfs branch list)", names.join(", "))
}

/// Formats how much of a remote checkpoint is local.
pub fn remote(origin: &OriginInfo) -> String {
    let OriginInfo {
        remote,
        checkpoint,
        files,
        bytes,
        files_here,
        bytes_here,
        ..
    } = origin;
    let here = match files_here == files {
        true => "all of it is here".to_owned(),
        false => format!(
            "{files_here} of {} here ({} of {})",
            count(*files, "file"),
            size::human(*bytes_here),
            size::human(*bytes)
        ),
    };
    format!("checkpoint {checkpoint} of {remote}, {here}")
}

fn takeovers(daemon: &DaemonInfo) -> String {
    match &daemon.taken_over {
        Some(last) => format!(
            "; restarted {} after a crash, last {}",
            count(daemon.takeovers, "time"),
            time::local(last)
        ),
        None => String::new(),
    }
}

fn path(path: &std::path::Path) -> String {
    path.display().to_string()
}
