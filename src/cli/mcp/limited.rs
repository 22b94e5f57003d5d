//! stdin, of which no line is longer than a message may be.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf, Stdin};

/// A message is not longer: whoever sends one has it in memory, and so have we.
const LINE_BYTES_MAX: usize = 4 << 20;

/// See the module.
pub fn stdin() -> Limited<Stdin> {
    Limited::new(tokio::io::stdin(), LINE_BYTES_MAX)
}

/// A reader that fails once a line is longer than it may be.
pub struct Limited<R> {
    inner: R,
    /// Bytes of the line that is being read.
    line: usize,
    line_max: usize,
}

impl<R> Limited<R> {
    fn new(inner: R, line_max: usize) -> Limited<R> {
        Limited {
            inner,
            line: 0,
            line_max,
        }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Limited<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        let read = buffer.filled().get(before..).unwrap_or_default();
        self.line = match read.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => read.len() - end - 1,
            None => self.line.saturating_add(read.len()),
        };
        Poll::Ready(if self.line > self.line_max {
            // A read that fails has read nothing.
            buffer.set_filled(before);
            Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a message is too long",
            ))
        } else {
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    #[test]
    fn a_line_that_does_not_end_is_given_up_and_many_short_ones_are_not() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        let read = |text: Vec<u8>| {
            runtime.block_on(async {
                let mut all = Vec::new();
                let mut limited = Limited::new(io::Cursor::new(text), 100);
                limited.read_to_end(&mut all).await
            })
        };
        let lines = b"a line of twenty..\n".repeat(1000);
        assert_eq!(read(lines.clone()).expect("short lines"), lines.len());
        assert!(read(vec![b'x'; 101]).is_err());
        assert!(read(vec![b'x'; 100]).is_ok());
    }
}
