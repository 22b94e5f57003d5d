//! `ckptfs show`.

pub mod attrs;
mod content;
pub mod names;

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;

use super::changes_by_process;
use super::context::Context;
use super::error::{Outcome, hinted};
use super::output::{Out, Role};
use super::{locate, past, size, time};
use ckptfs_api::display::count;
use ckptfs_api::{CheckpointInfo, Code, Reason, ShowCheckpoint, StateName};
use ckptfs_sys::Kind;

/// Show a checkpoint, or a file or directory in it
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A number, a tag, or `latest`; with `:PATH` the content of that file, or the names in that
    /// directory
    #[arg(value_name = "ID[:PATH]", default_value = "latest")]
    id: OsString,
    /// With :PATH: print mode, size and time of the file, or of each name in the directory
    #[arg(short, long)]
    long: bool,
    /// With :PATH: end each name with NUL and escape nothing
    #[arg(short = 'z', conflicts_with_all = ["json", "long"])]
    nul: bool,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    if !args.nul {
        context.out.page();
    }
    let mut source = locate::history(context.dir())?;
    let state = StateName(args.id.to_string_lossy().into_owned());
    let checkpoint = match source.ask(ShowCheckpoint { state }) {
        Err(unknown)
            if unknown.code == Code::UnknownCheckpoint && args.id.as_bytes().contains(&b':') =>
        {
            return print_past(&args, context);
        }
        checkpoint => checkpoint?,
    };
    if args.long || args.nul {
        let hint = format!("ckptfs show -l {}:PATH", checkpoint.id);
        return Err(hinted(
            Code::Usage,
            "--long and -z list a path in a checkpoint",
            hint,
        )
        .into());
    }
    context
        .out
        .answer(&checkpoint, |out| print(out, &checkpoint))
}

/// Prints a file or a directory as it was.
fn print_past(args: &Args, context: &mut Context) -> Outcome {
    let found = past::find(context.dir(), &args.id)?;
    let stat = found.tree.stat(&found.path);
    let kind = stat.map_err(|cause| found.failed(cause))?.kind;
    let (long, nul) = (args.long, args.nul);
    if kind == Kind::Dir || long || nul {
        let format = names::Format { long, nul };
        return names::print(&found, kind, format, &mut context.out);
    }
    content::print(&found, &args.id.to_string_lossy(), &mut context.out)
}

/// Describes the reason for a checkpoint.
pub fn reason(checkpoint: &CheckpointInfo) -> String {
    match &checkpoint.reason {
        Reason::Directory { name } => format!("mkdir .snapshots/{name}"),
        Reason::Auto { trigger } => format!("auto:{}", trigger.name()),
        Reason::Asked => "asked for".to_owned(),
        Reason::Imported { .. } => "imported".to_owned(),
        Reason::Guard { restored } if *restored == checkpoint.id => {
            "made before a merge".to_owned()
        }
        Reason::Guard { restored } => format!("made before the restore of {restored}"),
    }
}

/// Returns the labels and values that every checkpoint has.
fn lines(out: &Out, checkpoint: &CheckpointInfo) -> [(&'static str, String); 9] {
    let reason = reason(checkpoint);
    let atomic = if checkpoint.atomic {
        "yes"
    } else {
        "no: files that were being written were captured one after the other"
    };
    let pinned = match checkpoint.pinned.as_deref() {
        None => "no".to_owned(),
        Some("") => "yes".to_owned(),
        Some(reason) => format!("yes: {}", out.text(reason)),
    };
    let by = checkpoint.by.as_ref().map_or_else(
        || "not recorded".to_owned(),
        |by| format!("uid {} pid {} {}", by.uid, by.pid, out.text(&by.process)),
    );
    let parent = checkpoint
        .parent
        .map_or("none".to_owned(), |parent| parent.to_string());
    let tags = checkpoint.tags.join(", ");
    [
        (
            "checkpoint",
            out.paint(Role::Id, &checkpoint.id.to_string()),
        ),
        ("created", time::local(&checkpoint.created)),
        ("tags", out.paint(Role::Tag, &out.text(&tags))),
        ("changes", checkpoint.dirty.to_string()),
        ("atomic", atomic.to_owned()),
        ("reason", reason),
        ("parent", parent),
        ("pinned", pinned),
        ("by", by.trim_end().to_owned()),
    ]
}

/// Prints a checkpoint with all its details.
pub fn print(out: &mut Out, checkpoint: &CheckpointInfo) -> io::Result<()> {
    for (label, value) in lines(out, checkpoint) {
        let label = out.paint(Role::Faint, &format!("{label:<10}"));
        out.line(format!("{label} {value}").trim_end())?;
    }
    if let Some(dropped) = &checkpoint.dropped {
        let line = format!(
            "{} content of {} ({}), by a retention rule, in",
            out.paint(Role::Faint, "dropped   "),
            count(dropped.files, "file"),
            size::human(dropped.bytes)
        );
        out.line(&line)?;
        for path in &dropped.paths {
            let line = [b"    ", out.name(&path.0).as_ref(), b"\n"].concat();
            out.bytes(&line)?;
        }
    }
    if let Some(open) = &checkpoint.open_at_cut {
        changes_by_process::print_open(out, open)?;
    }
    if !checkpoint.note.is_empty() {
        out.line("")?;
        for line in checkpoint.note.lines() {
            out.text_line(&format!("    {line}"))?;
        }
    }
    Ok(())
}
