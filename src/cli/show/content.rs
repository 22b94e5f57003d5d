//! The content of a file as it was.

use std::io::{self, Read};

use ckptfs_ui::error::{Outcome, io_error};
use ckptfs_ui::output::Out;
use ckptfs_ui::past::PathInState;

/// Bytes per read.
const CHUNK_BYTES: usize = 256 * 1024;

/// Prints the content of a file. Control characters are escaped on a terminal.
pub fn print(found: &PathInState, text: &str, out: &mut Out) -> Outcome {
    let mut file = found
        .tree
        .open_file(&found.path)
        .map_err(|cause| found.failed(cause))?;
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(count) => print_chunk(out, chunk.get(..count).unwrap_or_default())?,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(io_error(text, cause).into()),
        }
    }
}

fn print_chunk(out: &mut Out, chunk: &[u8]) -> io::Result<()> {
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
