//! HTTP requests to the server of a repository. A request has no time limit while data is
//! transferred: a pack may take minutes over a slow line. A stalled server is abandoned soon.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions, PutPayload};
use reqwest::header::CONTENT_RANGE;
use reqwest::{Body, Client, Request, Response, StatusCode, Url};

use crate::http::{self, first_cause, tls_trouble};

/// Time limit of a connection attempt.
pub const CONNECT_MAX: Duration = Duration::from_secs(15);
/// Chunk size of sent data, so that progress is visible.
const PIECE_BYTES: usize = 64 << 10;
/// Number of progress checks within the idle timeout.
const LOOKS: u32 = 6;
/// Size limit of the response to sent data.
const SAID_BYTES_MAX: usize = 256 << 10;
/// Limit of characters shown.
const SHOWN_MAX: usize = 200;

/// The reason why a request failed, for display, and a hint.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}")]
pub struct RemoteTrouble {
    /// Without a full stop, and without secrets.
    pub what: String,
    /// The hint, a sentence.
    pub advice: Option<&'static str>,
}

impl RemoteTrouble {
    /// Describes a connection failure.
    pub fn on_the_way(doing: &str, failure: &(dyn Error + 'static)) -> RemoteTrouble {
        let said = brief(&first_cause(failure).to_string());
        if let Some((why, advice)) = tls_trouble(&said) {
            return RemoteTrouble {
                what: format!("{doing}: {why} ({said})"),
                advice: Some(advice),
            };
        }
        RemoteTrouble {
            what: format!("{doing}: {said}"),
            advice: None,
        }
    }
}

/// Shortens foreign text, without control characters.
pub fn brief(said: &str) -> String {
    let letters = said.chars().filter(|letter| !letter.is_control());
    letters.take(SHOWN_MAX).collect()
}

/// No data was sent or received for too long.
#[derive(Debug, thiserror::Error)]
#[error("nothing has moved for {} s", .0.as_secs())]
struct Stalled(Duration);

/// The response is too long.
#[derive(Debug, thiserror::Error)]
#[error("its answer is too long")]
struct TooLong;

/// Splits content into chunks to send.
pub fn payload(content: impl IntoIterator<Item = Bytes>) -> PutPayload {
    let pieces = content.into_iter().flat_map(|mut bytes| {
        std::iter::from_fn(move || {
            let piece = bytes.split_to(bytes.len().min(PIECE_BYTES));
            (!piece.is_empty()).then_some(piece)
        })
    });
    pieces.collect()
}

/// An HTTP client with an idle timeout. It follows no redirects.
#[derive(Debug)]
pub struct IdleTimeoutClient {
    /// For requests without a body: the library's read timeout applies.
    reading: Client,
    /// For requests with a body: no data is received while it is sent.
    sending: Client,
    idle: Duration,
}

impl IdleTimeoutClient {
    /// Creates a client; sends nothing yet. `plain`: without TLS; `direct`: ignores the proxies of
    /// the environment; `connect`: time limit of a connection attempt.
    pub fn new(plain: bool, direct: bool, connect: Duration) -> reqwest::Result<IdleTimeoutClient> {
        let idle = http::idle();
        let client = || {
            let client = http::client(plain).connect_timeout(connect.min(idle));
            let client = if direct { client.no_proxy() } else { client };
            client.http1_only()
        };
        Ok(IdleTimeoutClient {
            reading: client().read_timeout(idle).build()?,
            sending: client().build()?,
            idle,
        })
    }

    async fn answer(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if request.body().content_length() == 0 {
            let answer = self.reading.call(request).await.map(as_part);
            return answer.map_err(|cause| {
                let is_stall = cause.kind() == HttpErrorKind::Timeout && !is_connect(&cause);
                if is_stall { self.stalled() } else { cause }
            });
        }
        let (parts, body) = request.into_parts();
        let moved = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&moved);
        let body = body.map_frame(move |frame| {
            count.fetch_add(1, Ordering::Relaxed);
            frame
        });
        let url = Url::parse(&parts.uri.to_string())
            .map_err(|cause| HttpError::new(HttpErrorKind::Unknown, cause))?;
        let mut request = Request::new(parts.method, url);
        *request.headers_mut() = parts.headers;
        *request.body_mut() = Some(Body::wrap(body));
        self.sent(self.sending.execute(request), &moved).await
    }

    /// Waits for the response to a request whose body counts its consumed chunks.
    async fn sent(
        &self,
        asked: impl Future<Output = reqwest::Result<Response>>,
        moved: &AtomicU64,
    ) -> Result<HttpResponse, HttpError> {
        let mut asked = std::pin::pin!(asked);
        let mut still = 0;
        while still < LOOKS {
            let before = moved.load(Ordering::Relaxed);
            match tokio::time::timeout(self.idle / LOOKS, &mut asked).await {
                Ok(answer) => return self.said(answer.map_err(of_sending)?).await,
                Err(_) if moved.load(Ordering::Relaxed) > before => still = 0,
                Err(_) => still += 1,
            }
        }
        Err(self.stalled())
    }

    /// Reads the response to sent data, which is short.
    async fn said(&self, mut answer: Response) -> Result<HttpResponse, HttpError> {
        let mut all = Vec::new();
        loop {
            let next = tokio::time::timeout(self.idle, answer.chunk()).await;
            match next.map_err(|_| self.stalled())?.map_err(of_sending)? {
                Some(bytes) if all.len() + bytes.len() > SAID_BYTES_MAX => {
                    return Err(HttpError::new(HttpErrorKind::Decode, TooLong));
                }
                Some(bytes) => all.extend_from_slice(&bytes),
                None => break,
            }
        }
        let mut response = HttpResponse::new(HttpResponseBody::from(all));
        *response.status_mut() = answer.status();
        *response.headers_mut() = std::mem::take(answer.headers_mut());
        Ok(response)
    }

    fn stalled(&self) -> HttpError {
        HttpError::new(HttpErrorKind::Timeout, Stalled(self.idle))
    }
}

/// rclone's server marks a partial response only with a header, not with the status.
fn as_part(mut answer: HttpResponse) -> HttpResponse {
    if answer.status() == StatusCode::OK && answer.headers().contains_key(CONTENT_RANGE) {
        *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    answer
}

/// Returns whether the connection failed.
fn is_connect(cause: &HttpError) -> bool {
    let source = cause.source();
    source.is_some_and(|source| {
        source
            .downcast_ref::<reqwest::Error>()
            .is_some_and(reqwest::Error::is_connect)
    })
}

/// Marks a failed send as retriable: stored objects have IDs, so sending one twice is harmless.
fn of_sending(cause: reqwest::Error) -> HttpError {
    let kind = match () {
        () if cause.is_connect() => HttpErrorKind::Connect,
        () if cause.is_builder() => HttpErrorKind::Unknown,
        () => HttpErrorKind::Interrupted,
    };
    HttpError::new(kind, cause.without_url())
}

impl HttpService for IdleTimeoutClient {
    fn call<'me, 'asked>(
        &'me self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'asked>>
    where
        'me: 'asked,
        Self: 'asked,
    {
        Box::pin(self.answer(request))
    }
}

/// Creates clients for the library, which uses other options for its requests for credentials on a
/// virtual machine.
#[derive(Debug)]
pub struct IdleTimeoutConnector;

impl HttpConnector for IdleTimeoutConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let of = |key| options.get_config_value(&key);
        let plain = of(ClientConfigKey::AllowHttp).is_some_and(|value| value == "true");
        let connect = of(ClientConfigKey::ConnectTimeout);
        let connect = connect.and_then(|text| text.strip_suffix('s')?.parse().ok());
        let connect = connect.map_or(CONNECT_MAX, Duration::from_secs);
        let patient = IdleTimeoutClient::new(plain, false, connect).map_err(|cause| {
            object_store::Error::Generic {
                store: "S3",
                source: Box::new(cause),
            }
        })?;
        Ok(HttpClient::new(patient))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_sent_in_pieces_that_are_all_of_it() {
        let content = [
            Bytes::from(vec![1; PIECE_BYTES * 2 + 1]),
            Bytes::new(),
            Bytes::from(vec![2; 3]),
        ];
        let payload = payload(content.clone());
        assert!(payload.iter().all(|piece| piece.len() <= PIECE_BYTES));
        assert_eq!(payload.iter().count(), 4);
        assert_eq!(Bytes::from(payload), content.concat());
    }

    #[test]
    fn what_a_server_says_is_short_and_harmless() {
        assert_eq!(brief("a\u{1b}[31m\nb"), "a[31mb");
        assert_eq!(brief(&"x".repeat(9000)).len(), SHOWN_MAX);
    }
}
