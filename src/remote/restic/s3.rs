//! A repository in a bucket: `s3:http(s)://HOST[:PORT]/BUCKET[/PATH]`, in restic's layout.
//!
//! Credentials are taken from the environment: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
//! `AWS_SESSION_TOKEN`, `AWS_REGION`; proxies from `HTTP_PROXY`, `HTTPS_PROXY`, `NO_PROXY`. The
//! library retries with pauses; the idle timeout is ours. An object exists completely or not at
//! all.

use bytes::{Bytes, BytesMut};
use object_store::aws::AmazonS3Builder;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{
    ClientOptions, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, RetryConfig,
};
use rustic_core::{
    BytesList, ErrorKind, FileType, Id, ReadBackend, RusticError, RusticResult, WriteBackend,
};
use tokio::runtime::Runtime;
use tokio_stream::StreamExt;

use super::idle_client::{CONNECT_MAX, IdleTimeoutConnector, RemoteTrouble, brief, payload};
use crate::http::{first_cause, idle};
use crate::limits::{Limits, RAISE};
use ckptfs_api::{Code, VerbResult, hinted};

/// Number of retries, after pauses that double from 0.1 s: about six seconds for a server that
/// restarts.
const RETRIES: usize = 6;
/// Less than a second.
const QUICK_RETRIES: usize = 3;
/// Limit of empty pages in a list.
const EMPTY_PAGES_MAX: usize = 16;

/// A bucket.
#[derive(Debug)]
pub struct S3 {
    store: object_store::aws::AmazonS3,
    prefix: String,
    location: String,
    limits: Limits,
    runtime: Runtime,
}

impl S3 {
    /// Creates a client for a bucket at `http(s)://HOST[:PORT]/BUCKET[/PATH]`. Sends nothing yet.
    /// `quick`: a request without an answer fails soon.
    ///
    /// # Errors
    /// `bad-remote`.
    pub fn new(at: &str, quick: bool) -> VerbResult<S3> {
        // A stalled request is retried once; if programs wait, not at all.
        let (retries, retry_timeout) = match quick {
            true => (QUICK_RETRIES, idle() / 2),
            false => (RETRIES, idle() * 3 / 2),
        };
        let bad = |why: String| {
            hinted(
                Code::BadRemote,
                format!("s3:{at}: {why}"),
                "it is s3:http(s)://HOST[:PORT]/BUCKET[/PATH]",
            )
        };
        let (scheme, rest) = at
            .split_once("://")
            .ok_or_else(|| bad("no address".to_owned()))?;
        let mut parts = rest.trim_end_matches('/').splitn(3, '/');
        let host = parts.next().unwrap_or_default();
        let bucket = parts.next().filter(|bucket| !bucket.is_empty());
        let bucket = bucket.ok_or_else(|| bad("it names no bucket".to_owned()))?;
        let client = ClientOptions::new()
            .with_allow_http(scheme == "http")
            .with_connect_timeout(CONNECT_MAX);
        let store = AmazonS3Builder::from_env()
            .with_endpoint(format!("{scheme}://{host}"))
            .with_bucket_name(bucket)
            .with_virtual_hosted_style_request(false)
            .with_client_options(client)
            .with_http_connector(IdleTimeoutConnector)
            .with_retry(RetryConfig {
                max_retries: retries,
                retry_timeout,
                ..RetryConfig::default()
            })
            .build()
            .map_err(|cause| match first_cause(&cause).to_string() {
                why if why.starts_with("Missing") => hinted(Code::BadRemote, why, KEY),
                why => bad(why),
            })?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(|cause| bad(cause.to_string()))?;
        Ok(S3 {
            store,
            prefix: parts.next().unwrap_or_default().to_owned(),
            location: format!("s3:{at}"),
            limits: Limits::new(),
            runtime,
        })
    }

    fn dir(&self, tpe: FileType) -> Path {
        Path::from(format!("{}/{}", self.prefix, tpe.dirname()))
    }

    fn path(&self, tpe: FileType, id: &Id) -> Path {
        let (dir, hex) = (self.dir(tpe), id.to_hex());
        match tpe {
            FileType::Config => Path::from(format!("{}/config", self.prefix)),
            FileType::Pack => Path::from(format!(
                "{dir}/{}/{}",
                hex.get(..2).unwrap_or_default(),
                &*hex
            )),
            _ => Path::from(format!("{dir}/{}", &*hex)),
        }
    }
}

impl S3 {
    /// Reads an object or a range of it, up to `most` bytes whatever the server sends.
    fn read(&self, at: &Path, range: Option<GetRange>, most: u64) -> RusticResult<Bytes> {
        let options = GetOptions {
            range,
            ..GetOptions::default()
        };
        let read = async {
            let mut parts = self.store.get_opts(at, options).await?.into_stream();
            let mut bytes = BytesMut::new();
            while let Some(part) = parts.next().await {
                let part = part?;
                if bytes.len() as u64 + part.len() as u64 > most {
                    return Ok(None);
                }
                bytes.extend_from_slice(&part);
            }
            Ok(Some(bytes.freeze()))
        };
        let read = self.runtime.block_on(read);
        let read = read.map_err(|cause| failed("reading", at, cause))?;
        read.ok_or_else(|| told(format!("reading {at}: it has more than {most} bytes")))
    }
}

/// Returns the error for an exceeded limit.
fn told(what: String) -> Box<RusticError> {
    let trouble = RemoteTrouble {
        what,
        advice: Some(RAISE),
    };
    RusticError::with_source(ErrorKind::Backend, trouble.what.clone(), trouble)
}

/// Extracts the code of a failure, `<Code>NoSuchBucket</Code>`. The rest of the message may reveal
/// the owner of the key.
fn code_of(said: &str) -> Option<String> {
    let code = said.split("<Code>").nth(1)?.split("</Code>").next()?;
    Some(brief(code))
}

/// The hint for a missing or wrong key.
const KEY: &str = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment say who asks, and AWS_REGION where: \
     one of them is wrong or missing, or may not do this";
/// Prefix of the library's message for an error response, before the status.
const STATUS: &str = "Server returned non-2xx status code: ";
/// The metadata server that the library asks for credentials if the environment has none.
const TELLS_KEYS: &str = "169.254.169.254";

fn failed(doing: &str, at: &Path, cause: object_store::Error) -> Box<RusticError> {
    use object_store::Error;
    let said = first_cause(&cause).to_string();
    let code = code_of(&said);
    let doing = format!("{doing} {at}");
    let status = said.split(": <").next().unwrap_or(&said);
    let status = status.trim_start_matches(STATUS).trim_end_matches(": ");
    let answered = |what: String, advice| RemoteTrouble {
        what: format!("{doing}: {what}"),
        advice,
    };
    let trouble = match (&cause, code.as_deref()) {
        (_, Some("NoSuchBucket")) => answered(
            "there is no such bucket".to_owned(),
            Some("make it with a tool of the server, or mend the address"),
        ),
        (Error::PermissionDenied { .. } | Error::Unauthenticated { .. }, code) => {
            let why = code.map_or_else(|| brief(status), str::to_owned);
            answered(format!("the server says {why}"), Some(KEY))
        }
        _ if cause.to_string().contains(TELLS_KEYS) => {
            answered("there is no key".to_owned(), Some(KEY))
        }
        (_, Some(code)) => answered(format!("the server says {code}"), None),
        _ if said.starts_with(STATUS) => {
            answered(format!("the server says {}", brief(status)), None)
        }
        _ => RemoteTrouble::on_the_way(&doing, &cause),
    };
    RusticError::with_source(ErrorKind::Backend, trouble.what.clone(), trouble)
}

impl ReadBackend for S3 {
    fn location(&self) -> String {
        self.location.clone()
    }

    fn list_with_size(&self, tpe: FileType) -> RusticResult<Vec<(Id, u32)>> {
        let size = |meta: &ObjectMeta| u32::try_from(meta.size).unwrap_or(u32::MAX);
        if tpe == FileType::Config {
            let at = self.path(tpe, &Id::default());
            return match self.runtime.block_on(self.store.head(&at)) {
                Ok(meta) => Ok(vec![(Id::default(), size(&meta))]),
                Err(object_store::Error::NotFound { .. }) => Ok(Vec::new()),
                Err(cause) => Err(failed("looking for", &at, cause)),
            };
        }
        let dir = self.dir(tpe);
        let (prefix, most) = (format!("{dir}/"), self.limits.objects(tpe));
        let (mut found, mut empty, mut page_token) = (Vec::new(), 0, None);
        loop {
            let options = PaginatedListOptions {
                page_token,
                ..PaginatedListOptions::default()
            };
            let page = self.store.list_paginated(Some(&prefix), options);
            let page = self.runtime.block_on(page);
            let page = page.map_err(|cause| failed("listing", &dir, cause))?;
            let objects = page.result.objects;
            empty += usize::from(objects.is_empty());
            found.extend(objects.iter().filter_map(|meta| {
                let name = meta.location.filename();
                Some((name?.parse::<Id>().ok()?, size(meta)))
            }));
            page_token = page.page_token;
            if page_token.is_none() {
                return Ok(found);
            }
            if found.len() > most || empty > EMPTY_PAGES_MAX {
                let what = format!("there are more than {most}, or there is no end");
                return Err(told(format!("listing {dir}: {what}")));
            }
        }
    }

    fn read_full(&self, tpe: FileType, id: &Id) -> RusticResult<Bytes> {
        self.read(&self.path(tpe, id), None, self.limits.stored(tpe))
    }

    fn read_partial(
        &self,
        tpe: FileType,
        id: &Id,
        _cacheable: bool,
        offset: u32,
        length: u32,
    ) -> RusticResult<Bytes> {
        let (offset, length) = (u64::from(offset), u64::from(length));
        let range = GetRange::Bounded(offset..offset + length);
        self.read(&self.path(tpe, id), Some(range), length)
    }

    fn warmup_path(&self, tpe: FileType, id: &Id) -> String {
        self.path(tpe, id).to_string()
    }
}

impl WriteBackend for S3 {
    fn write_bytes(
        &self,
        tpe: FileType,
        id: &Id,
        _cacheable: bool,
        content: BytesList,
    ) -> RusticResult<()> {
        let at = self.path(tpe, id);
        let payload = payload(content.into_vec());
        let put = self.runtime.block_on(self.store.put(&at, payload));
        put.map(drop).map_err(|cause| failed("writing", &at, cause))
    }

    fn remove(&self, tpe: FileType, id: &Id, _cacheable: bool) -> RusticResult<()> {
        let at = self.path(tpe, id);
        let removed = self.runtime.block_on(self.store.delete(&at));
        removed.map_err(|cause| failed("removing", &at, cause))
    }
}
