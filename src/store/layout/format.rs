//! The file `format`: of which version a store is, and which store. See the parent module.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::super::at;
use super::{ORIGIN_NAME, StoreId, TREE_NAME};
use crate::store::error::{StoreError, StoreResult};
use crate::sys;

/// The newest format version that this program reads, and the one that it writes. It reads all
/// older ones too: a store of such a one becomes one of this version when it is opened to be
/// written to (`migrate`).
pub const FORMAT_VERSION: u32 = 2;
/// Features of the format that this program knows beyond those of its version. A store gets those
/// that it needs and lacks when it is opened for writing: a program that does not know them must
/// leave it alone from then on. Each is there if the directory of its name is. `origin`: the tree
/// looks through to what `origin/` tells of, so the directory alone is not all of it. `tree`: the
/// tree is in the store, and not beside it.
const FEATURES: [&str; 2] = [ORIGIN_NAME, TREE_NAME];
/// Features that a store of version 1 could have. All of them are part of version 2. `actors`: the
/// journal says who asked (record 12). `hashes`: it has the hashes of objects (record 13). `ahead`:
/// it has what was captured ahead (record 14). `auto`: a checkpoint may have been made by the
/// daemon itself (reason 3). `imported`: or be imported (reason 4). `pins`: checkpoints can be
/// pinned (record 15) and hidden (record 16). `operations`: what was done can be undone (record
/// 17). `who`: it says which process changed what (records 18 and 19). `tiers`: the content of
/// versions may be freed that checkpoints show (record 20). `absences`: a data record may say that
/// the content is lost (a size and no object). `packs`: segments of the journal may be packed.
pub(super) const FEATURES_1: [&str; 11] = [
    "absences",
    "actors",
    "ahead",
    "auto",
    "hashes",
    "imported",
    "operations",
    "packs",
    "pins",
    "tiers",
    "who",
];
/// First line of `format`.
const MAGIC: &str = "ckptfs store";
/// Most bytes of the file `format`.
const FORMAT_BYTES_MAX: u64 = 4096;

/// What a store needs of [`FEATURES`].
fn needed(dir: &OwnedFd) -> impl Iterator<Item = &'static str> {
    let is_there = move |name: &&str| sys::stat_at(dir, name.as_bytes()).is_ok();
    FEATURES.into_iter().filter(is_there)
}

/// `synced`: durable on return.
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

/// A store that an older program made becomes one of this version, with all features, before
/// anything is written that the older one does not know. From 1 to 2 nothing else is to be done:
/// segments, packs, layers, the notes and the baseline are as they were, and version 2 has records
/// more. A step that is to be done comes before the file is replaced, and leaves a store that is of
/// the old version until then.
pub(super) fn read_and_migrate(dir: &OwnedFd) -> StoreResult<StoreId> {
    let format = read_format(dir)?;
    if format.version < FORMAT_VERSION
        || needed(dir).any(|feature| !format.features.iter().any(|has| has == feature))
    {
        write_format(dir, format.id, true)?;
    }
    Ok(format.id)
}

/// What the file `format` says.
#[derive(Debug)]
pub(in crate::store) struct Format {
    version: u32,
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

pub(in crate::store) fn parse_format(bytes: &[u8]) -> StoreResult<Format> {
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
    // The version comes first: of a newer format nothing else may be understood.
    let version = field("version")?
        .parse::<u32>()
        .map_err(|_| StoreError::NotAStore)?;
    let known: &[&str] = match version {
        0 => return Err(StoreError::NotAStore),
        1 => &FEATURES_1,
        FORMAT_VERSION => &FEATURES,
        found => {
            return Err(StoreError::NewerFormat {
                found,
                supported: FORMAT_VERSION,
            });
        }
    };
    let features: Vec<String> = field("features")?
        .split(' ')
        .filter(|name| *name != "-")
        .map(str::to_owned)
        .collect();
    if let Some(feature) = features.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(StoreError::UnknownFeature {
            feature: feature.clone(),
        });
    }
    Ok(Format {
        version,
        features,
        id: StoreId::parse(field("id")?).ok_or(StoreError::NotAStore)?,
    })
}
