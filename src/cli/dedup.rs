//! `ckptfs gc --dedup`.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::size;
use ckptfs_api::{
    Client, Code, Content, DedupOptions, DedupReport, DedupStage, ExcludeReason, ExcludedFile,
    STORE_NAME, VerbResult, host_path,
};
use ckptfs_core::engine::dedup::{Count, drop_kept};
use ckptfs_sys::{self as sys, Errno, SysResult};
use ckptfs_transfer::dedup::{self, DedupResult, DedupSource, UnservedDir};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{ErrorContext, Outcome, hinted};
use ckptfs_ui::locate;
use ckptfs_ui::locate::{ServedTree, TreeLocation};
use ckptfs_ui::output::{Out, Role};
use ckptfs_ui::progress::Bar;

/// Make versions with the same content share their space; no checkpoint changes
///
/// The kernel compares before it shares. Where files cannot share extents, versions become hard
/// links. It can be interrupted at any time; the next run continues.
#[derive(Debug)]
pub struct Args {
    pub dry_run: bool,
    pub sharing: Sharing,
    /// Lists every file that was skipped.
    pub verbose: bool,
}

/// Options of the sharing.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "sharing")]
pub struct Sharing {
    /// Also share with the live files
    #[arg(long)]
    live: bool,
    /// Also share with the files in DIR: another project, mounted or not, or any directory on the
    /// same filesystem; may be repeated
    #[arg(long, value_name = "DIR")]
    with: Vec<PathBuf>,
    /// Number of threads to hash with
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Skip files smaller than this: "64K"
    #[arg(long, value_name = "BYTES", value_parser = size::parse, default_value = "0", hide_default_value = true)]
    min_size: u64,
}

/// Result of one project.
#[derive(Debug, Serialize)]
struct Project {
    /// Its directory.
    #[serde(with = "host_path")]
    project: PathBuf,
    /// Result within the project; only of a daemon.
    #[serde(flatten)]
    report: Option<DedupReport>,
    /// Sharing with the other projects.
    #[serde(skip_serializing_if = "Option::is_none")]
    across: Option<DedupResult>,
}

#[derive(Serialize)]
struct Answer<'a> {
    dry_run: bool,
    shared: Count,
    already: Count,
    freed_bytes: u64,
    projects: &'a [Project],
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let Sharing {
        live,
        ref with,
        threads,
        min_size,
    } = args.sharing;
    let (dry_run, keep) = (args.dry_run, !with.is_empty());
    let options = DedupOptions {
        dry_run,
        live,
        threads: usize::from(threads),
        keep,
        min_size,
        ..DedupOptions::default()
    };
    let first = locate::served(context.dir())?;
    let (mut served, mut plain) = (vec![first], Vec::new());
    for dir in with {
        add(dir, &options, &mut served, &mut plain)?;
    }
    let mut projects = Vec::new();
    let mut runs = Vec::new();
    for ServedTree { root, client, .. } in &mut served {
        let report = whole(client, options.clone(), &context.out)?;
        runs.push(report.run);
        projects.push(Project {
            project: root.clone(),
            report: Some(report),
            across: None,
        });
    }
    if keep {
        let clients = served
            .iter_mut()
            .zip(runs)
            .map(|(served, run)| DaemonContents {
                client: &mut served.client,
                run,
                options: options.clone(),
                contents: Vec::new(),
            });
        across(
            clients.collect(),
            plain,
            &mut projects,
            dry_run,
            &context.out,
        )?;
    }
    print(&projects, &args, context)
}

/// Adds a directory of `--with`.
fn add(
    dir: &Path,
    options: &DedupOptions,
    served: &mut Vec<ServedTree>,
    plain: &mut Vec<(PathBuf, UnservedDir)>,
) -> VerbResult<()> {
    let start = locate::start(Some(dir))?;
    let known = |root: &Path| {
        hinted(
            Code::SameProject,
            format!("{} is named twice", root.display()),
            "name each project once",
        )
    };
    let (root, live) = match locate::locate(start.clone())? {
        TreeLocation::Served(other) if served.iter().any(|served| served.root == other.root) => {
            return Err(known(&other.root));
        }
        TreeLocation::Served(other) => {
            served.push(other);
            return Ok(());
        }
        TreeLocation::Store { root, .. } => (root, options.live),
        TreeLocation::Nothing { .. } => (start, true),
        other @ (TreeLocation::Stale { .. } | TreeLocation::Foreign { .. }) => {
            return Err(locate::not_served(&other));
        }
    };
    if plain.iter().any(|(known, _)| *known == root) {
        return Err(known(&root));
    }
    let opened = sys::open_root(&root).on(root.display())?;
    plain.push((
        root,
        UnservedDir::new(opened, live, options.threads, options.min_size),
    ));
    Ok(())
}

/// The contents of a mounted project, by a run that its daemon keeps.
struct DaemonContents<'a> {
    client: &'a mut Client,
    run: u64,
    options: DedupOptions,
    contents: Vec<Content>,
}

impl DaemonContents<'_> {
    fn ask(&self) -> DedupOptions {
        DedupOptions {
            run: Some(self.run),
            ..self.options.clone()
        }
    }
}

impl DedupSource for DaemonContents<'_> {
    fn sizes(&mut self) -> VerbResult<Vec<u64>> {
        loop {
            let from = self.contents.last().map_or(0, |last| last.number + 1);
            let (mut part, _) = self.client.ask_with_files(DedupOptions {
                contents: Some(from),
                ..self.ask()
            })?;
            if part.contents.is_empty() {
                return Ok(self.contents.iter().map(|content| content.size).collect());
            }
            self.contents.append(&mut part.contents);
        }
    }

    fn contents(&mut self, sizes: &HashSet<u64>) -> VerbResult<Vec<Content>> {
        self.contents
            .retain(|content| sizes.contains(&content.size));
        Ok(std::mem::take(&mut self.contents))
    }

    fn open(&mut self, number: u64) -> SysResult<File> {
        let asked = self.client.ask_with_files(DedupOptions {
            files: vec![number],
            ..self.ask()
        });
        let file = asked
            .ok()
            .and_then(|(_, mut files)| files.pop())
            .ok_or(Errno::ENOENT)?;
        // A descriptor from a daemon is checked: anything except a regular file could block, or
        // have no end.
        if sys::stat_fd(&file)?.kind == sys::Kind::File {
            Ok(File::from(file))
        } else {
            Err(Errno::EINVAL)
        }
    }
}

fn across(
    mut asked: Vec<DaemonContents<'_>>,
    mut plain: Vec<(PathBuf, UnservedDir)>,
    projects: &mut Vec<Project>,
    dry_run: bool,
    out: &Out,
) -> VerbResult<()> {
    let alone: Vec<usize> = (asked.len()..asked.len() + plain.len()).collect();
    let bar = Bar::start(out, "sharing with others", false);
    let of_daemons = asked.iter_mut().map(|asked| asked as &mut dyn DedupSource);
    let holders = of_daemons
        .chain(
            plain
                .iter_mut()
                .map(|(_, plain)| plain as &mut dyn DedupSource),
        )
        .collect();
    let mut got = dedup::share(holders, &alone, dry_run, |done, total| bar.at(done, total))?;
    bar.stop();
    for DaemonContents {
        client,
        run,
        options,
        ..
    } in asked
    {
        // Ends the run. If that fails, later runs displace it.
        let _ = client.ask_with_files(DedupOptions {
            run: Some(run),
            keep: false,
            ..options
        });
    }
    for (root, mut plain) in plain {
        if !dry_run && let Err(cause) = forget_kept(&root) {
            out.warn(&format!(
                "what the last unmount of {} has kept may have what was to come free: {cause}",
                root.display()
            ));
        }
        projects.push(Project {
            project: root,
            report: None,
            across: None,
        });
        if let Some(got) = got.get_mut(projects.len() - 1) {
            plain
                .left_out
                .iter()
                .for_each(|left| *got.left.entry(left.why).or_insert(0) += 1);
            got.left_out.append(&mut plain.left_out);
        }
    }
    for (project, got) in projects.iter_mut().zip(got) {
        project.across = Some(got);
    }
    Ok(())
}

/// Discards the content kept at an unmount: it shares the extents that the files had.
fn forget_kept(root: &Path) -> SysResult<()> {
    match sys::open_root(root).and_then(|root| sys::open_dir_at(root, STORE_NAME.as_bytes())) {
        Err(Errno::ENOENT) => Ok(()),
        store => drop_kept(store?),
    }
}

/// Repeats the request until the run is finished, and joins the lists of skipped files.
fn whole(client: &mut Client, mut options: DedupOptions, out: &Out) -> VerbResult<DedupReport> {
    let mut left_out: Vec<ExcludedFile> = Vec::new();
    let mut stage = DedupStage::Listing;
    let mut bar = Bar::start(out, "looking for files", false);
    loop {
        let (mut report, _) = client.ask_with_files(options.clone())?;
        if report.stage != stage {
            stage = report.stage;
            bar.stop();
            bar = match stage {
                DedupStage::Listing => Bar::start(out, "looking for files", false),
                DedupStage::Hashing => Bar::start(out, "hashing", true),
                DedupStage::Sharing => Bar::start(out, "sharing", false),
            };
        }
        bar.at(report.done, report.total);
        left_out.append(&mut report.left_out);
        if report.finished {
            bar.stop();
            return Ok(DedupReport { left_out, ..report });
        }
        options.run = Some(report.run);
    }
}

fn why(why: ExcludeReason) -> &'static str {
    match why {
        ExcludeReason::TooSmall => "smaller than --min-size",
        ExcludeReason::Differs => "changed meanwhile, or does not match its hash",
        ExcludeReason::Gone => "removed meanwhile",
        ExcludeReason::NotPermitted => "not permitted",
        ExcludeReason::Unreadable => "cannot be read",
        ExcludeReason::OtherFilesystem => "on another filesystem",
        ExcludeReason::NoReflink => "not supported by the filesystem",
        ExcludeReason::InUse => "open for writing",
        ExcludeReason::TooManyLinks => {
            "the identical file has as many hard links as the filesystem allows"
        }
    }
}

fn files(count: Count) -> String {
    format!(
        "{} file{}, {}",
        count.files,
        if count.files == 1 { "" } else { "s" },
        size::human(count.bytes)
    )
}

fn print(projects: &[Project], args: &Args, context: &mut Context) -> Outcome {
    let out = &mut context.out;
    let (mut shared, mut already, mut freed_bytes) = (Count::default(), Count::default(), 0_u64);
    for Project { report, across, .. } in projects {
        if let Some(report) = report {
            shared.join(report.shared);
            already.join(report.already);
            freed_bytes = freed_bytes.saturating_add(report.freed_bytes);
        }
        if let Some(across) = across {
            shared.join(across.shared);
            freed_bytes = freed_bytes.saturating_add(across.freed_bytes);
        }
    }
    if out.json {
        return Ok(out.json(&Answer {
            dry_run: args.dry_run,
            shared,
            already,
            freed_bytes,
            projects,
        })?);
    }
    for Project {
        project,
        report,
        across,
    } in projects
    {
        if projects.len() > 1 {
            let root = project.display().to_string();
            out.line(&out.paint(Role::Id, &out.text(&root)))?;
        }
        if let Some(report) = report {
            print_one(report, args, out)?;
        }
        if let Some(across) = across {
            print_across(across, args, out)?;
        }
    }
    Ok(())
}

/// Returns the labels of the shared and of the freed space.
fn done(args: &Args) -> (&'static str, &'static str) {
    if args.dry_run {
        ("would be shared", "would be freed")
    } else {
        ("shared", "freed")
    }
}

fn print_one(report: &DedupReport, args: &Args, out: &mut Out) -> Outcome {
    let (done, free) = done(args);
    let live = if args.sharing.live {
        format!(" and {} live", files(report.live))
    } else {
        String::new()
    };
    out.line(&format!(
        "looked at {} captured{live}; hashed {}",
        files(report.captured),
        files(report.hashed)
    ))?;
    out.line(&format!(
        "{} already shared; {} with unique content",
        files(report.already),
        files(report.unique)
    ))?;
    let links = if report.linked.files > 0 {
        format!(" ({} as hard links)", report.linked.files)
    } else {
        String::new()
    };
    let line = format!(
        "{done}: {}{links}; {} {free}",
        files(report.shared),
        size::human(report.freed_bytes)
    );
    out.line(&out.paint(Role::Good, &line))?;
    print_left(&report.left, &report.left_out, args, out)
}

fn print_across(got: &DedupResult, args: &Args, out: &mut Out) -> Outcome {
    let (done, free) = done(args);
    let line = format!(
        "{done} with the other projects: {} of {} in common; {} {free}",
        files(got.shared),
        files(got.common),
        size::human(got.freed_bytes)
    );
    out.line(&out.paint(Role::Good, &line))?;
    print_left(&got.left, &got.left_out, args, out)
}

fn print_left(
    counts: &BTreeMap<ExcludeReason, u64>,
    left_out: &[ExcludedFile],
    args: &Args,
    out: &mut Out,
) -> Outcome {
    for (left, count) in counts {
        out.line(&format!("skipped: {count}, {}", why(*left)))?;
    }
    for left in left_out.iter().filter(|_| args.verbose) {
        let error = left
            .error
            .as_deref()
            .map(|error| format!(" ({error})"))
            .unwrap_or_default();
        let path = out.name(&left.path.0).into_owned();
        out.bytes(&path)?;
        out.line(&format!(": {}{error}", why(left.why)))?;
    }
    Ok(())
}
