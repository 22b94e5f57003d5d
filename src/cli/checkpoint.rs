//! `ckptfs checkpoint`.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::hook;
use ckptfs_api::{CheckpointOptions, Code, VerbResult};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{ErrorContext, Outcome, error};
use ckptfs_ui::{locate, time};

/// Limit of the bytes read of a note; the daemon enforces a lower limit.
const NOTE_BYTES_MAX: u64 = 64 << 10;

/// Freeze the state of the tree; prints the new checkpoint's number
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Attach a note
    #[arg(
        short,
        long = "message",
        value_name = "NOTE",
        default_value = "",
        hide_default_value = true
    )]
    message: String,
    /// Read the note from this file (`-`: stdin)
    #[arg(short = 'F', long, value_name = "FILE", conflicts_with_all = ["message", "from_hook"])]
    file: Option<PathBuf>,
    /// Add a tag; may be repeated
    #[arg(short, long = "tag", value_name = "TAG")]
    tag: Vec<String>,
    /// If nothing has changed since the newest checkpoint, only print its number
    #[arg(long)]
    if_changed: bool,
    /// Read the JSON of an agent's hook from stdin, for the note and the directory; print nothing
    #[arg(long, conflicts_with = "message")]
    from_hook: bool,
    /// Wait up to TIME for a moment without changes, and report whether it occurred
    #[arg(long, value_name = "TIME", value_parser = time::span)]
    quiesce: Option<Duration>,
    /// Sync the tree and the store first, so that the checkpoint survives a power failure
    #[arg(long)]
    sync: bool,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let quiesce_ms = args
        .quiesce
        .map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
    let mut options = CheckpointOptions {
        note: args.message,
        tags: args.tag,
        sync: args.sync,
        if_changed: args.if_changed,
        quiesce_ms,
        of_ns: None,
    };
    let mut dir = context.dir().map(Path::to_owned);
    if args.from_hook {
        let hook = hook::read(io::stdin().lock())?;
        options.note = hook.note;
        dir = dir.or(hook.dir);
    } else if let Some(file) = &args.file {
        options.note = read_note(file)?;
    }
    let mut served = locate::served(dir.as_deref())?;
    let wanted_tags = options.tags.clone();
    let wanted_note = !options.note.is_empty() && !args.from_hook;
    let made = served.client.ask(options)?;
    let wanted_tags: Vec<String> = wanted_tags
        .into_iter()
        .filter(|tag| !made.tags.contains(tag))
        .collect();
    if context.out.json {
        context.out.json(&made)?;
    } else if !args.from_hook {
        // The agent may read the output of its hook.
        context.out.line(&made.id.to_string())?;
    }
    if made.quiesced == Some(false) {
        context
            .out
            .warn("the tree was never idle: it was being changed when the checkpoint was made");
    }
    if made.unchanged {
        let given = [
            (!wanted_tags.is_empty()).then(|| format!("the tag {}", wanted_tags.join(", "))),
            wanted_note.then(|| "the note".to_owned()),
        ];
        let given: Vec<String> = given.into_iter().flatten().collect();
        let not_given = if given.is_empty() {
            String::new()
        } else {
            format!(
                ", which is left as it is: it was not given {}",
                given.join(" and ")
            )
        };
        context.out.talk(&format!(
            "nothing has changed since checkpoint {}{not_given}",
            made.id
        ));
    } else if !made.atomic {
        context.out.warn("not atomic: files that were being written were captured one after the other (mount with --writes=daemon to avoid that)");
    }
    Ok(())
}

/// Reads a note from a file, without trailing newlines.
fn read_note(file: &Path) -> VerbResult<String> {
    let mut bytes = Vec::new();
    let read = if file == Path::new("-") {
        io::stdin()
            .lock()
            .take(NOTE_BYTES_MAX)
            .read_to_end(&mut bytes)
    } else {
        File::open(file).and_then(|opened| opened.take(NOTE_BYTES_MAX).read_to_end(&mut bytes))
    };
    read.on(file.display())?;
    let text = String::from_utf8(bytes)
        .map_err(|_| error(Code::BadNote, format!("{} is not UTF-8", file.display())))?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}
