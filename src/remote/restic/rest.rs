//! A repository behind a REST server: `rest:http(s)://HOST[:PORT]/[PATH]`, as served by restic's
//! server and rclone.
//!
//! Credentials are taken from the environment, `RESTIC_REST_USERNAME` and `RESTIC_REST_PASSWORD`.
//! They are sent only to this server, because redirects are not followed. Every answer is limited
//! in size.

use std::borrow::Cow;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use object_store::client::{HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpService};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, HeaderValue, RANGE};
use reqwest::{Method, StatusCode, Url};
use rustic_core::{
    BytesList, ErrorKind, FileType, Id, ReadBackend, RusticError, RusticResult, WriteBackend,
};
use serde::Deserialize;
use tokio::runtime::Runtime;

use super::idle_client::{CONNECT_MAX, IdleTimeoutClient, RemoteTrouble, brief, payload};
use super::rclone::Rclone;
use crate::http::{first_cause, idle};
use crate::limits::{Limits, RAISE};
use ckptfs_api::{Code, VerbResult, hinted};

/// Number of retries, after pauses that double.
const RETRIES: u32 = 6;
/// Number of retries while programs wait.
const QUICK_RETRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(100);
/// A shorter answer must be complete within the idle timeout. Everything read before the password
/// of the repository is verified is short.
const SMALL_BYTES: usize = 64 << 10;
/// Size limit of the body of an error response.
const REASON_BYTES_MAX: usize = 64 << 10;
/// The list format with sizes.
const LISTS: HeaderValue = HeaderValue::from_static("application/vnd.x.restic.rest.v2");

const WHO: &str = "RESTIC_REST_USERNAME and RESTIC_REST_PASSWORD in the environment say who asks: they are wrong or missing, \
     or may not do this";

/// Credentials: a name and a password.
pub type Login = (String, String);

/// A server.
#[derive(Debug)]
pub struct Rest {
    client: IdleTimeoutClient,
    base: Url,
    limits: Limits,
    said: Option<HeaderValue>,
    retries: u32,
    runtime: Runtime,
    /// Our rclone server, if any; it ends with this.
    _server: Option<Rclone>,
    location: String,
}

/// A failed attempt, by whether it may be retried.
enum AttemptFailure {
    For(RemoteTrouble),
    Passing(RemoteTrouble),
    /// Retried once, because the connection may have stalled.
    Stalled(RemoteTrouble),
}

impl Rest {
    /// Creates a client for a server at `http(s)://HOST[:PORT]/[PATH]`. Sends nothing yet. `quick`:
    /// failures are reported soon.
    ///
    /// # Errors
    /// `bad-remote`.
    pub fn new(at: &str, login: Option<Login>, quick: bool) -> VerbResult<Rest> {
        let bad = |why: String| {
            hinted(
                Code::BadRemote,
                format!("rest:{at}: {why}"),
                "it is rest:http(s)://HOST[:PORT]/[PATH]",
            )
        };
        let base = Url::parse(&format!("{}/", at.trim_end_matches('/')));
        let base = base.map_err(|cause| bad(cause.to_string()))?;
        if !matches!(base.scheme(), "http" | "https") {
            return Err(bad("it is neither http nor https".to_owned()));
        }
        // A proxy must not receive the password of a local server.
        let is_here = base.host_str() == Some("127.0.0.1");
        let client = IdleTimeoutClient::new(base.scheme() == "http", is_here, CONNECT_MAX)
            .map_err(|cause| bad(first_cause(&cause).to_string()))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(|cause| bad(cause.to_string()))?;
        let said = login.and_then(|(user, password)| {
            let said = format!("Basic {}", STANDARD.encode(format!("{user}:{password}")));
            let mut said = HeaderValue::from_str(&said).ok()?;
            said.set_sensitive(true);
            Some(said)
        });
        Ok(Rest {
            client,
            limits: Limits::new(),
            said,
            retries: if quick { QUICK_RETRIES } else { RETRIES },
            runtime,
            _server: None,
            location: format!("rest:{base}"),
            base,
        })
    }

    /// Starts rclone, which serves a remote to this process only.
    ///
    /// # Errors
    /// `remote-failed` if it does not start.
    pub fn by_rclone(remote: &str, quick: bool) -> VerbResult<Rest> {
        let rclone = Rclone::start(remote)?;
        let others = Rest::new(rclone.address(), None, true)?;
        let config = others.url(FileType::Config, &Id::default());
        if others.ask(Method::HEAD, &config, None, None, 0).is_ok() {
            return Err(hinted(
                Code::RemoteFailed,
                "rclone would serve the repository to everybody on this machine",
                "rclone 1.52.2 or later is needed",
            ));
        }
        let rest = Rest::new(rclone.address(), Some(rclone.login()), quick)?;
        Ok(Rest {
            location: format!("rclone:{remote}"),
            _server: Some(rclone),
            ..rest
        })
    }

    fn url(&self, tpe: FileType, id: &Id) -> Url {
        match tpe {
            FileType::Config => self.below("config"),
            tpe => self.below(&format!("{}/{}", tpe.dirname(), &*id.to_hex())),
        }
    }

    fn below(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        url.set_path(&format!("{}{path}", self.base.path()));
        url
    }

    /// Sends a request, with retries. Returns any response that is not a failure of the server.
    fn ask(
        &self,
        method: Method,
        url: &Url,
        header: Option<(reqwest::header::HeaderName, HeaderValue)>,
        body: Option<BytesList>,
        most: usize,
    ) -> RusticResult<(StatusCode, Bytes)> {
        let doing = format!("{method} {}", url.path());
        let payload = body.map(|body| payload(body.into_vec()));
        let ask = || {
            let body = payload
                .clone()
                .map_or_else(HttpRequestBody::empty, HttpRequestBody::from);
            let mut request = HttpRequest::new(body);
            *request.method_mut() = method.clone();
            let uri = url.as_str().parse();
            *request.uri_mut() = uri.map_err(|_| {
                AttemptFailure::For(RemoteTrouble {
                    what: format!("{doing}: it is no address"),
                    advice: None,
                })
            })?;
            if payload.is_some() || method == Method::POST {
                let length = request.body().content_length();
                request
                    .headers_mut()
                    .insert(CONTENT_LENGTH, HeaderValue::from(length));
            }
            if let Some(said) = &self.said {
                request.headers_mut().insert(AUTHORIZATION, said.clone());
            }
            if let Some((name, value)) = header.clone() {
                request.headers_mut().insert(name, value);
            }
            let is_short = payload.is_none() && most <= SMALL_BYTES;
            let whole = self.whole(&doing, request, most, is_short);
            self.runtime.block_on(whole)
        };
        let (mut pause, mut stalls) = (PAUSE, 0);
        for left in (0..=self.retries).rev() {
            let trouble = match ask() {
                Ok(answer) => return Ok(answer),
                Err(AttemptFailure::Passing(_)) if left > 0 => None,
                Err(AttemptFailure::Stalled(trouble)) => {
                    stalls += 1;
                    (stalls > 1 || left == 0 || self.retries == QUICK_RETRIES).then_some(trouble)
                }
                Err(AttemptFailure::For(trouble) | AttemptFailure::Passing(trouble)) => {
                    Some(trouble)
                }
            };
            if let Some(trouble) = trouble {
                return Err(told(trouble));
            }
            std::thread::sleep(pause);
            pause *= 2;
        }
        Err(told(RemoteTrouble {
            what: format!("{doing}: it was tried in vain"),
            advice: None,
        }))
    }

    /// Sends a request once; an answer that `is_short` must be complete within the idle timeout.
    async fn whole(
        &self,
        doing: &str,
        request: HttpRequest,
        most: usize,
        is_short: bool,
    ) -> Result<(StatusCode, Bytes), AttemptFailure> {
        let once = self.once(doing, request, most);
        if !is_short {
            return once.await;
        }
        let late = |_| {
            AttemptFailure::Stalled(RemoteTrouble {
                what: format!(
                    "{doing}: the answer is not whole after {} s",
                    idle().as_secs()
                ),
                advice: None,
            })
        };
        tokio::time::timeout(idle(), once).await.map_err(late)?
    }

    async fn once(
        &self,
        doing: &str,
        request: HttpRequest,
        most: usize,
    ) -> Result<(StatusCode, Bytes), AttemptFailure> {
        let way = |cause: &HttpError| {
            let trouble = RemoteTrouble::on_the_way(doing, cause);
            match cause.kind() {
                _ if trouble.advice.is_some() => AttemptFailure::For(trouble),
                HttpErrorKind::Timeout => AttemptFailure::Stalled(trouble),
                _ => AttemptFailure::Passing(trouble),
            }
        };
        let answer = self
            .client
            .call(request)
            .await
            .map_err(|cause| way(&cause))?;
        let status = answer.status();
        let is_fine = status.is_success() || status == StatusCode::NOT_FOUND;
        let most = if status.is_success() {
            most
        } else {
            REASON_BYTES_MAX
        };
        let all = Limited::new(answer.into_body(), most).collect().await;
        let all = all.map(http_body_util::Collected::to_bytes);
        if is_fine {
            return match all {
                Ok(bytes) => Ok((status, bytes)),
                Err(cause) => Err(match cause.downcast::<HttpError>() {
                    Ok(cause) => way(&cause),
                    Err(_) => AttemptFailure::For(RemoteTrouble {
                        what: format!("{doing}: its answer has more than {most} bytes"),
                        advice: Some(RAISE),
                    }),
                }),
            };
        }
        let reason = all.unwrap_or_default();
        let reason = brief(String::from_utf8_lossy(&reason).trim());
        let reason = if reason.is_empty() {
            reason
        } else {
            format!(": {reason}")
        };
        let said = |advice| RemoteTrouble {
            what: format!("{doing}: the server says {status}{reason}"),
            advice,
        };
        Err(match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                AttemptFailure::For(said(Some(WHO)))
            }
            StatusCode::TOO_MANY_REQUESTS => AttemptFailure::Passing(said(None)),
            status if status.is_server_error() => AttemptFailure::Passing(said(None)),
            status if status.is_redirection() => AttemptFailure::For(said(Some(
                "it leads elsewhere: give the address that it leads to",
            ))),
            _ => AttemptFailure::For(said(None)),
        })
    }

    /// Requests an object that must exist.
    fn get(
        &self,
        url: &Url,
        range: Option<HeaderValue>,
        most: usize,
    ) -> RusticResult<(StatusCode, Bytes)> {
        let header = range.map(|range| (RANGE, range));
        let got = self.ask(Method::GET, url, header, None, most)?;
        Self::is_there(&got, url).map(|()| got)
    }

    fn is_there((status, _): &(StatusCode, Bytes), url: &Url) -> RusticResult<()> {
        if status.is_success() {
            return Ok(());
        }
        Err(told(RemoteTrouble {
            what: format!("{}: it is not there", url.path()),
            advice: None,
        }))
    }
}

fn told(trouble: RemoteTrouble) -> Box<RusticError> {
    RusticError::with_source(ErrorKind::Backend, trouble.what.clone(), trouble)
}

/// An object in a list.
#[derive(Deserialize)]
struct ListedFile<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    size: u64,
}

impl ReadBackend for Rest {
    fn location(&self) -> String {
        self.location.clone()
    }

    fn list_with_size(&self, tpe: FileType) -> RusticResult<Vec<(Id, u32)>> {
        if tpe == FileType::Config {
            let url = self.url(tpe, &Id::default());
            let (status, _) = self.ask(Method::HEAD, &url, None, None, 0)?;
            let there = status.is_success();
            return Ok(there.then_some((Id::default(), 0)).into_iter().collect());
        }
        let url = self.below(&format!("{}/", tpe.dirname()));
        let header = Some((ACCEPT, LISTS));
        let most = self.limits.list(tpe);
        let (status, listed) = self.ask(Method::GET, &url, header, None, most)?;
        if status == StatusCode::NOT_FOUND {
            return Ok(Vec::new());
        }
        // An empty directory may be `null`.
        let listed: Option<Vec<ListedFile<'_>>> =
            serde_json::from_slice(&listed).map_err(|_| {
                told(RemoteTrouble {
                    what: format!("GET {}: its answer is no list of a repository", url.path()),
                    advice: Some("look whether the address is that of a REST server of restic"),
                })
            })?;
        let listed = listed.unwrap_or_default().into_iter();
        let ids = listed.filter_map(|one| {
            let size = u32::try_from(one.size).unwrap_or(u32::MAX);
            Some((one.name.parse::<Id>().ok()?, size))
        });
        Ok(ids.collect())
    }

    fn read_full(&self, tpe: FileType, id: &Id) -> RusticResult<Bytes> {
        let most = usize::try_from(self.limits.stored(tpe)).unwrap_or(usize::MAX);
        Ok(self.get(&self.url(tpe, id), None, most)?.1)
    }

    fn read_partial(
        &self,
        tpe: FileType,
        id: &Id,
        _cacheable: bool,
        offset: u32,
        length: u32,
    ) -> RusticResult<Bytes> {
        let (from, length) = (u64::from(offset), u64::from(length));
        let range = format!("bytes={from}-{}", from + length.saturating_sub(1));
        let range = HeaderValue::from_str(&range).ok();
        let url = self.url(tpe, id);
        let most = usize::try_from(length).unwrap_or(usize::MAX);
        match self.get(&url, range, most)? {
            (StatusCode::PARTIAL_CONTENT, bytes) => Ok(bytes),
            _ => Err(told(RemoteTrouble {
                what: format!("GET {}: the server gives no parts of objects", url.path()),
                advice: None,
            })),
        }
    }

    fn warmup_path(&self, tpe: FileType, id: &Id) -> String {
        self.url(tpe, id).path().to_owned()
    }
}

impl WriteBackend for Rest {
    fn create(&self) -> RusticResult<()> {
        let mut url = self.base.clone();
        url.set_query(Some("create=true"));
        let made = self.ask(Method::POST, &url, None, None, REASON_BYTES_MAX)?;
        Self::is_there(&made, &url)
    }

    fn write_bytes(
        &self,
        tpe: FileType,
        id: &Id,
        _cacheable: bool,
        content: BytesList,
    ) -> RusticResult<()> {
        let url = self.url(tpe, id);
        let written = self.ask(Method::POST, &url, None, Some(content), REASON_BYTES_MAX)?;
        Self::is_there(&written, &url)
    }

    fn remove(&self, tpe: FileType, id: &Id, _cacheable: bool) -> RusticResult<()> {
        let url = self.url(tpe, id);
        let removed = self.ask(Method::DELETE, &url, None, None, REASON_BYTES_MAX)?;
        Self::is_there(&removed, &url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_below_the_address() {
        let rest = Rest::new("http://h:8000/a/b/", None, false).expect("made");
        let url = |tpe| rest.url(tpe, &Id::default()).to_string();
        assert_eq!(url(FileType::Config), "http://h:8000/a/b/config");
        assert!(url(FileType::Pack).starts_with("http://h:8000/a/b/data/00"));
        assert_eq!(rest.location(), "rest:http://h:8000/a/b/");
        let rest = Rest::new("https://h", None, false).expect("made");
        let url = rest.url(FileType::Config, &Id::default());
        assert_eq!(url.as_str(), "https://h/config");
        assert!(Rest::new("ftp://h/", None, false).is_err());
    }

    #[test]
    fn nobody_sees_who_asks() {
        let login = ("user".to_owned(), "secret-of-the-test".to_owned());
        let rest = Rest::new("http://h/", Some(login), false).expect("made");
        let shown = format!("{rest:?}");
        assert!(
            !shown.contains("secret") && !shown.contains("dXNlcjpz"),
            "{shown}"
        );
    }
}
