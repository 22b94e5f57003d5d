//! `ckptfs fork`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;

use super::export_common::{self, Copied, ExportStream};
use ckptfs_api::{CheckpointId, Code, VerbError, VerbResult, host_path};
use ckptfs_sys as sys;
use ckptfs_transfer::write::{DestState, Writer};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{ErrorContext, Failure, Outcome, hinted};
use ckptfs_ui::locate::ServedTree;
use ckptfs_ui::output::Out;
use ckptfs_ui::past;
use ckptfs_ui::progress::Bar;

/// Create an independent writable tree from a checkpoint
///
/// Files share their data with the history (reflinks) where the filesystem supports it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A number, a tag, or `latest`
    #[arg(value_name = "ID")]
    id: String,
    /// A directory that does not exist or is empty
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Also mount it, with a history of its own
    #[arg(long)]
    mount: bool,
    /// Only show what would be done
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Skip files whose content was dropped by a retention rule; by default the fork fails
    #[arg(long)]
    without_dropped: bool,
}

#[derive(Serialize)]
struct Answer {
    forked: CheckpointId,
    #[serde(with = "host_path")]
    dir: PathBuf,
    mounted: bool,
    dry_run: bool,
    /// Result of the copy; absent in a dry run.
    #[serde(flatten)]
    copied: Option<Copied>,
    duration_us: u64,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let served = export_common::served(context)?;
    let dest = export_common::destination(&served.cwd, &args.dir);
    sys::umask0();
    let started = Instant::now();
    if args.dry_run {
        if std::fs::read_dir(&dest).is_ok_and(|mut names| names.next().is_some()) {
            return Err(taken(&dest).into());
        }
        let id = ExportStream::begin(served, &args.id, None)?.part.checkpoint;
        let out = &mut context.out;
        if out.json {
            let duration_us = ckptfs_api::microseconds(started.elapsed());
            return Ok(out.json(&Answer {
                forked: id,
                dir: dest,
                mounted: false,
                dry_run: true,
                copied: None,
                duration_us,
            })?);
        }
        let line = format!("fork of checkpoint {id} would fill {}", dest.display());
        return Ok(out.line(&line)?);
    }
    let snapdir = past::snapdir(served.client.store());
    let (forked, copied) = fork(served, &args.id, &dest, args.without_dropped, &context.out)?;
    let whole = copied.refused.is_empty();
    let duration_us = ckptfs_api::microseconds(started.elapsed());
    if args.mount && whole {
        export_common::own_verb("mount", &dest, &[format!("--snapdir-name={snapdir}")], &[])?;
    }
    let out = &mut context.out;
    if out.json {
        out.json(&Answer {
            forked,
            dir: dest,
            mounted: args.mount && whole,
            dry_run: false,
            copied: Some(copied),
            duration_us,
        })?;
        return if whole { Ok(()) } else { Err(Failure::No) };
    }
    let at = dest.display().to_string();
    let at = out.text(&at).into_owned();
    out.line(&format!(
        "forked checkpoint {forked} to {at}: {}",
        copied.how(duration_us)
    ))?;
    copied.report(
        out,
        "remove the directory, and run the same command again once the cause is fixed",
    )
}

/// Fills a directory with a checkpoint. The result lists the paths that could not be copied.
///
/// # Errors
/// `not-empty`; those of the daemon, and of the directory.
pub fn fork(
    served: ServedTree,
    id: &str,
    dest: &Path,
    without_dropped: bool,
    out: &Out,
) -> VerbResult<(CheckpointId, Copied)> {
    let dir = export_common::open_destination(dest)?;
    if !export_common::is_empty(dest, &dir)? {
        return Err(taken(dest));
    }
    let begun = ExportStream::begin(served, id, None)?;
    let forked = begun.part.checkpoint;
    let writer = Writer::new(dir, DestState::Nothing);
    writer.prepare().on(dest.display())?;
    let bar = Bar::files(out, "forking");
    let handed = begun.hand_over(&writer, export_common::threads(None), &bar);
    bar.stop();
    let mut refused = handed?;
    refused.extend(writer.finish());
    let (refused, dropped) = export_common::without_dropped(refused, without_dropped);
    Ok((forked, Copied::new(&writer, &refused, dropped)))
}

fn taken(dest: &Path) -> VerbError {
    hinted(
        Code::NotEmpty,
        format!("{} is not empty", dest.display()),
        "fork to a directory that does not exist or is empty",
    )
}
