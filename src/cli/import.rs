//! `ckptfs import`.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;

use super::copies::{self, Copied};
use super::error::{Outcome, error, hinted, io_error};
use super::progress::Bar;
use super::{Context, locate, time};
use crate::control::Client;
use crate::engine::api::{CheckpointOptions, VerbResult, host_path};
use crate::engine::export::parts::{ExportData, Refused};
use crate::history::diff::same_bytes;
use crate::store::ids::CheckpointId;
use crate::sys::{self, Open, OpenKind};
use crate::transfer::Sink;
use crate::transfer::place::open_below;
use crate::transfer::snapshots::{self, Known, Snapshot, Steps};
use crate::transfer::write::{Before, Writer};

/// Make a tree with a history out of a directory of plain snapshots
///
/// Snapper's (`.snapshots/N/snapshot`), or one directory beside the other as rsync makes them with hard links: one checkpoint for each, the oldest
/// first. The snapshots are only read.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory that the snapshots are in
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The new tree, which does not exist or is empty; DIR with `-history` behind its name if not given
    #[arg(long, value_name = "DIR2")]
    into: Option<PathBuf>,
    /// Only list the snapshots
    #[arg(short = 'n', long)]
    dry_run: bool,
}

#[derive(Serialize)]
struct Answer {
    #[serde(with = "host_path")]
    tree: PathBuf,
    checkpoints: Vec<Made>,
    dry_run: bool,
    duration_us: u64,
}

#[derive(Serialize)]
struct Made {
    snapshot: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    date: Option<String>,
    checkpoint: Option<CheckpointId>,
    /// What was made for it, and removed.
    made: u64,
    removed: u64,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let cwd = locate::start(context.dir())?;
    let dir = copies::destination(&cwd, &args.dir);
    let found = snapshots::find(&dir)
        .map_err(|cause| hinted("not-a-directory", io_error(dir.display(), cause).message, "name the directory that the snapshots are in"))?;
    if found.is_empty() {
        let hint = "each snapshot is a directory of its own in DIR; snapper's are N/snapshot with N/info.xml";
        return Err(hinted("not-found", format!("there are no snapshots in {}", dir.display()), hint).into());
    }
    let into = args.into.as_ref().map_or_else(|| beside(&dir), |into| copies::destination(&cwd, into));
    let started = Instant::now();
    let mut made: Vec<Made> = found.iter().map(Made::new).collect();
    if !args.dry_run {
        sys::umask0();
        let root = copies::open_destination(&into)?;
        if !copies::is_empty(&into, &root)? {
            return Err(
                hinted("not-empty", format!("{} is not empty", into.display()), "import into a directory that does not exist or is empty").into()
            );
        }
        let bar = Bar::start(&context.out, "importing", false);
        let done = import(&found, &into, root, &mut made, &bar, context);
        bar.stop();
        done?;
    }
    let duration_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
    tell(Answer { tree: into, checkpoints: made, dry_run: args.dry_run, duration_us }, context)
}

fn tell(answer: Answer, context: &mut Context) -> Outcome {
    let out = &mut context.out;
    if out.json {
        return Ok(out.json(&answer)?);
    }
    for made in &answer.checkpoints {
        let name = out.text(&made.snapshot).into_owned();
        let date = made.date.as_deref().map_or(String::new(), |date| format!("  {date}"));
        match made.checkpoint {
            Some(id) => out.line(&format!("{id}  {name}{date}: {} made, {} removed", made.made, made.removed))?,
            None => out.line(&format!("{name}{date}"))?,
        }
    }
    let at = answer.tree.display().to_string();
    let verb = if answer.dry_run { "would be imported into" } else { "imported into" };
    out.flush()?;
    out.talk(&format!("{} snapshots {verb} {at} in {}", answer.checkpoints.len(), time::duration(answer.duration_us)));
    if !answer.dry_run {
        out.talk(&format!("mount it: ckptfs mount {at}"));
    }
    Ok(())
}

fn beside(dir: &Path) -> PathBuf {
    let mut name = dir.file_name().unwrap_or_default().to_owned();
    name.push("-history");
    dir.with_file_name(name)
}

impl Made {
    fn new(snapshot: &Snapshot) -> Made {
        Made { snapshot: snapshot.name.clone(), date: snapshot.date.clone(), checkpoint: None, made: 0, removed: 0 }
    }
}

/// The first snapshot is copied before the tree is mounted: its files can share their data. The others come through the mount.
fn import(found: &[Snapshot], into: &Path, root: OwnedFd, made: &mut [Made], bar: &Bar, context: &Context) -> Outcome {
    let total = found.len() as u64;
    let mut old = Known::new();
    let mut root = Some(root);
    let mut before: Option<OwnedFd> = None;
    let mut client = None;
    for (number, (snapshot, made)) in found.iter().zip(made.iter_mut()).enumerate() {
        let from = sys::open_root(&snapshot.path).map_err(|cause| io_error(snapshot.path.display(), cause))?;
        let (new, refused) = snapshots::read(dup(&from)?).map_err(|cause| io_error(snapshot.path.display(), cause))?;
        let steps = snapshots::steps(&old, &new, &|path| before.as_ref().is_some_and(|before| holds_the_same(before, &from, path)));
        let (to, there) = match root.take() {
            Some(root) => (root, Before::Nothing),
            None => (sys::open_root(into).map_err(|cause| io_error(into.display(), cause))?, Before::Copy),
        };
        (made.made, made.removed) = apply(steps, &from, to, there, refused, context)?;
        let client = match &mut client {
            Some(client) => client,
            None => {
                // One checkpoint for each snapshot, however much goes from one to the next.
                copies::own_verb("mount", into, &[("CKPTFS_TRIPWIRE", "off")])?;
                dress_root(&from, into, &new, context)?;
                client.insert(locate::served(Some(into))?.client)
            }
        };
        made.checkpoint = Some(checkpoint(client, snapshot)?);
        old = new;
        before = Some(from);
        bar.at(number as u64 + 1, total);
    }
    drop(client);
    copies::own_verb("umount", into, &[])
}

/// A file is the same in two snapshots: its extents are shared, or its bytes are compared. What cannot be read is copied, which tells why.
fn holds_the_same(a: &OwnedFd, b: &OwnedFd, path: &[u8]) -> bool {
    let open = |root: &OwnedFd| open_below(root, path, OpenKind::File(Open::READ)).map(std::fs::File::from);
    open(a).and_then(|a| same_bytes(&a, &open(b)?)).unwrap_or(false)
}

/// The store was made in the root directory, which changed its times.
fn dress_root(from: &OwnedFd, into: &Path, known: &Known, context: &Context) -> Outcome {
    let root = sys::open_root(into).map_err(|cause| io_error(into.display(), cause))?;
    let entries = known.get(b"".as_slice()).map(|(entry, _)| entry.clone()).into_iter().collect();
    apply(Steps { removed: Vec::new(), entries }, from, root, Before::Copy, Vec::new(), context).map(drop)
}

fn dup(fd: &OwnedFd) -> VerbResult<OwnedFd> {
    fd.try_clone().map_err(|cause| io_error("a descriptor", cause))
}

fn apply(
    steps: Steps,
    from: &OwnedFd,
    to: OwnedFd,
    before: Before,
    refused: Vec<Refused>,
    context: &Context,
) -> Result<(u64, u64), super::error::Failure> {
    let writer = Writer::new(to, before);
    writer.prepare().map_err(|cause| io_error("the new tree", cause))?;
    let mut refused = refused;
    let mut refuse = |path, errno: sys::Errno| refused.push(Refused { path, errno: errno.0 });
    let mut hand = <Writer as Sink>::Hand::default();
    for path in &steps.removed {
        if let Err(errno) = writer.remove(path) {
            refuse(crate::engine::api::TreePath(path.clone()), errno);
        }
    }
    for entry in steps.entries {
        let path = entry.path.clone();
        let content =
            if entry.data == ExportData::File { open_below(from, &path.0, OpenKind::File(Open::READ)).map(|fd| Some(fd.into())) } else { Ok(None) };
        if let Err(errno) = content.and_then(|content| writer.entry(&mut hand, entry, content)) {
            refuse(path, errno);
        }
    }
    drop(hand);
    refused.extend(writer.finish());
    let copied = Copied::new(&writer, &refused, Vec::new());
    copied.report(&context.out, "remove the new tree, and import again once the cause is gone")?;
    Ok((copied.made, copied.removed))
}

fn checkpoint(client: &mut Client, snapshot: &Snapshot) -> VerbResult<CheckpointId> {
    let mut note = snapshot.description.clone().unwrap_or_else(|| format!("imported {}", snapshot.name));
    note.push_str(&format!("\n\nSnapshot: {}", snapshot.name));
    if let Some(date) = &snapshot.date {
        note.push_str(&format!("\nDate: {date}"));
    }
    if note.len() > 4096 {
        return Err(error("bad-note", format!("what is said of snapshot {} is too long", snapshot.name)));
    }
    Ok(client.checkpoint(CheckpointOptions { note, ..CheckpointOptions::default() })?.id)
}
