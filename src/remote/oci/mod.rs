//! Checkpoints as images: `oci://HOST[:PORT]/NAME[:TAG]`.
//!
//! An image is a manifest that refers to a configuration and layers. Each layer is a compressed tar
//! of the differences from those below it ([`layer`]). A push onto the image of an earlier
//! checkpoint of the same store adds one layer with the changes ([`image`] defines when this
//! applies). The manifest is put last, after the registry has confirmed everything that it refers
//! to: a tag never names an incomplete image.
//!
//! The answers of a registry may be hostile ([`registry`]): their size is limited, digests are
//! verified, and all layers are read and checked before anything is created ([`unpack`]).

pub mod auth;
pub mod image;
pub mod layer;
pub mod pull;
pub mod push;
pub mod registry;
pub mod unpack;
mod untar;

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};

use oci_spec::distribution::Reference;
use sha2::{Digest as _, Sha256};

use ckptfs_api::{
    Code, ExportData, ExportEntry, TreePath, VerbError, VerbResult, hinted, io_error,
};
use ckptfs_sys::Kind;

/// The media type of manifests that we put.
const MANIFEST_KIND: &str = "application/vnd.oci.image.manifest.v1+json";

/// The scheme of a place in a registry.
pub const SCHEME: &str = "oci://";

/// A host, a name there, and optionally a tag or a digest.
#[derive(Clone, Debug)]
pub struct ImageRef {
    /// `HOST[:PORT]`, as it was typed.
    pub host: String,
    /// The name of the image there.
    pub name: String,
    tag: Option<String>,
    digest: Option<String>,
}

impl ImageRef {
    /// Parses `oci://HOST[:PORT]/NAME[:TAG][@DIGEST]`.
    ///
    /// # Errors
    /// `usage`.
    pub fn parse(text: &str) -> VerbResult<ImageRef> {
        let wrong = |why: &str| {
            hinted(
                Code::Usage,
                format!("{text} is no place in a registry: {why}"),
                "for example: oci://localhost:5000/project:v1",
            )
        };
        let rest = text.strip_prefix(SCHEME).unwrap_or(text);
        let host = rest.split('/').next().unwrap_or_default();
        // Without a dot or a port the first component would be a name at docker.io.
        if !host.contains(['.', ':']) && host != "localhost" {
            return Err(wrong("it does not begin with a host"));
        }
        let reference: Reference = rest.parse().map_err(|cause| wrong(&format!("{cause}")))?;
        if reference.registry() != host {
            return Err(wrong("it does not begin with a host"));
        }
        Ok(ImageRef {
            host: host.to_owned(),
            name: reference.repository().to_owned(),
            tag: reference.tag().map(str::to_owned),
            digest: reference.digest().map(str::to_owned),
        })
    }

    /// Returns the tag; the default is `latest`.
    pub fn tag(&self) -> &str {
        self.tag.as_deref().unwrap_or("latest")
    }

    /// Returns the digest, if any.
    pub fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }

    /// Returns the reference to request: the digest, else the tag.
    pub fn wanted(&self) -> &str {
        self.digest().unwrap_or_else(|| self.tag())
    }

    /// Returns the place without the tag.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.host, self.name)
    }
}

impl std::fmt::Display for ImageRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mark = if self.digest.is_some() { '@' } else { ':' };
        write!(f, "{}/{}{mark}{}", self.host, self.name, self.wanted())
    }
}

/// Returns `sha256:` and 64 hexadecimal digits.
fn digest_of(bytes: &[u8]) -> String {
    named(Sha256::digest(bytes).as_slice())
}

fn named(hash: &[u8]) -> String {
    let mut text = "sha256:".to_owned();
    for byte in hash {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Counts and hashes the bytes that pass through it.
struct HashingIo<T> {
    inner: T,
    hash: Sha256,
    bytes: u64,
}

impl<T> HashingIo<T> {
    fn new(inner: T) -> HashingIo<T> {
        HashingIo {
            inner,
            hash: Sha256::new(),
            bytes: 0,
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    /// Returns the inner object, the digest, and the number of bytes.
    fn finish(self) -> (T, String, u64) {
        (
            self.inner,
            named(self.hash.finalize().as_slice()),
            self.bytes,
        )
    }
}

impl<T: Write> Write for HashingIo<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.add(bytes.get(..written).unwrap_or_default());
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: io::Read> io::Read for HashingIo<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.add(buffer.get(..read).unwrap_or_default());
        Ok(read)
    }
}

/// Returns an empty inode of root, dated 1970, without a path.
fn bare(kind: Kind, mode: u32) -> ExportEntry {
    ExportEntry {
        path: TreePath(Vec::new()),
        kind,
        mode,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        times: [0; 4],
        ctime: [0; 2],
        inode: 0,
        nlink: 1,
        target: None,
        xattrs: Vec::new(),
        data: ExportData::None,
        again: false,
    }
}

/// Creates an unlinked temporary file.
///
/// # Errors
/// Errors of its creation.
fn scratch() -> VerbResult<File> {
    let dir = std::env::temp_dir();
    tempfile::tempfile_in(&dir).map_err(|cause| in_scratch(&cause))
}

/// Returns the error for a scratch file.
fn in_scratch(cause: &io::Error) -> VerbError {
    let dir = std::env::temp_dir();
    VerbError {
        hint: Some("a layer is put together there first; TMPDIR names another directory".into()),
        ..io_error(
            dir.display(),
            io::Error::new(cause.kind(), cause.to_string()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_host_a_name_and_what_is_wanted_there() {
        let place = ImageRef::parse("oci://localhost:5000/a/b:v1").expect("a place");
        assert_eq!(
            (place.host.as_str(), place.name.as_str(), place.wanted()),
            ("localhost:5000", "a/b", "v1")
        );
        assert_eq!(place.to_string(), "localhost:5000/a/b:v1");
        let place = ImageRef::parse("oci://r.example/a").expect("a place");
        assert_eq!((place.wanted(), place.digest()), ("latest", None));
        let digest = digest_of(b"");
        let place = ImageRef::parse(&format!("oci://r.example/a@{digest}")).expect("a place");
        assert_eq!(place.wanted(), digest);
        for wrong in [
            "oci://",
            "oci://a",
            "oci://a/b",
            "oci://localhost",
            "oci://localhost/",
            "oci://localhost/A",
            "oci://h.x/a:b:c",
            "oci://user@h.x/a",
            "oci://h.x/../a",
            "oci://h.x/a?b",
            "oci://h.x/a\n",
        ] {
            assert!(ImageRef::parse(wrong).is_err(), "{wrong}");
        }
    }
}
