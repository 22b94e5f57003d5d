//! As much of HTTP/1.1 (RFC 9112) as container engines speak to a plugin: POST, a body with its length, connections that stay open.
//!
//! The head is parsed by `httparse`, the parser below hyper. Headers are not judged: Docker 20.10 sends `Host:` without a value and no Content-Type.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Longest head and body in bytes, and most headers.
pub const HEAD_BYTES_MAX: usize = 64 << 10;
/// See [`HEAD_BYTES_MAX`].
pub const BODY_BYTES_MAX: usize = 1 << 20;
const HEADERS_MAX: usize = 100;
const READ_BYTES: usize = 4096;

/// How long a request that has begun may take to arrive, and an answer to be taken.
const PART_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a connection may say nothing.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

/// What engines expect.
const CONTENT_TYPE: &str = "application/vnd.docker.plugins.v1.1+json";

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Such as `POST`.
    pub method: String,
    /// Such as `/VolumeDriver.Get`.
    pub path: String,
    /// The body.
    pub body: Vec<u8>,
}

/// An answer: a status and JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Such as 200.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

/// A head that was understood.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    method: String,
    path: String,
    bytes: usize,
    body_bytes: usize,
    keep: bool,
    waits: bool,
}

/// A connection, and what was read of it and not used.
struct Connection {
    stream: UnixStream,
    buffer: Vec<u8>,
}

/// Answers the requests of a connection, one after the other, until it ends.
///
/// # Errors
/// Those of the connection; what is not HTTP is answered, and ends it.
pub fn converse(stream: UnixStream, answer: impl Fn(&Request) -> Response) -> io::Result<()> {
    stream.set_write_timeout(Some(PART_TIMEOUT))?;
    let mut connection = Connection { stream, buffer: Vec::new() };
    loop {
        let head = match connection.head()? {
            Ok(Some(head)) => head,
            Ok(None) => return Ok(()),
            Err(status) => return connection.refuse(status),
        };
        if head.body_bytes > BODY_BYTES_MAX {
            return connection.refuse(413);
        }
        if head.waits {
            connection.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        let body = connection.body(&head)?;
        let response = answer(&Request { method: head.method, path: head.path, body });
        connection.send(&response, head.keep)?;
        if !head.keep {
            return Ok(());
        }
    }
}

impl Connection {
    /// The next head; `None` at the end of the connection, or the status of what is none.
    fn head(&mut self) -> io::Result<Result<Option<Head>, u16>> {
        loop {
            match parse(&self.buffer) {
                Ok(None) if self.buffer.len() > HEAD_BYTES_MAX => return Ok(Err(431)),
                Ok(None) => {}
                other => return Ok(other),
            }
            self.stream.set_read_timeout(Some(if self.buffer.is_empty() { IDLE_TIMEOUT } else { PART_TIMEOUT }))?;
            if self.read()? == 0 {
                return if self.buffer.is_empty() { Ok(Ok(None)) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    fn body(&mut self, head: &Head) -> io::Result<Vec<u8>> {
        let end = head.bytes + head.body_bytes;
        self.stream.set_read_timeout(Some(PART_TIMEOUT))?;
        while self.buffer.len() < end {
            if self.read()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let rest = self.buffer.split_off(end);
        let body = self.buffer.split_off(head.bytes);
        self.buffer = rest;
        Ok(body)
    }

    fn read(&mut self) -> io::Result<usize> {
        let mut part = [0; READ_BYTES];
        loop {
            match self.stream.read(&mut part) {
                Ok(count) => {
                    self.buffer.extend_from_slice(part.get(..count).unwrap_or_default());
                    return Ok(count);
                }
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(cause),
            }
        }
    }

    fn send(&mut self, response: &Response, keep: bool) -> io::Result<()> {
        let Response { status, body } = response;
        let end = if keep { "" } else { "Connection: close\r\n" };
        let head = format!("HTTP/1.1 {status} {}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\n{end}\r\n", reason(*status), body.len());
        self.stream.write_all(&[head.as_bytes(), body].concat())
    }

    fn refuse(&mut self, status: u16) -> io::Result<()> {
        let body = format!("{{\"Err\":\"{}\"}}\n", reason(status)).into_bytes();
        self.send(&Response { status, body }, false)
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        411 => "Length Required",
        413 => "Content Too Large",
        431 => "Request Header Fields Too Large",
        _ => "Internal Server Error",
    }
}

/// The head at the beginning of some bytes; `None`: it is not all there.
fn parse(bytes: &[u8]) -> Result<Option<Head>, u16> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(431),
        Err(_) => return Err(400),
    };
    let (Some(method), Some(path)) = (request.method, request.path) else { return Err(400) };
    let mut head =
        Head { method: method.to_owned(), path: path.to_owned(), bytes: length, body_bytes: 0, keep: request.version == Some(1), waits: false };
    let mut told = None;
    for header in request.headers.iter() {
        let value = std::str::from_utf8(header.value).unwrap_or_default().trim();
        match header.name.to_ascii_lowercase().as_str() {
            "content-length" => {
                let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
                let bytes: usize = value.parse().ok().filter(|_| digits).ok_or(400_u16)?;
                // Two that differ would be two readings of one request.
                if told.replace(bytes).is_some_and(|before| before != bytes) {
                    return Err(400);
                }
                head.body_bytes = bytes;
            }
            // No engine sends one; its length would be known at its end only.
            "transfer-encoding" => return Err(411),
            "connection" if value.eq_ignore_ascii_case("close") => head.keep = false,
            "connection" if value.eq_ignore_ascii_case("keep-alive") => head.keep = true,
            "expect" => head.waits = value.eq_ignore_ascii_case("100-continue"),
            _ => {}
        }
    }
    Ok(Some(head))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes back for some bytes, to a server that answers with what it was asked.
    fn said(bytes: &[u8]) -> String {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || {
            converse(theirs, |request| Response { status: 200, body: [request.path.as_bytes(), b" ", &request.body].concat() })
        });
        let mut stream = ours;
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        let _ = server.join().unwrap();
        text
    }

    #[test]
    fn a_connection_answers_many_requests_with_empty_hosts_and_no_types() {
        let text = said(b"POST /a HTTP/1.1\r\nHost: \r\nContent-Length: 3\r\n\r\n{}\nPOST /b HTTP/1.1\r\nHost:\r\n\r\nPOST /c HTTP/1.1\r\nConnection: close\r\n\r\nPOST /d HTTP/1.1\r\n\r\n");
        let bodies: Vec<&str> = text.split("\r\n\r\n").collect();
        assert!(bodies[1].starts_with("/a {}\nHTTP/1.1 200 OK") && bodies[2].starts_with("/b HTTP/1.1") && bodies[3] == "/c ", "{text}");
    }

    #[test]
    fn what_is_not_understood_is_refused_and_ends_the_connection() {
        let cases: [(&[u8], &str); 7] = [
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "400"),
            (b"POST /a HTTP/1.1\r\nContent-Length: x\r\n\r\n", "400"),
            (b"POST /a HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "400"),
            (b"POST /a HTTP/1.1\r\nContent-Length: +1\r\n\r\na", "400"),
            (b"POST /a HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\na", "400"),
            (b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "411"),
            (b"POST /a HTTP/1.1\r\nContent-Length: 1048577\r\n\r\n", "413"),
        ];
        for (bytes, status) in cases {
            assert!(said(bytes).starts_with(&format!("HTTP/1.1 {status} ")), "{}: {}", String::from_utf8_lossy(bytes), said(bytes));
        }
        let headers = "X: y\r\n".repeat(HEADERS_MAX + 1);
        assert!(said(format!("POST /a HTTP/1.1\r\n{headers}\r\n").as_bytes()).starts_with("HTTP/1.1 431 "));
        assert_eq!(said(b"POST /a HTTP/1.1\r\nContent-Length: 5\r\n\r\nab"), "", "half a request is no request");
    }

    #[test]
    fn old_clients_and_careful_ones_are_answered() {
        assert!(said(b"POST /a HTTP/1.0\r\n\r\n").contains("Connection: close"));
        assert!(
            said(b"POST /a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx")
                .starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")
        );
    }
}
