//! `ckptfs export ID -`: a tar stream.
//!
//! It is read through the mount's view, for what is in a stream cannot be taken back: the daemon proves each read before it answers it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal};

use super::error::{Failure, Outcome, hinted, io_error};
use super::locate::Served;
use super::past::Tree;
use super::progress::Bar;
use super::{Context, copies};
use crate::engine::api::{StateName, VerbError};
use crate::sys::{self, Errno, Kind, Open};
use crate::transfer::tar::Stream;
use crate::transfer::walk::Walk;

/// What is written at once.
const BUFFER_BYTES: usize = 1 << 20;

/// Writes a checkpoint to stdout. `more`: something was asked for that a stream has not. `without_dropped`: what a tier has dropped is left out.
pub fn run(mut served: Served, id: &str, more: bool, without_dropped: bool, context: &mut Context) -> Outcome {
    let usage = |message: &str, hint: &str| Err(Failure::Verb(hinted("usage", message, hint)));
    if more || context.out.json {
        return usage("a tar stream is all that goes to stdout", "leave the other flags out, or export to a directory");
    }
    if io::stdout().is_terminal() {
        return usage("a tar stream is nothing for a terminal", "ckptfs export ID - > FILE.tar, or | tar -x -C DIR --xattrs --xattrs-include='*'");
    }
    let checkpoint = served.client.show(StateName(id.to_owned()))?;
    let (view, live) = (Tree::at(&served, Some(&checkpoint))?.into_root(), Tree::at(&served, None)?.into_root());
    let mut walk = Walk::new(view).map_err(|cause: Errno| io_error(format!("checkpoint {}", checkpoint.id), cause))?.with_names_of(live);
    let mut stream = Stream::new(BufWriter::with_capacity(BUFFER_BYTES, io::stdout().lock()));
    let bar = Bar::count(&context.out, "exporting");
    let mut first: HashMap<u64, Vec<u8>> = HashMap::new();
    let (mut told, mut sockets, mut dropped) = (0, 0, Vec::new());
    let mut refused: Vec<(Vec<u8>, Errno)> = Vec::new();
    while let Some(next) = walk.next() {
        let (entry, fd) = match next {
            Ok(met) => met,
            // Nothing of it is in the stream: the rest can be.
            Err(unread) => {
                refused.push((unread.path, unread.errno));
                continue;
            }
        };
        if entry.kind == Kind::Socket {
            sockets += 1;
            continue;
        }
        let path = if entry.path.0.is_empty() { b".".to_vec() } else { [b"./", entry.path.0.as_slice()].concat() };
        let linked = if entry.is_linked() { first.get(&entry.inode).cloned() } else { None };
        let content: Option<File> = match entry.kind {
            Kind::File if linked.is_none() => match sys::reopen(&fd, Open::READ) {
                Err(Errno::ENODATA) if without_dropped => {
                    dropped.push(entry.path.clone());
                    continue;
                }
                Err(errno) => {
                    refused.push((entry.path.0, errno));
                    continue;
                }
                Ok(opened) => Some(opened),
            },
            _ => None,
        };
        match stream.entry(&path, &entry, linked.as_deref(), content.as_ref()) {
            Err(cause) if cause.kind() == io::ErrorKind::BrokenPipe => return Err(Failure::Output(cause)),
            written => written.map_err(|cause| broken(&path, cause))?,
        }
        if entry.is_linked() {
            first.entry(entry.inode).or_insert(path);
        }
        told += 1;
        bar.at(told, 0);
    }
    stream.finish().map_err(Failure::Output)?;
    bar.stop();
    copies::warn_dropped(&context.out, &dropped);
    if sockets > 0 {
        context.out.warn(&format!("{sockets} sockets are left out: a tar stream cannot hold them"));
    }
    missing(&refused, context)
}

/// Names what is not in the stream; fails if there is anything.
fn missing(refused: &[(Vec<u8>, Errno)], context: &Context) -> Outcome {
    for (path, errno) in refused {
        let path = if path.is_empty() { b"." } else { path.as_slice() };
        context.out.warn(&format!("{} is not in the stream: {errno}", String::from_utf8_lossy(path)));
    }
    match refused.len() {
        0 => Ok(()),
        count => {
            let message = format!("{count} paths are not in the stream, which is whole but for them");
            Err(Failure::Verb(hinted("incomplete", message, "ckptfs status and ckptfs verify name what cannot be told")))
        }
    }
}

fn broken(path: &[u8], cause: io::Error) -> VerbError {
    let cause = io_error(String::from_utf8_lossy(path), cause);
    hinted("incomplete", format!("{}; the stream ends there and is not whole", cause.message), "ckptfs status names what cannot be read")
}
