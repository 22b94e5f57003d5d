//! `ckptfs pull`.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use super::super::export_common::{self, Copied};
use super::super::remotes::names;
use super::{oci, pull_branch, repository};
use ckptfs_api::display::word;
use ckptfs_api::{CheckpointId, Code, Refused, VerbResult, host_path, microseconds};
use ckptfs_remote::restic::pull::SnapshotFeed;
use ckptfs_remote::restic::{OpenPurpose, PushedSnapshot, Remote, guarded};
use ckptfs_sys::{self as sys, Errno};
use ckptfs_transfer::mark::ExportMark;
use ckptfs_transfer::write::{DestState, Writer};
use ckptfs_transfer::{PartSource, hand_over};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{ErrorContext, Outcome, hinted};
use ckptfs_ui::locate;
use ckptfs_ui::progress::Bar;

/// Threads that fetch and write.
const THREADS: usize = 2;

/// Fetch a checkpoint from a remote into a new directory, or into a branch of this tree
///
/// All content is compared with its hash. The same command continues an interrupted pull; a later
/// pull into the same directory fetches only the differences.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The name of a remote (ckptfs remote add), or oci://HOST/NAME:TAG
    #[arg(value_name = "REMOTE")]
    pub(super) remote: String,
    /// The checkpoint: its number, a tag of it, or the snapshot's number, as `ckptfs remote log`
    /// prints them; default: the newest
    #[arg(value_name = "ID")]
    pub(super) id: Option<String>,
    /// The directory, which does not exist, is empty, or contains an earlier pull
    #[arg(long, value_name = "DIR", required_unless_present = "branch")]
    pub(super) into: Option<PathBuf>,
    /// Make it a checkpoint of this branch of the tree, which is created if missing
    #[arg(long, value_name = "NAME", conflicts_with_all = ["into", "mount"])]
    pub(super) branch: Option<String>,
    /// Mount it when it is complete
    #[arg(long)]
    pub(super) mount: bool,
    /// Only show what would be fetched
    #[arg(short = 'n', long)]
    pub(super) dry_run: bool,
    /// Of an image: keep set-id bits, devices and the system's attributes, which anyone with write
    /// access to the registry could have made
    #[arg(long)]
    pub(super) trusted: bool,
    #[command(flatten)]
    pub(super) registry: oci::Options,
}

#[derive(Serialize)]
struct Answer {
    pulled: CheckpointId,
    snapshot: String,
    store: String,
    #[serde(with = "host_path")]
    dest: PathBuf,
    dry_run: bool,
    #[serde(flatten)]
    copied: Option<Copied>,
    duration_us: u64,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    if oci::is_place(&args.remote) {
        return oci::pull(&args, context);
    }
    match (&args.into, &args.branch) {
        (Some(into), _) => guarded(|| pull(&args, into, context)),
        (None, Some(name)) => guarded(|| pull_branch::pull(&args, name, context)),
        // clap requires one of them.
        (None, None) => Ok(()),
    }
}

fn pull(args: &Args, into: &Path, context: &mut Context) -> Outcome {
    let started = Instant::now();
    let names = names()?;
    let remote = repository::open(names.get(&args.remote)?, OpenPurpose::Verb)?;
    let pushed = choose(
        remote.pushed(None)?,
        (&args.remote, args.id.as_deref()),
        context,
    )?;
    let dest = export_common::destination(&locate::start(context.dir())?, into);
    let mut answer = Answer {
        pulled: pushed.checkpoint,
        snapshot: pushed.snapshot.clone(),
        store: pushed.store.clone(),
        dest: dest.clone(),
        dry_run: args.dry_run,
        copied: None,
        duration_us: 0,
    };
    if args.dry_run {
        return tell(&answer, context);
    }
    sys::umask0();
    let dir = export_common::open_destination(&dest)?;
    let before = before(&dest, &dir, &pushed.store)?;
    let own = || dir.try_clone().on(dest.display());
    let there = if before == DestState::Anything {
        Some(own()?)
    } else {
        None
    };
    let writer = Writer::of_compared(own()?, before);
    let mut mark = ExportMark {
        store: pushed.store.clone(),
        checkpoint: pushed.checkpoint,
        whole: false,
    };
    let marked = mark.write(&dir).on(dest.display())?;
    let refused = fetch(remote, &pushed, (&dest, &dir), there, &writer, context)?;
    let copied = Copied::new(&writer, &refused, Vec::new());
    // It is marked as complete only when it is on disk.
    sys::syncfs(&dir).on(dest.display())?;
    if refused.is_empty() && marked {
        mark.whole = true;
        mark.write(&dir).on(dest.display())?;
        sys::fsync(&dir).on(dest.display())?;
    }
    answer.duration_us = microseconds(started.elapsed());
    answer.copied = Some(copied);
    tell(&answer, context)?;
    if let Some(copied) = &answer.copied {
        copied.report(
            &context.out,
            "everything else was fetched; the remote may be damaged there",
        )?;
    }
    if args.mount {
        export_common::own_verb("mount", &dest, &[], &[])?;
    }
    Ok(())
}

/// Fetches the tree of a snapshot into a writer; returns the paths that failed. `there`: see
/// [`Remote::read`].
///
/// # Errors
/// Those of the repository, and of the directory.
pub(super) fn fetch(
    remote: Remote,
    pushed: &PushedSnapshot,
    (dest, dir): (&Path, &OwnedFd),
    there: Option<OwnedFd>,
    writer: &Writer,
    context: &Context,
) -> VerbResult<Vec<Refused>> {
    writer.prepare().on(dest.display())?;
    let dir = dir.try_clone().on(dest.display())?;
    let reading = Arc::new(remote.read(pushed, dir, there)?);
    let feeds =
        (0..THREADS).map(|_| Box::new(SnapshotFeed(Arc::clone(&reading))) as Box<dyn PartSource>);
    let bar = Bar::files(&context.out, "fetching");
    let handed = hand_over(feeds.collect(), writer, &|done, total| {
        bar.at(done, total.unwrap_or(0));
    });
    bar.stop();
    let mut refused = handed?;
    refused.extend(writer.finish_by(THREADS));
    Ok(refused)
}

/// Returns the snapshot of a remote for an ID.
pub(super) fn choose(
    mut pushed: Vec<PushedSnapshot>,
    (remote, id): (&str, Option<&str>),
    context: &Context,
) -> VerbResult<PushedSnapshot> {
    // In a tree, only its own checkpoints, if the remote has any; elsewhere all.
    let own = locate::served(context.dir())
        .ok()
        .and_then(|mut served| repository::store_of(&mut served).ok().flatten());
    if let Some(own) = &own
        && pushed.iter().any(|one| one.store == *own)
    {
        pushed.retain(|one| one.store == *own);
    }
    let id = id.unwrap_or("latest");
    let is_meant = |one: &PushedSnapshot| {
        one.checkpoint.to_string() == id
            || one.tags.iter().any(|tag| tag == id)
            || (id.len() >= 6 && one.snapshot.starts_with(id))
    };
    pushed.sort_by_key(|one| one.created);
    let is_there = !pushed.is_empty();
    if id == "latest" {
        return pushed.pop().ok_or_else(|| unknown((remote, id), is_there));
    }
    pushed.retain(is_meant);
    if let [first, .., last] = pushed.as_slice()
        && first.store != last.store
    {
        return Err(hinted(
            Code::Ambiguous,
            format!("several trees have a checkpoint {id} there"),
            format!(
                "name its snapshot: ckptfs remote log {} --all",
                word(remote)
            ),
        ));
    }
    pushed.pop().ok_or_else(|| unknown((remote, id), is_there))
}

fn unknown((remote, id): (&str, &str), is_there: bool) -> ckptfs_api::VerbError {
    let hint = if is_there {
        format!(
            "ckptfs remote log {} --all lists what is there",
            word(remote)
        )
    } else {
        format!("nothing is there yet: ckptfs push {}", word(remote))
    };
    hinted(
        Code::UnknownCheckpoint,
        format!("{remote} has no checkpoint {id}"),
        hint,
    )
}

/// Returns the content that the writer must expect.
fn before(dest: &Path, dir: &OwnedFd, store: &str) -> VerbResult<DestState> {
    let mark = match ExportMark::read(dir) {
        Err(Errno::EINVAL) => None,
        mark => mark.on(dest.display())?,
    };
    match mark {
        _ if export_common::is_empty(dest, dir)? => Ok(DestState::Nothing),
        Some(mark) if mark.store == store => Ok(DestState::Anything),
        _ => Err(hinted(
            Code::NotEmpty,
            format!(
                "{} is not empty, and holds no pull of this tree",
                dest.display()
            ),
            "pull into a directory that does not exist or is empty",
        )),
    }
}

fn tell(answer: &Answer, context: &mut Context) -> Outcome {
    context.out.answer(answer, |out| {
        let dest = answer.dest.display().to_string();
        let dest = out.text(&dest).into_owned();
        out.line(&match &answer.copied {
            None => format!("checkpoint {} would be pulled into {dest}", answer.pulled),
            Some(copied) => format!(
                "pulled checkpoint {} into {dest}: {}",
                answer.pulled,
                copied.how(answer.duration_us)
            ),
        })
    })
}
