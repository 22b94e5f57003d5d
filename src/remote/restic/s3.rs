//! A repository in a bucket: `s3:http(s)://HOST[:PORT]/BUCKET[/PATH]`, laid out as restic does.
//!
//! Who asks is told by the environment: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
//! `AWS_SESSION_TOKEN`, `AWS_REGION`; proxies by `HTTP_PROXY`, `HTTPS_PROXY`, `NO_PROXY`. Retries and
//! their pauses are the library's. An object is there whole or not at all.

use std::time::Duration;

use bytes::Bytes;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{
    ClientOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload, RetryConfig,
};
use rustic_core::{
    BytesList, ErrorKind, FileType, Id, ReadBackend, RusticError, RusticResult, WriteBackend,
};
use tokio::runtime::Runtime;
use tokio_stream::StreamExt;

use crate::engine::api::{Code, VerbResult, hinted};

/// How long one request may take: a pack of 32 MiB and more over a slow line.
const REQUEST_SECONDS: u64 = 600;
/// The same, of small pieces for programs that wait.
const QUICK_SECONDS: u64 = 120;
/// How long until a connection is made.
const CONNECT_SECONDS: u64 = 15;
/// How often a request is made again, after pauses that double from a tenth of a second: some six
/// seconds for a server that starts again.
const RETRIES: usize = 6;
/// Less than a second.
const QUICK_RETRIES: usize = 3;
/// A larger object is none of a repository: packs are at most 4 GiB.
const LARGEST: u64 = u32::MAX as u64;

/// A bucket.
#[derive(Debug)]
pub struct S3 {
    store: object_store::aws::AmazonS3,
    prefix: String,
    location: String,
    runtime: Runtime,
}

impl S3 {
    /// A bucket at `http(s)://HOST[:PORT]/BUCKET[/PATH]`. Nothing is sent yet. `quick`: a request that
    /// is not answered fails soon.
    ///
    /// # Errors
    /// `bad-remote`.
    pub fn new(at: &str, quick: bool) -> VerbResult<S3> {
        let (seconds, retries) = match quick {
            true => (QUICK_SECONDS, QUICK_RETRIES),
            false => (REQUEST_SECONDS, RETRIES),
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
            .with_timeout(Duration::from_secs(seconds))
            .with_connect_timeout(Duration::from_secs(CONNECT_SECONDS));
        let store = AmazonS3Builder::from_env()
            .with_endpoint(format!("{scheme}://{host}"))
            .with_bucket_name(bucket)
            .with_virtual_hosted_style_request(false)
            .with_client_options(client)
            .with_retry(RetryConfig {
                max_retries: retries,
                ..RetryConfig::default()
            })
            .build()
            .map_err(|cause| bad(cause.to_string()))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(|cause| bad(cause.to_string()))?;
        Ok(S3 {
            store,
            prefix: parts.next().unwrap_or_default().to_owned(),
            location: format!("s3:{at}"),
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

fn failed(what: &str, at: &Path, cause: object_store::Error) -> Box<RusticError> {
    RusticError::with_source(ErrorKind::Backend, "{what} of `{at}`", cause)
        .attach_context("what", what)
        .attach_context("at", at.to_string())
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
                Err(cause) => Err(failed("looking", &at, cause)),
            };
        }
        let dir = self.dir(tpe);
        self.runtime.block_on(async {
            let (mut list, mut found) = (self.store.list(Some(&dir)), Vec::new());
            while let Some(meta) = list.next().await {
                let meta = meta.map_err(|cause| failed("listing", &dir, cause))?;
                let id = meta
                    .location
                    .filename()
                    .and_then(|name| name.parse::<Id>().ok());
                found.extend(id.map(|id| (id, size(&meta))));
            }
            Ok(found)
        })
    }

    fn read_full(&self, tpe: FileType, id: &Id) -> RusticResult<Bytes> {
        let at = self.path(tpe, id);
        let read = async {
            let got = self.store.get(&at).await?;
            if got.meta.size > LARGEST {
                return Err(object_store::Error::NotSupported {
                    source: "the object is too large".into(),
                });
            }
            got.bytes().await
        };
        self.runtime
            .block_on(read)
            .map_err(|cause| failed("reading", &at, cause))
    }

    fn read_partial(
        &self,
        tpe: FileType,
        id: &Id,
        _cacheable: bool,
        offset: u32,
        length: u32,
    ) -> RusticResult<Bytes> {
        let (at, offset) = (self.path(tpe, id), u64::from(offset));
        let range = offset..offset + u64::from(length);
        let read = self.runtime.block_on(self.store.get_range(&at, range));
        read.map_err(|cause| failed("reading", &at, cause))
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
        let payload: PutPayload = content.into_vec().into_iter().collect();
        let put = self.runtime.block_on(self.store.put(&at, payload));
        put.map(drop).map_err(|cause| failed("writing", &at, cause))
    }

    fn remove(&self, tpe: FileType, id: &Id, _cacheable: bool) -> RusticResult<()> {
        let at = self.path(tpe, id);
        let removed = self.runtime.block_on(self.store.delete(&at));
        removed.map_err(|cause| failed("removing", &at, cause))
    }
}
