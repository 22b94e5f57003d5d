//! `ckptfs export ID -`: a tar stream.
//!
//! A stream cannot be corrected. Therefore an entry from the daemon is written when it is proven
//! ([`verified_stream`]), and a large file is read through the mount's view, where each read is
//! proven before it is answered.

use std::collections::HashMap;
use std::io::{self, BufWriter, IsTerminal, Write};

use super::export_common::{self, ExportStream};
use ckptfs_api::display::count as plural;
use ckptfs_api::{Code, ExportEntry, Refused, ShowCheckpoint, StateName, VerbError};
use ckptfs_sys::{self as sys, Errno, Kind};
use ckptfs_transfer::tar::Stream;
use ckptfs_transfer::verified_stream::{self, BufferedContent};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{Failure, Outcome, hinted, io_error};
use ckptfs_ui::locate::ServedTree;
use ckptfs_ui::past::StateTree;
use ckptfs_ui::progress::Bar;

/// Size of the output buffer.
const BUFFER_BYTES: usize = 1 << 20;

/// Writes a checkpoint to stdout. `more`: options were given that a stream does not support.
/// `without_dropped`: skips the content that a tier has dropped.
pub fn run(
    mut served: ServedTree,
    id: &str,
    more: bool,
    without_dropped: bool,
    context: &mut Context,
) -> Outcome {
    let usage = |message: &str, hint: &str| Err(Failure::Verb(hinted(Code::Usage, message, hint)));
    if more || context.out.json {
        return usage(
            "a tar stream to stdout cannot be combined with other flags",
            "leave them out, or export to a directory",
        );
    }
    if io::stdout().is_terminal() {
        return usage(
            "a tar stream is not written to a terminal",
            "ckptfs export ID - > FILE.tar, or | tar -x -C DIR --xattrs --xattrs-include='*'",
        );
    }
    let checkpoint = served.client.ask(ShowCheckpoint {
        state: StateName(id.to_owned()),
    })?;
    let view = StateTree::at(&served, Some(&checkpoint))?;
    let begun = ExportStream::whole(served.client, checkpoint.id, None)?;
    sys::widen_pipe(io::stdout());
    let bar = Bar::files(&context.out, "exporting");
    let mut told = Tar::new(io::stdout().lock(), view);
    let refused = verified_stream::hand_on(begun.ahead(), |entry, content| {
        let refused = told.entry(entry, &content);
        bar.at(told.told, 0);
        refused
    })?;
    let sockets = told.sockets;
    told.finish()?;
    bar.stop();
    let (refused, dropped) = export_common::without_dropped(refused, without_dropped);
    export_common::warn_dropped(&context.out, &dropped);
    if sockets > 0 {
        context.out.warn(&format!(
            "{} left out: a tar stream cannot hold them",
            plural(sockets, "socket")
        ));
    }
    missing(&refused, context)
}

/// A tar stream in progress.
struct Tar<W: Write> {
    stream: Stream<W>,
    /// Source of large files.
    view: StateTree,
    /// Path in the stream of an inode with several names.
    first: HashMap<u64, Vec<u8>>,
    sockets: u64,
    told: u64,
}

impl<W: Write> Tar<BufWriter<W>> {
    fn new(to: W, view: StateTree) -> Tar<BufWriter<W>> {
        let stream = Stream::new(BufWriter::with_capacity(BUFFER_BYTES, to));
        Tar {
            stream,
            view,
            first: HashMap::new(),
            sockets: 0,
            told: 0,
        }
    }
}

impl<W: Write> Tar<W> {
    /// Ends the stream.
    fn finish(self) -> Outcome {
        self.stream.finish().map(drop).map_err(Failure::Output)
    }

    /// Writes one entry; returns the error if it cannot be read.
    fn entry(
        &mut self,
        entry: &ExportEntry,
        content: &BufferedContent<'_>,
    ) -> Result<Option<Errno>, Failure> {
        if entry.kind == Kind::Socket {
            self.sockets += 1;
            return Ok(None);
        }
        let path = in_stream(&entry.path.0);
        let linked = self.first.get(&entry.inode).filter(|_| entry.is_linked());
        let large = match content {
            BufferedContent::Large if linked.is_none() => match self.view.open_file(&entry.path) {
                Ok(opened) => Some(opened),
                Err(errno) => return Ok(Some(errno)),
            },
            _ => None,
        };
        match self.stream.entry(
            &path,
            entry,
            linked.map(Vec::as_slice),
            content,
            large.as_ref(),
        ) {
            Err(cause) if cause.kind() == io::ErrorKind::BrokenPipe => {
                return Err(Failure::Output(cause));
            }
            written => written.map_err(|cause| broken(&path, cause))?,
        }
        if entry.is_linked() {
            self.first.entry(entry.inode).or_insert(path);
        }
        self.told += 1;
        Ok(None)
    }
}

/// Returns a path of the tree in the form of a stream.
fn in_stream(path: &[u8]) -> Vec<u8> {
    if path.is_empty() {
        b".".to_vec()
    } else {
        [b"./", path].concat()
    }
}

/// Warns about paths that are missing in the stream, and fails if there are any.
fn missing(refused: &[Refused], context: &Context) -> Outcome {
    for Refused { path, errno } in refused {
        let path = if path.0.is_empty() {
            b"."
        } else {
            path.0.as_slice()
        };
        context.out.warn(&format!(
            "{} is not in the stream: {}",
            String::from_utf8_lossy(path),
            Errno(*errno)
        ));
    }
    match refused.len() {
        0 => Ok(()),
        count => {
            let message = format!(
                "the stream lacks {}, and is complete except for that",
                plural(count, "path")
            );
            Err(Failure::Verb(hinted(
                Code::Incomplete,
                message,
                "ckptfs status and ckptfs verify show what cannot be read",
            )))
        }
    }
}

fn broken(path: &[u8], cause: io::Error) -> VerbError {
    let cause = io_error(String::from_utf8_lossy(path), cause);
    hinted(
        Code::Incomplete,
        format!("{}: the stream ends here and is incomplete", cause.message),
        "ckptfs status names what cannot be read",
    )
}
