//! `ckptfs export`.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;

use super::export_common::{self, Copied, ExportStream};
use ckptfs_api::display::count as plural;
use ckptfs_api::{CheckpointId, Code, TreePath, VerbResult, host_path};
use ckptfs_sys::{self as sys, Errno};
use ckptfs_transfer::CountingSink;
use ckptfs_transfer::check::Checker;
use ckptfs_transfer::mark::ExportMark;
use ckptfs_transfer::write::{DestState, Writer};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{ErrorContext, Failure, Outcome, hinted, io_error};
use ckptfs_ui::locate::ServedTree;
use ckptfs_ui::progress::Bar;

/// Copy a checkpoint to a directory elsewhere, or as a tar stream to stdout (`-`)
///
/// Files share their data with the history (reflinks) where the filesystem supports it. If DEST
/// contains an earlier export of the same tree, only the changes since then are applied; an
/// interrupted export is finished.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A number, a tag, or `latest`
    #[arg(value_name = "ID")]
    id: String,
    /// A directory that does not exist, is empty, or contains an earlier export; `-`: a tar stream
    /// to stdout
    #[arg(value_name = "DEST")]
    dest: PathBuf,
    /// Only show what would be done
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Compare with all of DEST, not only with the changes since the earlier export
    #[arg(long, conflicts_with = "check")]
    full: bool,
    /// Change nothing; compare byte by byte, and list the differences
    #[arg(long, conflicts_with = "dry_run")]
    check: bool,
    /// Wait until everything is on disk
    #[arg(long, conflicts_with_all = ["check", "dry_run"])]
    sync: bool,
    /// Skip files whose content was dropped by a retention rule; by default the export fails
    #[arg(long)]
    without_dropped: bool,
}

#[derive(Serialize)]
struct Answer {
    exported: CheckpointId,
    #[serde(with = "host_path")]
    dest: PathBuf,
    from: Option<CheckpointId>,
    dry_run: bool,
    #[serde(flatten)]
    copied: Copied,
    duration_us: u64,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let served = export_common::served(context)?;
    if args.dest == Path::new("-") {
        return super::tar::run(
            served,
            &args.id,
            args.dry_run || args.check || args.full || args.sync,
            args.without_dropped,
            context,
        );
    }
    let dest = export_common::destination(&served.cwd, &args.dest);
    sys::umask0();
    if args.check {
        check(&args, &dest, served, context)
    } else if args.dry_run {
        dry_run(&args, &dest, served, context)
    } else {
        export(&args, dest, served, context)
    }
}

/// An export in progress, and the content of its destination.
struct Planned {
    begun: ExportStream,
    before: DestState,
    checkpoint: CheckpointId,
    from: Option<CheckpointId>,
}

impl Planned {
    fn of(
        args: &Args,
        dest: &Path,
        there: &DestinationState,
        served: ServedTree,
    ) -> VerbResult<Planned> {
        let begun = ExportStream::begin(served, &args.id, there.from(args.full))?;
        let part = &begun.part;
        let before = there.before(dest, &part.store, args.full || part.from.is_none())?;
        Ok(Planned {
            checkpoint: part.checkpoint,
            from: part.from.filter(|_| before == DestState::Copy),
            before,
            begun,
        })
    }
}

fn export(args: &Args, dest: PathBuf, served: ServedTree, context: &mut Context) -> Outcome {
    let started = Instant::now();
    let dir = export_common::open_destination(&dest)?;
    let there = DestinationState::of(&dest, &dir)?;
    let planned = Planned::of(args, &dest, &there, served)?;
    let (checkpoint, from) = (planned.checkpoint, planned.from);
    let mut mark = ExportMark {
        store: planned.begun.part.store.clone(),
        checkpoint,
        whole: false,
    };
    if from == Some(checkpoint) {
        tracing::debug!("nothing to do");
    }
    let marked = mark.write(&dir).on(dest.display())?;
    let writer = Writer::new(dir.try_clone().on(dest.display())?, planned.before);
    writer.prepare().on(dest.display())?;
    let bar = Bar::files(&context.out, "exporting");
    let handed = planned
        .begun
        .hand_over(&writer, export_common::threads(from), &bar);
    bar.stop();
    let mut refused = handed?;
    refused.extend(writer.finish());
    let (refused, dropped) = export_common::without_dropped(refused, args.without_dropped);
    let copied = Copied::new(&writer, &refused, dropped);
    if args.sync {
        sys::syncfs(&dir).on(dest.display())?;
    }
    if refused.is_empty() && marked {
        mark.whole = true;
        mark.write(&dir).on(dest.display())?;
        if args.sync {
            sys::fsync(&dir).on(dest.display())?;
        }
    }
    let answer = Answer {
        exported: checkpoint,
        dest,
        from,
        dry_run: false,
        copied,
        duration_us: ckptfs_api::microseconds(started.elapsed()),
    };
    tell(answer, marked, context)
}

fn tell(answer: Answer, marked: bool, context: &mut Context) -> Outcome {
    let out = &mut context.out;
    if out.json {
        out.json(&answer)?;
    } else {
        let dest = answer.dest.display().to_string();
        let dest = out.text(&dest).into_owned();
        let from = answer
            .from
            .map_or(String::new(), |from| format!(" (from {from})"));
        out.line(&format!(
            "exported checkpoint {} to {dest}{from}: {}",
            answer.exported,
            answer.copied.how(answer.duration_us)
        ))?;
    }
    if !marked {
        out.warn("the filesystem there has no extended attributes: a later export cannot continue from this one, and needs an empty directory");
    }
    answer.copied.report(
        out,
        "everything else was copied; run the same command again once the cause is fixed",
    )
}

/// State of a destination.
struct DestinationState {
    mark: Option<ExportMark>,
    empty: bool,
}

impl DestinationState {
    fn of(dest: &Path, dir: &OwnedFd) -> VerbResult<DestinationState> {
        let mark = ExportMark::read(dir).map_err(|cause| match cause {
            Errno::EINVAL => hinted(
                Code::NotEmpty,
                format!(
                    "the marker file of {} was written by another version of ckptfs",
                    dest.display()
                ),
                "export to another directory",
            ),
            cause => io_error(dest.display(), cause),
        })?;
        Ok(DestinationState {
            mark,
            empty: export_common::is_empty(dest, dir)?,
        })
    }

    /// Returns the checkpoint of the earlier export, if the export can continue from it.
    fn from(&self, full: bool) -> Option<CheckpointId> {
        self.mark
            .as_ref()
            .filter(|mark| mark.whole && !full && !self.empty)
            .map(|mark| mark.checkpoint)
    }

    /// Returns the content that the writer must expect.
    fn before(&self, dest: &Path, store: &str, full: bool) -> VerbResult<DestState> {
        match &self.mark {
            _ if self.empty => Ok(DestState::Nothing),
            Some(mark) if mark.store != store => Err(hinted(
                Code::NotEmpty,
                format!("{} holds an export of another tree", dest.display()),
                "export to another directory, or remove that one first",
            )),
            Some(_) if full => Ok(DestState::Anything),
            Some(_) => Ok(DestState::Copy),
            None => Err(export_common::not_empty(
                dest,
                "export to a directory that does not exist or is empty",
            )),
        }
    }
}

fn dry_run(args: &Args, dest: &Path, served: ServedTree, context: &mut Context) -> Outcome {
    let there = match sys::open_root(dest) {
        Ok(dir) => DestinationState::of(dest, &dir)?,
        Err(Errno::ENOENT) => DestinationState {
            mark: None,
            empty: true,
        },
        Err(cause) => return Err(io_error(dest.display(), cause).into()),
    };
    let planned = Planned::of(args, dest, &there, served)?;
    let (checkpoint, from) = (planned.checkpoint, planned.from);
    let bar = Bar::files(&context.out, "counting");
    let counted = CountingSink::default();
    let handed = planned
        .begun
        .hand_over(&counted, export_common::threads(from), &bar);
    bar.stop();
    let (refused, dropped) = export_common::without_dropped(handed?, args.without_dropped);
    export_common::warn_dropped(&context.out, &dropped);
    let get =
        |count: &std::sync::atomic::AtomicU64| count.load(std::sync::atomic::Ordering::Relaxed);
    let (made, removed, bytes) = (
        get(&counted.entries),
        get(&counted.removed),
        get(&counted.bytes),
    );
    if context.out.json {
        let refused: Vec<&TreePath> = refused.iter().map(|refused| &refused.path).collect();
        let dest = dest.to_string_lossy();
        let value = serde_json::json!({"exported": checkpoint, "dest": dest, "from": from, "dry_run": true, "made": made, "removed": removed, "bytes": bytes, "refused": refused});
        return Ok(context.out.json(&value)?);
    }
    let from = from.map_or(String::new(), |from| format!(" (from {from})"));
    let line = format!(
        "export of checkpoint {checkpoint}{from} would make {made} ({bytes} bytes of files) and remove {removed}"
    );
    Ok(context.out.line(&line)?)
}

fn check(args: &Args, dest: &Path, served: ServedTree, context: &mut Context) -> Outcome {
    let dir = sys::open_root(dest).on(dest.display())?;
    let begun = ExportStream::begin(served, &args.id, None)?;
    let checkpoint = begun.part.checkpoint;
    let bar = Bar::files(&context.out, "comparing");
    let checker = Checker::new(dir);
    let handed = begun.hand_over(&checker, export_common::threads(None), &bar);
    bar.stop();
    let (refused, dropped) = export_common::without_dropped(handed?, args.without_dropped);
    let mut wrong: Vec<TreePath> = refused.into_iter().map(|refused| refused.path).collect();
    wrong.extend(
        checker
            .finish()
            .on(dest.display())?
            .into_iter()
            .map(TreePath),
    );
    wrong.retain(|path| !dropped.contains(path));
    wrong.sort();
    wrong.dedup();
    if context.out.json {
        context
            .out
            .json(&serde_json::json!({"checked": checkpoint, "different": wrong}))?;
    } else {
        for path in &wrong {
            let name = context
                .out
                .name(if path.0.is_empty() { b"." } else { &path.0 })
                .into_owned();
            context.out.bytes(&[name.as_slice(), b"\n"].concat())?;
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    context.out.flush()?;
    context.out.talk(&format!(
        "different from checkpoint {checkpoint}: {}; to fix that: ckptfs export --full {checkpoint} DEST",
        plural(wrong.len(), "path")
    ));
    Err(Failure::No)
}
