//! The subset of HTTP/1.1 that container engines use for plugins: POST, bodies with Content-Length,
//! and persistent connections.
//!
//! Headers are not validated: Docker 20.10 sends an empty `Host:` and no Content-Type.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{CONNECTION, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulConnection, GracefulShutdown};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::sleep;

use super::process_ident::ProcessIdent;
use super::timed::{ConnectionProgress, Connections, Timed};

/// Maximum size of head and body in bytes, and maximum number of headers.
const HEAD_BYTES_MAX: usize = 64 << 10;
const BODY_BYTES_MAX: u64 = 1 << 20;
const HEADERS_MAX: usize = 100;
/// Maximum number of connections; an engine uses one per container to start. A further one closes
/// the connection that has been silent longest.
pub const CONNECTIONS_MAX: usize = 256;
/// Timeout for the rest of a request head once begun, for a request body, and for each stall of a
/// response.
const PART_TIMEOUT: Duration = if cfg!(test) {
    Duration::from_millis(200)
} else {
    Duration::from_secs(30)
};
/// Maximum idle time of a connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(5);
/// Content type that engines expect.
pub const TYPE: &str = "application/vnd.docker.plugins.v1.1+json";

/// An HTTP request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Method, such as `POST`.
    pub method: String,
    /// Path, such as `/VolumeDriver.Get`.
    pub path: String,
    /// Body.
    pub body: Vec<u8>,
}

/// An HTTP response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Status, such as 200.
    pub status: u16,
    /// Content type of the body.
    pub kind: &'static str,
    /// Body.
    pub body: Vec<u8>,
}

/// Handler of requests, with the client process if known. It may block.
pub type Answer = dyn Fn(&Request, Option<ProcessIdent>) -> Response + Send + Sync;

/// Serves connections until `stop`, and completes the requests received by then.
pub async fn serve(listener: UnixListener, stop: impl Future<Output = ()>, answer: Arc<Answer>) {
    let mut connections = Connections::new(CONNECTIONS_MAX);
    let ending = GracefulShutdown::new();
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection was lost");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(turn) = connections.place() else {
            tracing::warn!("{CONNECTIONS_MAX} requests are being answered: one was refused");
            continue;
        };
        let connection = ending.watch(connection(stream, turn, Arc::clone(&answer)));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended");
            }
        });
    }
    drop((listener, connections));
    ending.shutdown().await;
}

/// Serves the requests of a connection sequentially until it ends. Input that is not HTTP gets an
/// error response, and ends it.
fn connection(
    stream: UnixStream,
    turn: ConnectionProgress,
    answer: Arc<Answer>,
) -> impl GracefulConnection<Error = hyper::Error> + Send {
    let asker = ProcessIdent::of(&stream);
    let stream = TokioIo::new(Timed::new(stream, turn.clone(), Some(PART_TIMEOUT)));
    let service = service_fn(move |request| {
        turn.begun();
        answered(request, asker, turn.clone(), Arc::clone(&answer))
    });
    let mut http = http1::Builder::new();
    http.half_close(true)
        .title_case_headers(true)
        .auto_date_header(false);
    http.max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT);
    http.serve_connection(stream, service)
}

type Answered = Result<hyper::Response<Full<Bytes>>, Box<dyn Error + Send + Sync>>;

async fn answered(
    request: hyper::Request<Incoming>,
    asker: Option<ProcessIdent>,
    turn: ConnectionProgress,
    answer: Arc<Answer>,
) -> Answered {
    let (head, body) = request.into_parts();
    match body.size_hint().exact() {
        // No engine sends a chunked body; its length would be known only at its end.
        None => return refused(411, "the length of the body is missing"),
        Some(bytes) if bytes > BODY_BYTES_MAX => return refused(413, "the body is too long"),
        Some(_) => {}
    }
    let body = body.collect().await?.to_bytes().into();
    let _answering = turn.answering();
    let request = Request {
        method: head.method.to_string(),
        path: head.uri.path().to_owned(),
        body,
    };
    let Response { status, kind, body } =
        tokio::task::spawn_blocking(move || answer(&request, asker)).await?;
    Ok(hyper::Response::builder()
        .status(status)
        .header(CONTENT_TYPE, kind)
        .body(body.into())?)
}

/// Creates an error response that closes the connection.
fn refused(status: u16, why: &str) -> Answered {
    let body = format!("{{\"Err\":\"{why}\"}}\n");
    Ok(hyper::Response::builder()
        .status(status)
        .header(CONTENT_TYPE, TYPE)
        .header(CONNECTION, "close")
        .body(body.into())?)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    /// Returns the response to some bytes, from a server that echoes the request.
    fn said(bytes: &[u8]) -> String {
        let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || {
            let answer = |request: &Request, _| Response {
                status: 200,
                kind: TYPE,
                body: [request.path.as_bytes(), b" ", &request.body].concat(),
            };
            theirs.set_nonblocking(true).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            // Input that is not HTTP is also an error of the connection.
            let _ = runtime.block_on(async {
                connection(
                    UnixStream::from_std(theirs).unwrap(),
                    Connections::new(1).place().unwrap(),
                    Arc::new(answer),
                )
                .await
            });
        });
        ours.write_all(bytes).unwrap();
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        let mut text = String::new();
        let _ = ours.read_to_string(&mut text);
        server.join().unwrap();
        text
    }

    #[test]
    fn a_connection_answers_many_requests_with_empty_hosts_and_no_types() {
        let text = said(b"POST /a HTTP/1.1\r\nHost: \r\nContent-Length: 3\r\n\r\n{}\nPOST /b HTTP/1.1\r\nHost:\r\n\r\nPOST /c HTTP/1.1\r\nConnection: close\r\n\r\nPOST /d HTTP/1.1\r\n\r\n");
        let bodies: Vec<&str> = text.split("\r\n\r\n").collect();
        assert!(
            bodies[1].starts_with("/a {}\nHTTP/1.1 200 OK")
                && bodies[2].starts_with("/b HTTP/1.1")
                && bodies[3] == "/c ",
            "{text}"
        );
    }

    #[test]
    fn what_is_not_understood_is_refused_and_ends_the_connection() {
        let cases: [(&[u8], &str); 7] = [
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "400"),
            (b"POST /a HTTP/1.1\r\nContent-Length: x\r\n\r\n", "400"),
            (b"POST /a HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "400"),
            (b"POST /a HTTP/1.1\r\nContent-Length: +1\r\n\r\na", "400"),
            (
                b"POST /a HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\na",
                "400",
            ),
            (
                b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                "411",
            ),
            (
                b"POST /a HTTP/1.1\r\nContent-Length: 1048577\r\n\r\n",
                "413",
            ),
        ];
        for (bytes, status) in cases {
            assert!(
                said(bytes).starts_with(&format!("HTTP/1.1 {status} ")),
                "{}: {}",
                String::from_utf8_lossy(bytes),
                said(bytes)
            );
        }
        let headers = "X: y\r\n".repeat(HEADERS_MAX + 1);
        assert!(
            said(format!("POST /a HTTP/1.1\r\n{headers}\r\n").as_bytes())
                .starts_with("HTTP/1.1 431 ")
        );
        assert_eq!(
            said(b"POST /a HTTP/1.1\r\nContent-Length: 5\r\n\r\nab"),
            "",
            "half a request is no request"
        );
    }

    /// An incomplete head or body, or a response that is not read, ends a connection. Silence and a
    /// slow handler do not.
    #[test]
    fn nobody_keeps_us_waiting_but_by_silence() {
        let big = vec![b'x'; 8 << 20];
        let (connect, ended) = (
            std::os::unix::net::UnixStream::pair,
            std::sync::mpsc::channel(),
        );
        let serve = |bytes: &[u8]| {
            let ((mut ours, theirs), tell, big) =
                (connect().unwrap(), ended.0.clone(), big.clone());
            std::thread::spawn(move || {
                let answer = move |request: &Request, _: Option<ProcessIdent>| {
                    if request.path == "/slow" {
                        std::thread::sleep(PART_TIMEOUT * 3);
                    }
                    Response {
                        status: 200,
                        kind: TYPE,
                        body: if request.path == "/big" {
                            big.clone()
                        } else {
                            Vec::new()
                        },
                    }
                };
                theirs.set_nonblocking(true).unwrap();
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                let _ = runtime.block_on(async {
                    connection(
                        UnixStream::from_std(theirs).unwrap(),
                        Connections::new(1).place().unwrap(),
                        Arc::new(answer),
                    )
                    .await
                });
                let _ = tell.send(());
            });
            ours.write_all(bytes).unwrap();
            ours
        };
        for bytes in [
            &b"POST /a HT"[..],
            b"POST /a HTTP/1.1\r\nContent-Length: 5\r\n\r\nab",
            b"POST /big HTTP/1.1\r\n\r\n",
        ] {
            let _ours = serve(bytes);
            ended
                .1
                .recv_timeout(PART_TIMEOUT * 20)
                .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(bytes)));
        }
        let (_silent, mut slow) = (serve(b""), serve(b"POST /slow HTTP/1.1\r\n\r\n"));
        let mut answer = [0; 15];
        slow.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200 OK");
        assert!(
            ended.1.recv_timeout(PART_TIMEOUT * 3).is_err(),
            "both are there"
        );
    }

    #[test]
    fn old_clients_and_careful_ones_are_answered() {
        let old = said(b"POST /a HTTP/1.0\r\n\r\nPOST /b HTTP/1.0\r\n\r\n");
        assert!(
            old.starts_with("HTTP/1.0 200 OK\r\n") && old.ends_with("/a "),
            "one request, and the connection ends: {old}"
        );
        assert!(
            said(b"POST /a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx")
                .starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")
        );
    }
}
