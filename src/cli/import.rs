//! `ckptfs import`.

mod item_import;
mod items;
mod shared_projects;
mod target;

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;

use self::item_import::{ImportOptions, ImportedItem};
use self::items::{Item, SourceKind};
use self::target::{SETTLES, Target, TargetState, is_race};
use super::export_common;
use super::size::human;
use ckptfs_api::display::{count as plural, word};
use ckptfs_api::{Code, Query, VerbResult, host_path};
use ckptfs_sys as sys;
use ckptfs_transfer::import::contents::ContentCounts;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{Failure, Outcome, hinted};
use ckptfs_ui::tree_path::beyond_links;
use ckptfs_ui::{locate, time};

/// Default limit of threads: more would contend in the filesystem.
const THREADS_MAX: usize = 4;
/// Limit of the skipped paths that are printed one by one.
const LEFT_TOLD_MAX: usize = 20;

/// Import existing directories, and series of snapshots, into a tree with a history
///
/// Each DIR becomes a checkpoint, in the given order. Each snapshot of a series becomes one, the
/// oldest first: snapper's (`.snapshots/N/snapshot`), or sibling directories as made by rsync. The
/// sources are only read. If the tree already exists, only the differences are applied, and it
/// becomes equal to the last DIR.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A directory to import, or a directory of snapshots
    #[arg(value_name = "DIR", required = true)]
    dirs: Vec<PathBuf>,
    /// The tree: new or existing, mounted or not; by default DIR with `-history` appended
    #[arg(long, value_name = "DIR2")]
    into: Option<PathBuf>,
    /// Tag the (last) checkpoint
    #[arg(long, value_name = "NAME")]
    tag: Option<String>,
    /// Hash every imported file, and share the data of files with the same content
    #[arg(long)]
    hash: bool,
    /// With --hash: also share with the files of this tree, on the same filesystem; it is hashed
    /// now unless it was imported with --hash
    #[arg(long, value_name = "TREE", requires = "hash", num_args = 1..)]
    with: Vec<PathBuf>,
    /// Number of threads; by default the number of cores, up to 4
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: Option<u8>,
    /// Treat each DIR as a series of snapshots, whatever it looks like
    #[arg(long, conflicts_with = "tree")]
    series: bool,
    /// Treat each DIR as one tree, whatever it looks like
    #[arg(long)]
    tree: bool,
    /// Only show what would be done
    #[arg(short = 'n', long)]
    dry_run: bool,
}

#[derive(Serialize)]
struct Answer {
    #[serde(with = "host_path")]
    tree: PathBuf,
    checkpoints: Vec<ImportedItem>,
    /// Snapshots of a series that the tree already contains.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    known: Vec<String>,
    dry_run: bool,
    duration_us: u64,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let started = Instant::now();
    let cwd = locate::start(context.dir())?;
    let how = if args.series {
        SourceKind::Series
    } else if args.tree {
        SourceKind::Trees
    } else {
        SourceKind::Found
    };
    let mut items = items::find(&cwd, &args.dirs, how)?;
    let into = into(&args, &cwd)?;
    apart(&items, &into)?;
    sys::umask0();
    let threads = args.threads.map_or_else(threads, usize::from);
    let mut target = Target::open(&into, args.dry_run)?;
    let known = match &mut target {
        Some(target) if !args.dry_run => without_known(&mut items, target)?,
        _ => Vec::new(),
    };
    let each = items.len() > 1 || items.iter().any(|item| item.snapshot.is_some());
    let with = if args.dry_run {
        Vec::new()
    } else {
        shared_projects::read(&cwd, &args.with, threads, context)?
    };
    let how = ImportOptions {
        threads,
        each,
        tag: args.tag,
        hash: args.hash,
        with,
    };
    let checkpoints = loop {
        let made = match target {
            target if args.dry_run => look(&items, target.as_ref(), &how).map_err(Failure::from),
            Some(target) => import(&items, target, &how, context),
            None => Ok(Vec::new()),
        };
        match made {
            Err(Failure::Verb(error)) if is_race(&error) && started.elapsed() < SETTLES => {
                target = Target::open(&into, args.dry_run)?;
            }
            made => break made?,
        }
    };
    let duration_us = ckptfs_api::microseconds(started.elapsed());
    tell(
        Answer {
            tree: into,
            checkpoints,
            known,
            dry_run: args.dry_run,
            duration_us,
        },
        &items,
        context,
    )
}

/// Returns the default number of threads that read and write files.
fn threads() -> usize {
    std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(THREADS_MAX)
}

/// Returns the result of a dry run. Snapshots are only listed.
fn look(
    items: &[Item],
    target: Option<&Target>,
    how: &ImportOptions,
) -> VerbResult<Vec<ImportedItem>> {
    let before = std::iter::once(None).chain(items.iter().map(Some));
    items
        .iter()
        .zip(before)
        .map(|(item, before)| match &item.snapshot {
            Some(_) => Ok(ImportedItem::new(item)),
            None => item_import::look(item, before, target, how),
        })
        .collect()
}

/// Imports one item after the other, and always closes the tree.
fn import(
    items: &[Item],
    mut target: Target,
    how: &ImportOptions,
    context: &Context,
) -> Outcome<Vec<ImportedItem>> {
    let last = items.len().saturating_sub(1);
    let made: Outcome<Vec<ImportedItem>> = items
        .iter()
        .enumerate()
        .map(|(number, item)| item_import::import(item, &mut target, how, number == last, context))
        .collect();
    let closed = target.close();
    let made = made?;
    closed?;
    Ok(made)
}

/// Returns the path of the tree.
fn into(args: &Args, cwd: &Path) -> VerbResult<PathBuf> {
    match (&args.into, args.dirs.as_slice()) {
        (Some(into), _) => Ok(export_common::destination(cwd, into)),
        (None, [dir]) => {
            let dir = export_common::destination(cwd, dir);
            let mut name = dir.file_name().unwrap_or_default().to_owned();
            name.push("-history");
            Ok(dir.with_file_name(name))
        }
        (None, _) => Err(hinted(
            Code::Usage,
            "there are several directories to import, and no destination",
            "name the tree: --into DIR2",
        )),
    }
}

/// Rejects the import of a tree into itself.
fn apart(items: &[Item], into: &Path) -> VerbResult<()> {
    let real = into
        .canonicalize()
        .ok()
        .or_else(|| beyond_links(into))
        .unwrap_or_else(|| into.to_owned());
    let inside = |item: &&Item| real.starts_with(&item.path) || item.path.starts_with(&real);
    match items.iter().find(inside) {
        Some(item) => Err(hinted(
            Code::BadDestination,
            format!(
                "{} and {} must not be inside each other",
                item.path.display(),
                into.display()
            ),
            "name a tree outside of it: --into DIR2; to keep the history of a directory where it is: ckptfs mount",
        )),
        None => Ok(()),
    }
}

/// Removes the snapshots of a series that the tree already contains, and returns their names.
fn without_known(items: &mut Vec<Item>, target: &mut Target) -> Outcome<Vec<String>> {
    let mut known = Vec::new();
    if target.state != TargetState::Tree || items.iter().all(|item| item.snapshot.is_none()) {
        return Ok(known);
    }
    let client = target.client()?;
    let mut rest = Vec::new();
    for item in items.drain(..) {
        let label = ("Snapshot".to_owned(), item.name.clone());
        let query = Query {
            labels: vec![label],
            limit: Some(1),
            ..Query::default()
        };
        if item.snapshot.is_some() && !client.ask(query)?.is_empty() {
            known.push(item.name);
        } else {
            rest.push(item);
        }
    }
    *items = rest;
    Ok(known)
}

fn tell(answer: Answer, items: &[Item], context: &mut Context) -> Outcome {
    let out = &mut context.out;
    let missed: usize = answer.checkpoints.iter().map(ImportedItem::misses).sum();
    if out.json {
        out.json(&answer)?;
    } else {
        for made in &answer.checkpoints {
            let line = line(made, answer.dry_run, &out.text(&made.snapshot));
            out.line(&line)?;
        }
        out.flush()?;
        let at = answer.tree.display().to_string();
        for (made, item) in answer.checkpoints.iter().zip(items) {
            // The lines of a series would be nearly equal.
            if item.snapshot.is_none() {
                say(made, answer.dry_run, context);
            }
            warn(made, context);
        }
        let out = &context.out;
        let verb = if answer.dry_run {
            "would be imported into"
        } else {
            "imported into"
        };
        if !answer.known.is_empty() {
            out.talk(&format!(
                "{} already in the tree",
                plural(answer.known.len(), "snapshot")
            ));
        }
        out.talk(&format!(
            "{} {verb} {at} in {}",
            counted(items),
            time::duration(answer.duration_us)
        ));
        if !answer.dry_run
            && matches!(
                locate::locate(answer.tree.clone()),
                Ok(locate::TreeLocation::Store { .. })
            )
        {
            out.talk(&format!("mount it: ckptfs mount {}", word(&at)));
        }
    }
    if missed > 0 {
        let hint =
            "everything else was imported; run the same command again once the cause is fixed";
        return Err(Failure::Verb(hinted(
            Code::Incomplete,
            format!("{} could not be imported", plural(missed, "path")),
            hint,
        )));
    }
    Ok(())
}

/// Formats the number of trees and snapshots.
fn counted(items: &[Item]) -> String {
    let series = items.iter().filter(|item| item.snapshot.is_some()).count();
    match (series, items.len() - series) {
        (0, trees) => plural(trees, "tree"),
        (series, 0) => plural(series, "snapshot"),
        (series, trees) => format!(
            "{} and {}",
            plural(trees, "tree"),
            plural(series, "snapshot")
        ),
    }
}

fn line(made: &ImportedItem, dry_run: bool, name: &str) -> String {
    let date = made
        .date
        .as_deref()
        .map_or(String::new(), |date| format!("  {date}"));
    match made.checkpoint {
        Some(id) if made.unchanged => format!("{id}  {name}{date}: nothing has changed"),
        Some(id) => format!(
            "{id}  {name}{date}: {} made, {} removed",
            made.made, made.removed
        ),
        None if dry_run && made.unchanged => format!("{name}{date}: nothing has changed"),
        None if dry_run && made.count.dirs > 0 => format!(
            "{name}{date}: {} to make, {} to remove",
            made.made, made.removed
        ),
        None => format!("{name}{date}"),
    }
}

/// Formats the result of the hashing.
fn hashed(found: &ContentCounts, bytes: u64) -> String {
    let same = found.duplicate_bytes + found.known_bytes + found.unshared_bytes;
    let percent = same
        .saturating_mul(1000)
        .checked_div(bytes.max(1))
        .unwrap_or(0);
    let unshared = match found.unshared_files {
        0 => String::new(),
        files => format!(
            "; {} with known content copied, because they cannot be shared ({})",
            plural(files, "file"),
            human(found.unshared_bytes)
        ),
    };
    format!(
        "{} hashed: {} with new content ({}), {} identical to others here ({}), {} identical to known ones ({}); {}.{} % of the bytes were already there{unshared}",
        plural(found.hashed_files, "file"),
        found.new_contents,
        human(found.new_bytes),
        found.duplicate_files,
        human(found.duplicate_bytes),
        found.known_files,
        human(found.known_bytes),
        percent / 10,
        percent % 10,
    )
}

/// Prints the counts of an import, its hashed contents, and its guard.
fn say(made: &ImportedItem, dry_run: bool, context: &Context) {
    let out = &context.out;
    let count = made.count;
    let mut said = format!(
        "{}, {} {}, {}, {}",
        plural(count.files, "file"),
        count.dirs,
        if count.dirs == 1 {
            "directory"
        } else {
            "directories"
        },
        plural(count.others, "other"),
        human(count.bytes)
    );
    if !dry_run && !made.unchanged {
        let per_second = count.files.saturating_mul(1_000_000) / made.duration_us.max(1);
        said.push_str(&format!(
            "; {} shared, {} copied",
            human(made.shared_bytes),
            human(made.copied_bytes)
        ));
        said.push_str(
            &made
                .copied_because
                .as_ref()
                .map_or(String::new(), |why| format!(" ({why})")),
        );
        said.push_str(&format!("; {per_second} files/s"));
    }
    out.talk(&said);
    if let Some(found) = &made.contents {
        out.talk(&hashed(found, made.count.bytes));
    }
    if let Some(guard) = made.guard {
        out.talk(&format!("the previous state is checkpoint {guard}"));
    }
}

/// Warns about lost attributes and skipped paths.
fn warn(made: &ImportedItem, context: &Context) {
    let out = &context.out;
    export_common::warn_lost(out, (made.owners_lost, made.xattrs_lost));
    for left in made.left_out.iter().take(LEFT_TOLD_MAX) {
        let path = if left.path.0.is_empty() {
            ".".into()
        } else {
            String::from_utf8_lossy(&left.path.0)
        };
        out.warn(&format!("left out: {path}: {}", left.why.told()));
    }
    if made.left_out.len() > LEFT_TOLD_MAX {
        out.warn(&format!("and {} more", made.left_out.len() - LEFT_TOLD_MAX));
    }
}
