//! stdin as lines of JSON: bounded in length, and repaired where serde_json rejects a client's
//! JSON.
//!
//! A request that the protocol library cannot parse gets no reply, and the agent waits for one.
//! JavaScript writes lone surrogates, which become U+FFFD. Python writes `Infinity`; such a request
//! is replaced by one that receives an error as its reply.

use std::borrow::Cow;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use serde_json::{Value, json};
use tokio::io::{AsyncBufRead, AsyncRead, BufReader, ReadBuf, Stdin};

/// Maximum size of a message, bytes: both the sender and this process buffer a whole message.
const LINE_BYTES_MAX: usize = 4 << 20;
/// Method that replaces that of a request with invalid JSON; no server implements it.
const UNPARSABLE: &str = "(the request is not valid JSON)";

/// Returns stdin with repaired lines.
pub fn stdin() -> JsonLineReader<Stdin> {
    JsonLineReader::new(tokio::io::stdin(), LINE_BYTES_MAX)
}

/// A reader that repairs each line, and fails if a line is too long.
pub struct JsonLineReader<R> {
    inner: BufReader<R>,
    /// The incomplete current line.
    line: Vec<u8>,
    line_max: usize,
    /// The repaired line, and the number of bytes already returned.
    mended: (Vec<u8>, usize),
}

impl<R: AsyncRead + Unpin> JsonLineReader<R> {
    fn new(inner: R, line_max: usize) -> JsonLineReader<R> {
        JsonLineReader {
            inner: BufReader::new(inner),
            line: Vec::new(),
            line_max,
            mended: (Vec::new(), 0),
        }
    }

    /// Reads up to the end of a line or of the input.
    fn poll_line(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let read = ready!(Pin::new(&mut self.inner).poll_fill_buf(context))?;
            let end = read.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(read.len(), |end| end + 1);
            let part = read.get(..taken).unwrap_or_default();
            if self.line.len() + part.len() > self.line_max {
                let why = "a message is too long";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why)));
            }
            self.line.extend_from_slice(part);
            Pin::new(&mut self.inner).consume(taken);
            if end.is_some() || taken == 0 {
                self.mended = (mend(&self.line).into_owned(), 0);
                self.line.clear();
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for JsonLineReader<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.mended.1 == self.mended.0.len() {
            ready!(self.poll_line(context))?;
        }
        let (line, at) = &mut self.mended;
        let left = line.get(*at..).unwrap_or_default();
        let part = left
            .get(..left.len().min(buffer.remaining()))
            .unwrap_or_default();
        buffer.put_slice(part);
        *at += part.len();
        Poll::Ready(Ok(()))
    }
}

/// Returns the line, repaired or replaced by a request that is answered with an error.
fn mend(line: &[u8]) -> Cow<'_, [u8]> {
    let parses = |line: &[u8]| serde_json::from_slice::<Value>(line).is_ok();
    if parses(line) {
        return Cow::Borrowed(line);
    }
    let mended = without_lone_surrogates(line);
    if parses(&mended) {
        return Cow::Owned(mended);
    }
    match id_of(line) {
        Some(id) => {
            let request = json!({"jsonrpc": "2.0", "id": id, "method": UNPARSABLE});
            Cow::Owned(format!("{request}\n").into_bytes())
        }
        None => Cow::Borrowed(line),
    }
}

/// Returns the code unit of an escape `\uXXXX` at the start of the bytes.
fn code_unit(bytes: &[u8]) -> Option<u16> {
    let digits = std::str::from_utf8(bytes.strip_prefix(b"\\u")?.get(..4)?).ok()?;
    u16::from_str_radix(digits, 16).ok()
}

/// Replaces each lone surrogate by U+FFFD.
fn without_lone_surrogates(line: &[u8]) -> Vec<u8> {
    let (mut mended, mut left) = (Vec::with_capacity(line.len()), line);
    while let Some(byte) = left.first() {
        let next = code_unit(left.get(6..).unwrap_or_default());
        let (taken, lone) = match (byte, code_unit(left)) {
            (b'\\', Some(0xd800..=0xdbff)) if matches!(next, Some(0xdc00..=0xdfff)) => (12, false),
            (b'\\', Some(0xd800..=0xdfff)) => (6, true),
            (b'\\', _) => (2, false),
            _ => (1, false),
        };
        let (part, rest) = left.split_at(taken.min(left.len()));
        mended.extend_from_slice(if lone { b"\\ufffd" } else { part });
        left = rest;
    }
    mended
}

/// Returns the ID of a request: a number or string in the outermost object.
fn id_of(line: &[u8]) -> Option<Value> {
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(byte) = line.get(at) {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let start = at + 1;
                at = start;
                while *line.get(at)? != b'"' {
                    at += if *line.get(at)? == b'\\' { 2 } else { 1 };
                }
                let after = line.get(at + 1..)?.trim_ascii_start();
                if depth == 1 && line.get(start..at)? == b"id" && after.starts_with(b":") {
                    let value = serde_json::Deserializer::from_slice(after.get(1..)?);
                    let id = value.into_iter::<Value>().next()?.ok()?;
                    return Some(id).filter(|id| id.is_i64() || id.is_u64() || id.is_string());
                }
            }
            _ => {}
        }
        at += 1;
    }
    None
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
                let mut lines = JsonLineReader::new(io::Cursor::new(text), 100);
                lines.read_to_end(&mut all).await
            })
        };
        let lines = b"a line of twenty..\n".repeat(1000);
        assert_eq!(read(lines.clone()).expect("short lines"), lines.len());
        assert!(read(vec![b'x'; 101]).is_err());
        assert!(read(vec![b'x'; 100]).is_ok());
    }

    #[test]
    fn json_of_other_languages_is_mended_or_answered() {
        let mended = |line: &str| String::from_utf8(mend(line.as_bytes()).into_owned()).unwrap();
        for valid in [r#"{"id":1,"a":"\ud83d\ude00 \\ud800"}"#, "{}", ""] {
            assert_eq!(mended(valid), valid);
        }
        assert_eq!(
            mended(r#"{"id":1,"a":"\ud800x\udc00\\\ud83d\ude00"}"#),
            r#"{"id":1,"a":"\ufffdx\ufffd\\\ud83d\ude00"}"#
        );
        let error =
            |id: &str| format!("{{\"id\":{id},\"jsonrpc\":\"2.0\",\"method\":\"{UNPARSABLE}\"}}\n");
        assert_eq!(
            mended(r#"{"params":{"id":3,"a":Infinity},"id": 7}"#),
            error("7")
        );
        assert_eq!(mended(r#"{"id":"a\"b","x":1e400}"#), error(r#""a\"b""#));
        for hopeless in [
            r#"{"id":{"a":1},"x":NaN}"#,
            "\"",
            "{\"id\"",
            "{\"id\":1e999}",
            "\\",
        ] {
            assert_eq!(mended(hopeless), hopeless);
        }
    }
}
