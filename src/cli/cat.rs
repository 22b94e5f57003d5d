//! `ckptfs cat`, and `ckptfs show ID:PATH` of a file.

use std::ffi::OsString;
use std::io::{self, Read};

use super::context::Context;
use super::error::{Outcome, io_error};
use super::output::Out;
use super::past;

/// Bytes per read.
const CHUNK_BYTES: usize = 256 * 1024;

/// Print files as they were
#[derive(Debug, clap::Args)]
pub struct Args {
    /// State and path, such as `latest:src/main.rs`, `v1:README`, `@{10min ago}:notes`
    #[arg(value_name = "ID:PATH", required = true)]
    files: Vec<OsString>,
}

impl Args {
    /// Returns the arguments that print one file.
    pub fn of(file: OsString) -> Args {
        Args { files: vec![file] }
    }
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    context.out.page();
    for text in &args.files {
        let found = past::find(context.dir(), text)?;
        let mut file = found
            .tree
            .open_file(&found.path)
            .map_err(|cause| found.failed(cause))?;
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            match file.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => print(&mut context.out, chunk.get(..count).unwrap_or_default())?,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(io_error(text.to_string_lossy(), cause).into()),
            }
        }
    }
    Ok(())
}

/// Prints a chunk of a file: unchanged, but escaped on a terminal.
fn print(out: &mut Out, chunk: &[u8]) -> io::Result<()> {
    if !out.terminal {
        return out.bytes(chunk);
    }
    for line in chunk.split_inclusive(|byte| *byte == b'\n') {
        let end = if line.ends_with(b"\n") {
            &b"\n"[..]
        } else {
            b""
        };
        let shown = out
            .content(line.strip_suffix(b"\n").unwrap_or(line))
            .into_owned();
        out.bytes(&[&shown, end].concat())?;
    }
    Ok(())
}
