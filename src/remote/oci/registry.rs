//! Client for the parts of the OCI distribution specification that are needed here.
//!
//! Every answer is limited in size, and every wait in time. Transient failures (a lost connection,
//! 5xx, 429) are retried a few times with growing pauses. A password is sent to the registry, and
//! to the token server that the registry names if that uses TLS; never to the target of a redirect
//! or of an upload location. Only loopback addresses are contacted without TLS, unless the user
//! requests it.

mod reasons;
mod token;

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::time::Duration;

use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderValue, LOCATION,
};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, Url};

use super::auth::{FoundLogin, PASSWORD_VARIABLE, USER_VARIABLE};
use super::{HashingIo, ImageRef, digest_of, in_scratch};
use crate::http::{client, tls_trouble};
use ckptfs_api::{Code, VerbError, VerbResult, error, hinted};
use reasons::{plainly, reason_of};

/// Size limit of a manifest; registries have the same limit.
const MANIFEST_BYTES_MAX: u64 = 4 << 20;
/// Size limit of the body of an error response.
const REASON_BYTES_MAX: u64 = 64 << 10;
/// A larger blob is sent in chunks of this size, which fit in memory.
const PIECE_BYTES: u64 = 16 << 20;

/// Number of attempts, and the first pause between them, which doubles each time.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);
/// Time limit of a connection attempt.
const CONNECT_MAX: Duration = Duration::from_secs(20);
/// Time limit of a short answer, and of pauses in a long one.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// Time limit of sending a chunk and of processing it in the registry.
const SEND_MAX: Duration = Duration::from_secs(900);

/// The accepted media types of a manifest.
const MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json";

/// A repository in a registry.
pub struct Registry {
    runtime: tokio::runtime::Runtime,
    http: Client,
    /// `SCHEME://HOST/v2/NAME/`.
    base: Url,
    place: ImageRef,
    /// The permissions to request with a token.
    scope: String,
    known: FoundLogin,
    /// The authorization header that the registry accepts.
    said: RefCell<Option<HeaderValue>>,
}

/// A failure.
#[derive(Debug)]
enum RegistryError {
    /// A retry may succeed.
    Passing(VerbError),
    /// A retry would fail.
    Lasting(VerbError),
}

impl RegistryError {
    fn why(self) -> VerbError {
        match self {
            RegistryError::Passing(why) | RegistryError::Lasting(why) => why,
        }
    }
}

type Tried<T> = Result<T, RegistryError>;

/// Returns whether a registry at this address may be contacted without TLS.
fn is_loopback(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    name == "localhost"
        || name
            .parse::<std::net::Ipv4Addr>()
            .is_ok_and(|address| address.is_loopback())
}

impl Registry {
    /// Creates a client for a repository, to read or write it. Sends no request yet. `plain`:
    /// without TLS.
    ///
    /// # Errors
    /// `usage`; `internal` if no client can be created.
    pub fn new(place: ImageRef, known: FoundLogin, write: bool, plain: bool) -> VerbResult<Self> {
        let internal =
            |cause: &dyn std::fmt::Display| error(Code::Internal, format!("HTTP: {cause}"));
        let loopback = is_loopback(&place.host);
        let plain = plain || loopback;
        let scheme = if plain { "http" } else { "https" };
        let base = Url::parse(&format!(
            "{scheme}://{}/v2/{}/",
            host_of(&place),
            place.name
        ))
        .map_err(|cause| error(Code::Usage, format!("{place}: {cause}")))?;
        let mut http = client(plain)
            .connect_timeout(CONNECT_MAX)
            .redirect(reqwest::redirect::Policy::limited(5));
        if loopback {
            http = http.no_proxy();
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|cause| internal(&cause))?;
        let actions = if write { "pull,push" } else { "pull" };
        Ok(Registry {
            runtime,
            http: http.build().map_err(|cause| internal(&cause))?,
            base,
            scope: format!("repository:{}:{actions}", place.name),
            place,
            known,
            said: RefCell::default(),
        })
    }

    /// Fetches a manifest by tag or digest and verifies the digest; `None`: not found.
    ///
    /// # Errors
    /// Errors of the registry or the connection.
    pub fn manifest(&self, wanted: &str) -> VerbResult<Option<Vec<u8>>> {
        let url = self.url(&format!("manifests/{wanted}"))?;
        let found = self.runtime.block_on(self.several_times(async || {
            let asked = self.request(Method::GET, &url).header(ACCEPT, MANIFESTS);
            let answer = self.ask(asked, ANSWER_MAX).await?;
            if answer.status() == StatusCode::NOT_FOUND {
                return Ok(None);
            }
            let answer = self.expect(answer, StatusCode::OK).await?;
            self.short(answer, MANIFEST_BYTES_MAX, "the manifest")
                .await
                .map(Some)
        }));
        let found = found.map_err(RegistryError::why)?;
        match &found {
            Some(bytes) if wanted.contains(':') && digest_of(bytes) != wanted => {
                Err(self.not_as_said("manifest", wanted))
            }
            _ => Ok(found),
        }
    }

    /// Puts a manifest under a tag, which refers to the image from now on.
    ///
    /// # Errors
    /// As [`Registry::manifest`].
    pub fn put_manifest(&self, tag: &str, kind: &str, bytes: &[u8]) -> VerbResult<()> {
        let url = self.url(&format!("manifests/{tag}"))?;
        let put = self.runtime.block_on(self.several_times(async || {
            let asked = self
                .request(Method::PUT, &url)
                .header(CONTENT_TYPE, kind)
                .body(bytes.to_vec());
            let answer = self.ask(asked, SEND_MAX).await?;
            self.expect(answer, StatusCode::CREATED).await.map(drop)
        }));
        put.map_err(RegistryError::why)
    }

    /// Lists the tags of the repository, up to the number in one answer.
    ///
    /// # Errors
    /// As [`Registry::manifest`].
    pub fn tags(&self) -> VerbResult<Vec<String>> {
        let url = self.url("tags/list")?;
        let listed = self.runtime.block_on(self.several_times(async || {
            let answer = self
                .ask(self.request(Method::GET, &url), ANSWER_MAX)
                .await?;
            if answer.status() == StatusCode::NOT_FOUND {
                return Ok(Vec::new());
            }
            let answer = self.expect(answer, StatusCode::OK).await?;
            self.short(answer, MANIFEST_BYTES_MAX, "the list of tags")
                .await
        }));
        let listed: serde_json::Value =
            serde_json::from_slice(&listed.map_err(RegistryError::why)?).unwrap_or_default();
        let tags = listed.get("tags").and_then(|tags| tags.as_array());
        let tags = tags.into_iter().flatten().filter_map(|tag| tag.as_str());
        // Only valid tags may be part of the next request.
        Ok(tags
            .filter(|tag| ImageRef::parse(&format!("{}:{tag}", self.place.repository())).is_ok())
            .map(str::to_owned)
            .collect())
    }

    /// Returns whether the registry has a blob.
    ///
    /// # Errors
    /// As [`Registry::manifest`].
    pub fn has_blob(&self, digest: &str) -> VerbResult<bool> {
        let has = self
            .runtime
            .block_on(self.several_times(async || self.has(digest).await));
        has.map_err(RegistryError::why)
    }

    /// Fetches a short blob and verifies its digest.
    ///
    /// # Errors
    /// As [`Registry::manifest`]; `remote-failed`: the digest does not match.
    pub fn short_blob(&self, digest: &str, what: &str) -> VerbResult<Vec<u8>> {
        let url = self.url(&format!("blobs/{digest}"))?;
        let bytes = self.runtime.block_on(self.several_times(async || {
            let answer = self
                .ask(self.request(Method::GET, &url), ANSWER_MAX)
                .await?;
            let answer = self.expect(answer, StatusCode::OK).await?;
            self.short(answer, MANIFEST_BYTES_MAX, what).await
        }));
        let bytes = bytes.map_err(RegistryError::why)?;
        if digest_of(&bytes) == digest {
            Ok(bytes)
        } else {
            Err(self.not_as_said(what, digest))
        }
    }

    /// Fetches a blob into a file and verifies its digest; `progress` receives the bytes fetched.
    ///
    /// # Errors
    /// As [`Registry::short_blob`].
    pub fn blob(
        &self,
        digest: &str,
        size: u64,
        out: &File,
        progress: &dyn Fn(u64),
    ) -> VerbResult<()> {
        let url = self.url(&format!("blobs/{digest}"))?;
        let received = self.runtime.block_on(self.several_times(async || {
            emptied(out).map_err(|cause| RegistryError::Lasting(in_scratch(&cause)))?;
            let answer = self
                .ask(self.request(Method::GET, &url), ANSWER_MAX)
                .await?;
            let answer = self.expect(answer, StatusCode::OK).await?;
            self.receive(answer, digest, size, out, progress).await
        }));
        received.map_err(RegistryError::why)
    }

    /// Sends a blob unless the registry has it; returns whether it was sent.
    ///
    /// # Errors
    /// As [`Registry::manifest`].
    pub fn send_blob(
        &self,
        digest: &str,
        size: u64,
        read: &dyn Fn(u64, &mut [u8]) -> io::Result<()>,
        progress: &dyn Fn(u64),
    ) -> VerbResult<bool> {
        let sent = self.runtime.block_on(self.several_times(async || {
            // Also in a retry: the answer may have been lost, but not the blob.
            if self.has(digest).await? {
                return Ok(false);
            }
            self.send(digest, size, read, progress).await.map(|()| true)
        }));
        sent.map_err(RegistryError::why)
    }

    /// Returns the repository for a message.
    pub fn shown(&self) -> String {
        self.place.repository()
    }

    fn url(&self, below: &str) -> VerbResult<Url> {
        self.base
            .join(below)
            .map_err(|cause| error(Code::Usage, format!("{}: {cause}", self.place)))
    }

    async fn has(&self, digest: &str) -> Tried<bool> {
        let url = self
            .url(&format!("blobs/{digest}"))
            .map_err(RegistryError::Lasting)?;
        let answer = self
            .ask(self.request(Method::HEAD, &url), ANSWER_MAX)
            .await?;
        if answer.status() == StatusCode::NOT_FOUND {
            return Ok(false);
        }
        self.expect(answer, StatusCode::OK).await.map(|_| true)
    }

    async fn send(
        &self,
        digest: &str,
        size: u64,
        read: &dyn Fn(u64, &mut [u8]) -> io::Result<()>,
        progress: &dyn Fn(u64),
    ) -> Tried<()> {
        let url = self.url("blobs/uploads/").map_err(RegistryError::Lasting)?;
        let asked = self.request(Method::POST, &url).header(CONTENT_LENGTH, 0);
        let answer = self.ask(asked, ANSWER_MAX).await?;
        let mut place = self.place_of(self.expect(answer, StatusCode::ACCEPTED).await?)?;
        let piece = |offset: u64| -> Tried<Vec<u8>> {
            let length = usize::try_from(PIECE_BYTES.min(size - offset)).unwrap_or(0);
            let mut bytes = vec![0; length];
            read(offset, &mut bytes).map_err(|cause| RegistryError::Lasting(in_scratch(&cause)))?;
            Ok(bytes)
        };
        let (mut offset, mut last) = (0, Vec::new());
        if size <= PIECE_BYTES {
            last = piece(0)?;
        } else {
            while offset < size {
                let bytes = piece(offset)?;
                let end = offset + bytes.len() as u64;
                let asked = self
                    .request(Method::PATCH, &place)
                    .header(CONTENT_TYPE, "application/octet-stream")
                    .header(CONTENT_RANGE, format!("{offset}-{}", end - 1))
                    .body(bytes);
                let answer = self.ask(asked, SEND_MAX).await?;
                place = self.place_of(self.expect(answer, StatusCode::ACCEPTED).await?)?;
                offset = end;
                progress(offset);
            }
        }
        place.query_pairs_mut().append_pair("digest", digest);
        let asked = self
            .request(Method::PUT, &place)
            .header(CONTENT_TYPE, "application/octet-stream")
            .body(last);
        let answer = self.ask(asked, SEND_MAX).await?;
        self.expect(answer, StatusCode::CREATED).await?;
        progress(size);
        Ok(())
    }

    /// Returns the location at which an upload continues.
    fn place_of(&self, answer: Response) -> Tried<Url> {
        let place = answer
            .headers()
            .get(LOCATION)
            .and_then(|place| place.to_str().ok());
        let place = place.and_then(|place| answer.url().join(place).ok());
        match place {
            Some(place) if self.is_own(&place) || place.scheme() == "https" => Ok(place),
            Some(_) => Err(self.failed("it sends uploads elsewhere, without TLS")),
            None => Err(self.failed("it does not say where an upload goes")),
        }
    }

    async fn receive(
        &self,
        mut answer: Response,
        digest: &str,
        size: u64,
        out: &File,
        progress: &dyn Fn(u64),
    ) -> Tried<()> {
        let mut out = HashingIo::new(out);
        while let Some(bytes) = self.next(&mut answer).await? {
            if out.bytes + bytes.len() as u64 > size {
                return Err(RegistryError::Lasting(self.not_as_said("layer", digest)));
            }
            out.write_all(&bytes)
                .map_err(|cause| RegistryError::Lasting(in_scratch(&cause)))?;
            progress(out.bytes);
        }
        let (_, received, bytes) = out.finish();
        if bytes < size {
            return Err(self.cut("the connection ended in the middle of a layer"));
        }
        if received != digest {
            return Err(RegistryError::Lasting(self.not_as_said("layer", digest)));
        }
        Ok(())
    }

    /// Returns the next part of an answer.
    async fn next(&self, answer: &mut Response) -> Tried<Option<bytes::Bytes>> {
        match tokio::time::timeout(ANSWER_MAX, answer.chunk()).await {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(cause)) => Err(self.cut(&plainly(&cause))),
            Err(_) => Err(self.cut("it does not go on")),
        }
    }

    async fn short(&self, mut answer: Response, most: u64, what: &str) -> Tried<Vec<u8>> {
        let mut all = Vec::new();
        while let Some(bytes) = self.next(&mut answer).await? {
            if (all.len() + bytes.len()) as u64 > most {
                return Err(self.failed(&format!("{what} is longer than {most} bytes")));
            }
            all.extend_from_slice(&bytes);
        }
        Ok(all)
    }

    fn request(&self, method: Method, url: &Url) -> RequestBuilder {
        self.http.request(method, url.clone())
    }

    /// Sends a request, and repeats it with credentials if the registry demands them.
    async fn ask(&self, request: RequestBuilder, most: Duration) -> Tried<Response> {
        let again = request.try_clone();
        let answer = self.ask_once(request, most).await?;
        if answer.status() != StatusCode::UNAUTHORIZED {
            return Ok(answer);
        }
        match again {
            Some(again) if self.introduce(&answer).await? => self.ask_once(again, most).await,
            _ => Ok(answer),
        }
    }

    async fn ask_once(&self, request: RequestBuilder, most: Duration) -> Tried<Response> {
        let mut request = request
            .build()
            .map_err(|cause| self.failed(&plainly(&cause)))?;
        // Credentials are not sent to another host.
        if let Some(said) = self
            .said
            .borrow()
            .as_ref()
            .filter(|_| self.is_own(request.url()))
        {
            request.headers_mut().insert(AUTHORIZATION, said.clone());
        }
        tracing::debug!("{} {}", request.method(), request.url().path());
        self.answer(self.http.execute(request), most).await
    }

    /// Returns the headers of an answer within a time limit; the body may take longer.
    async fn answer(
        &self,
        asked: impl Future<Output = reqwest::Result<Response>>,
        most: Duration,
    ) -> Tried<Response> {
        match tokio::time::timeout(most, asked).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(cause)) => {
                let why = plainly(&cause);
                Err(if let Some((what, advice)) = tls_trouble(&why) {
                    let why = format!("{}: {what} ({why})", self.place);
                    RegistryError::Lasting(hinted(Code::RemoteFailed, why, advice))
                } else if cause.is_redirect() || cause.is_builder() {
                    self.failed(&why)
                } else {
                    self.cut(&why)
                })
            }
            Err(_) => Err(self.cut("no answer in time")),
        }
    }

    fn is_own(&self, url: &Url) -> bool {
        url.origin() == self.base.origin()
    }

    /// Returns the answer if it has the expected status.
    async fn expect(&self, answer: Response, hoped: StatusCode) -> Tried<Response> {
        let status = answer.status();
        if status == hoped {
            return Ok(answer);
        }
        let reason = self
            .short(answer, REASON_BYTES_MAX, "the reason")
            .await
            .unwrap_or_default();
        let said = format!("{status}{}", reason_of(&reason));
        Err(match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                RegistryError::Lasting(self.forbidden(&said))
            }
            StatusCode::TOO_MANY_REQUESTS => self.cut(&said),
            status if status.is_server_error() => self.cut(&said),
            _ => self.failed(&said),
        })
    }

    fn forbidden(&self, said: &str) -> VerbError {
        let hint = match &self.known {
            FoundLogin { login: Some(_), .. } => {
                "the name or the password is wrong, or may not do this".to_owned()
            }
            FoundLogin { helper: true, .. } => format!(
                "docker's credential helper is not asked: set {USER_VARIABLE} and {PASSWORD_VARIABLE}"
            ),
            _ => format!(
                "set {USER_VARIABLE} and {PASSWORD_VARIABLE}, or: docker login {}",
                self.place.host
            ),
        };
        hinted(
            Code::NoPermission,
            format!("{} does not allow this: {said}", self.place),
            hint,
        )
    }

    fn failed(&self, why: &str) -> RegistryError {
        RegistryError::Lasting(error(Code::RemoteFailed, format!("{}: {why}", self.place)))
    }

    fn cut(&self, why: &str) -> RegistryError {
        let hint = if self.base.scheme() == "https" {
            "run it again: nothing is sent twice; a registry without TLS needs --plain-http"
        } else {
            "run it again: nothing is sent twice"
        };
        RegistryError::Passing(hinted(
            Code::RemoteFailed,
            format!("{}: {why}", self.place),
            hint,
        ))
    }

    fn not_as_said(&self, what: &str, digest: &str) -> VerbError {
        error(
            Code::RemoteFailed,
            format!(
                "{}: the {what} that the registry gives is not {digest}",
                self.place
            ),
        )
    }

    /// Repeats an operation until it succeeds or a retry would fail.
    async fn several_times<T>(&self, mut work: impl AsyncFnMut() -> Tried<T>) -> Tried<T> {
        let mut pause = PAUSE;
        for _ in 1..TRIES {
            match work().await {
                Err(RegistryError::Passing(why)) => tracing::debug!("again: {}", why.message),
                done => return done,
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        work().await
    }
}

/// Docker's registry has another host than its name.
fn host_of(place: &ImageRef) -> &str {
    match place.host.as_str() {
        "docker.io" | "index.docker.io" => "registry-1.docker.io",
        host => host,
    }
}

/// Empties a file that may contain a part of a blob, for a retry.
fn emptied(mut file: &File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_spoken_to_without_tls() {
        for host in ["localhost", "localhost:5000", "127.0.0.1:1", "127.9.9.9"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "localhost.x:5000",
            "10.0.0.1:80",
            "127.0.0.1.x",
            "h.x",
            "128.0.0.1",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
        let at = |text: &str, plain| {
            let place = ImageRef::parse(text).expect("a place");
            Registry::new(place, FoundLogin::default(), false, plain)
                .expect("made")
                .base
                .to_string()
        };
        assert_eq!(at("oci://h.x/a", false), "https://h.x/v2/a/");
        assert_eq!(at("oci://h.x/a", true), "http://h.x/v2/a/");
        assert_eq!(
            at("oci://127.0.0.1:9/a/b", false),
            "http://127.0.0.1:9/v2/a/b/"
        );
    }
}
