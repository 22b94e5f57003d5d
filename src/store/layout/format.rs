//! The file `format`: version, features and id of a store. See the parent module.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::super::at;
use super::{ORIGIN_NAME, StoreId, TREE_NAME};
use crate::error::{StoreError, StoreResult};
use ckptfs_sys as sys;

/// The format version that this program reads and writes.
pub const FORMAT_VERSION: u32 = 1;
/// Optional features of the format. A store gets those that it needs and lacks when it is opened
/// for writing; a program without support for them must then reject it. A feature is needed if the
/// directory of its name exists. `origin`: the tree looks through to remote content described in
/// `origin/`, so the directory alone is incomplete. `tree`: the tree is inside the store, not next
/// to it.
const FEATURES: [&str; 2] = [ORIGIN_NAME, TREE_NAME];
/// First line of `format`.
const MAGIC: &str = "ckptfs store";
/// Size limit of the file `format`, in bytes.
const FORMAT_BYTES_MAX: u64 = 4096;

/// Returns the [`FEATURES`] that a store needs.
fn needed(dir: &OwnedFd) -> impl Iterator<Item = &'static str> {
    let is_there = move |name: &&str| sys::stat_at(dir, name.as_bytes()).is_ok();
    FEATURES.into_iter().filter(is_there)
}

/// Writes the file `format`; with `synced`, durable on return.
pub(super) fn write_format(dir: &OwnedFd, id: StoreId, synced: bool) -> StoreResult<()> {
    let features = match needed(dir).collect::<Vec<_>>().join(" ") {
        none if none.is_empty() => "-".to_owned(),
        some => some,
    };
    let text = format!("{MAGIC}\nversion {FORMAT_VERSION}\nfeatures {features}\nid {id}\n");
    let write = if synced {
        at::write_whole::<&OwnedFd>
    } else {
        at::write_unsynced
    };
    write(dir, "format", text.as_bytes()).map_err(StoreError::io("write", "format"))
}

/// Reads the file and adds the features that the store needs, before anything is written that a
/// program without support for them cannot read.
pub(super) fn read_and_add_features(dir: &OwnedFd) -> StoreResult<StoreId> {
    let format = read_format(dir)?;
    if needed(dir).any(|feature| !format.features.iter().any(|has| has == feature)) {
        write_format(dir, format.id, true)?;
    }
    Ok(format.id)
}

/// The content of the file `format`.
#[derive(Debug)]
pub(crate) struct Format {
    pub features: Vec<String>,
    pub id: StoreId,
}

pub(super) fn read_format(dir: &OwnedFd) -> StoreResult<Format> {
    let bytes = at::read_small(dir, "format", FORMAT_BYTES_MAX).map_err(|error: io::Error| {
        match Errno::from_io_error(&error) {
            Some(Errno::FBIG | Errno::LOOP | Errno::ISDIR) => StoreError::NotAStore,
            _ => StoreError::io("read", "format")(error),
        }
    })?;
    parse_format(&bytes)
}

pub(crate) fn parse_format(bytes: &[u8]) -> StoreResult<Format> {
    let mut lines = std::str::from_utf8(bytes)
        .map_err(|_| StoreError::NotAStore)?
        .lines();
    if lines.next() != Some(MAGIC) {
        return Err(StoreError::NotAStore);
    }
    let mut field = |name: &str| {
        lines
            .next()
            .and_then(|line| line.strip_prefix(name)?.strip_prefix(' '))
            .ok_or(StoreError::NotAStore)
    };
    // The version comes first, because the rest of a newer format may be unreadable.
    let version = field("version")?
        .parse::<u32>()
        .map_err(|_| StoreError::NotAStore)?;
    if version == 0 {
        return Err(StoreError::NotAStore);
    }
    if version > FORMAT_VERSION {
        return Err(StoreError::NewerFormat {
            found: version,
            supported: FORMAT_VERSION,
        });
    }
    let features: Vec<String> = field("features")?
        .split(' ')
        .filter(|name| *name != "-")
        .map(str::to_owned)
        .collect();
    if let Some(feature) = features
        .iter()
        .find(|name| !FEATURES.contains(&name.as_str()))
    {
        return Err(StoreError::UnknownFeature {
            feature: feature.clone(),
        });
    }
    Ok(Format {
        features,
        id: StoreId::parse(field("id")?).ok_or(StoreError::NotAStore)?,
    })
}
