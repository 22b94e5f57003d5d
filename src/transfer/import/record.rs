//! The record of the last import, so that the next one reads only changed files. For each path it
//! has the stat(2) values of the source and of its copy in the tree. Equal values prove that both
//! are unchanged: any change of an inode updates its ctime, which no process can set.
//!
//! A record is a cache. If it is missing or damaged, everything is compared.
//!
//! ```text
//! .ckptfs/imported
//!   "ckptfs imported 1\n"                      18 bytes
//!   hash of all following bytes                32 bytes of BLAKE3
//!   device of the source                       8, all numbers little-endian
//!   root: source, tree                         2 traces
//!   directories, each:
//!     length of path, path                     4, ...
//!     number of names                          4
//!     names, each:
//!       length, name                           1, ...
//!       kind, flags                            1, 1: bit 0, hash present
//!       source, tree                           2 traces
//!       hash of the content                    32, if present
//! trace: inode, size, mtime, ctime             8, 8, 8 + 4, 8 + 4
//!
//! .ckptfs/imported-as      the checkpoint that shows the import, a space, the first 16 digits of that hash, a line feed; written when it is made
//! .ckptfs/imported-in      the same, with a space and the daemon that has served the tree since, before the line feed
//! ```

use std::collections::HashMap;

use ckptfs_sys::{Kind, Stat, Time};

/// Name of the record in the store.
pub const RECORD_NAME: &[u8] = b"imported";
/// Name of the file with the checkpoint of the record.
pub const CHECKPOINT_NAME: &[u8] = b"imported-as";
/// Name of the file with the daemon that has served the tree since it was compared with the record.
pub const DAEMON_NAME: &[u8] = b"imported-in";
const MAGIC: &[u8] = b"ckptfs imported 1\n";
/// Length of a hash, in bytes.
const HASH_BYTES: usize = 32;
const KINDS: [Kind; 7] = [
    Kind::File,
    Kind::Dir,
    Kind::Symlink,
    Kind::Fifo,
    Kind::Socket,
    Kind::CharDev,
    Kind::BlockDev,
];

/// BLAKE3 hash of a file's content.
pub type Hash = [u8; HASH_BYTES];

/// Values that identify the unchanged state of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InodeStamp {
    /// Inode number.
    pub ino: u64,
    /// Size in bytes; always 0 for a directory, where the size is not significant.
    pub size: u64,
    /// Modification time.
    pub mtime: Time,
    /// Status change time.
    pub ctime: Time,
}

impl InodeStamp {
    /// Returns the values of an inode.
    pub fn of(stat: &Stat) -> InodeStamp {
        let size = if stat.kind == Kind::Dir { 0 } else { stat.size };
        InodeStamp {
            ino: stat.ino,
            size,
            mtime: stat.mtime,
            ctime: stat.ctime,
        }
    }
}

/// An imported name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedName {
    /// The name.
    pub name: Vec<u8>,
    /// Type of its inode.
    pub kind: Kind,
    /// Values in the source.
    pub source: InodeStamp,
    /// Values in the tree.
    pub there: InodeStamp,
    /// Hash of its content, if computed.
    pub hash: Option<Hash>,
}

/// The record of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportRecord {
    /// Device number of the source.
    pub device: u64,
    /// The root in the source, and in the tree.
    pub root: (InodeStamp, InodeStamp),
    /// Names by directory, sorted by name.
    pub dirs: HashMap<Vec<u8>, Vec<ImportedName>>,
}

impl ImportRecord {
    /// Encodes the record in its file format.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; MAGIC.len() + HASH_BYTES];
        bytes.extend_from_slice(&self.device.to_le_bytes());
        put_trace(&mut bytes, &self.root.0);
        put_trace(&mut bytes, &self.root.1);
        let mut dirs: Vec<_> = self.dirs.iter().collect();
        dirs.sort_by(|a, b| a.0.cmp(b.0));
        for (path, names) in dirs {
            put_length(&mut bytes, path.len());
            bytes.extend_from_slice(path);
            put_length(&mut bytes, names.len());
            for known in names {
                bytes.push(u8::try_from(known.name.len()).unwrap_or(0));
                bytes.extend_from_slice(&known.name);
                bytes.push(
                    KINDS
                        .iter()
                        .position(|kind| *kind == known.kind)
                        .and_then(|at| u8::try_from(at).ok())
                        .unwrap_or(0),
                );
                bytes.push(u8::from(known.hash.is_some()));
                put_trace(&mut bytes, &known.source);
                put_trace(&mut bytes, &known.there);
                bytes.extend_from_slice(known.hash.as_ref().map_or(&[], Hash::as_slice));
            }
        }
        let hash = blake3::hash(bytes.get(MAGIC.len() + HASH_BYTES..).unwrap_or_default());
        let head = [MAGIC, hash.as_bytes()].concat();
        bytes.splice(..head.len(), head);
        bytes
    }

    /// Decodes a record; `None` if it is malformed or damaged.
    pub fn decode(bytes: &[u8]) -> Option<ImportRecord> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let (hash, rest) = rest.split_at_checked(HASH_BYTES)?;
        if blake3::hash(rest).as_bytes() != hash {
            return None;
        }
        let mut from = RecordReader(rest);
        let mut record = ImportRecord {
            device: from.u64()?,
            root: (from.trace()?, from.trace()?),
            dirs: HashMap::new(),
        };
        while !from.0.is_empty() {
            let length = from.length()?;
            let path = from.take(length)?.to_vec();
            let count = from.length()?;
            let mut names = Vec::new();
            for _ in 0..count {
                names.push(from.known()?);
            }
            record.dirs.insert(path, names);
        }
        Some(record)
    }

    /// Returns the content of the file that names the checkpoint of an encoded record.
    pub fn checkpoint_text(bytes: &[u8], checkpoint: u64) -> String {
        let hash = bytes.get(MAGIC.len()..MAGIC.len() + 8).unwrap_or_default();
        let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{checkpoint} {digits}\n")
    }

    /// Returns the checkpoint that such a file names, if it belongs to this record.
    pub fn checkpoint_of(bytes: &[u8], text: &[u8]) -> Option<u64> {
        let found = std::str::from_utf8(text)
            .ok()?
            .split(' ')
            .next()?
            .parse()
            .ok()?;
        (ImportRecord::checkpoint_text(bytes, found).as_bytes() == text).then_some(found)
    }

    /// Returns the content of the file that names the daemon that has served the tree since it
    /// matched the record.
    pub fn daemon_text(bytes: &[u8], checkpoint: u64, daemon: &str) -> String {
        format!(
            "{} {daemon}\n",
            ImportRecord::checkpoint_text(bytes, checkpoint).trim_end()
        )
    }

    /// Returns the entry of a name in a directory.
    pub fn find(&self, dir: &[u8], name: &[u8]) -> Option<&ImportedName> {
        let names = self.dirs.get(dir)?;
        names
            .binary_search_by(|known| known.name.as_slice().cmp(name))
            .ok()
            .and_then(|at| names.get(at))
    }
}

fn put_length(bytes: &mut Vec<u8>, length: usize) {
    bytes.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
}

fn put_trace(bytes: &mut Vec<u8>, trace: &InodeStamp) {
    bytes.extend_from_slice(&trace.ino.to_le_bytes());
    bytes.extend_from_slice(&trace.size.to_le_bytes());
    for time in [trace.mtime, trace.ctime] {
        bytes.extend_from_slice(&time.sec.to_le_bytes());
        bytes.extend_from_slice(&time.nsec.to_le_bytes());
    }
}

struct RecordReader<'a>(&'a [u8]);

impl<'a> RecordReader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn length(&mut self) -> Option<usize> {
        usize::try_from(self.bytes().map(u32::from_le_bytes)?).ok()
    }

    fn time(&mut self) -> Option<Time> {
        Some(Time {
            sec: self.bytes().map(i64::from_le_bytes)?,
            nsec: self.bytes().map(u32::from_le_bytes)?,
        })
    }

    fn trace(&mut self) -> Option<InodeStamp> {
        Some(InodeStamp {
            ino: self.u64()?,
            size: self.u64()?,
            mtime: self.time()?,
            ctime: self.time()?,
        })
    }

    fn known(&mut self) -> Option<ImportedName> {
        let [length] = self.bytes()?;
        let name = self.take(usize::from(length))?.to_vec();
        let [kind, flags] = self.bytes()?;
        let kind = *KINDS.get(usize::from(kind))?;
        let (source, there) = (self.trace()?, self.trace()?);
        let hash = match flags {
            0 => None,
            1 => Some(self.bytes()?),
            _ => return None,
        };
        Some(ImportedName {
            name,
            kind,
            source,
            there,
            hash,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> ImportRecord {
        let time = |sec| Time {
            sec,
            nsec: 999_999_999,
        };
        let trace = |ino| InodeStamp {
            ino,
            size: 7,
            mtime: time(-1),
            ctime: time(5),
        };
        let known = |name: &[u8], kind, hash| ImportedName {
            name: name.to_vec(),
            kind,
            source: trace(1),
            there: trace(2),
            hash,
        };
        let names = vec![
            known(b"a", Kind::File, Some([3; 32])),
            known(&[0xff; 255], Kind::BlockDev, None),
        ];
        let dirs = [(Vec::new(), names), (b"a/b".to_vec(), Vec::new())]
            .into_iter()
            .collect();
        ImportRecord {
            device: 9,
            root: (trace(4), trace(5)),
            dirs,
        }
    }

    #[test]
    fn a_record_is_read_as_written_and_every_changed_byte_is_found() {
        let (record, bytes) = (sample(), sample().encode());
        assert_eq!(ImportRecord::decode(&bytes).as_ref(), Some(&record));
        assert_eq!(
            record.find(b"", b"a").and_then(|known| known.hash),
            Some([3; 32])
        );
        assert_eq!(record.find(b"a/b", b"a"), None);
        let text = ImportRecord::checkpoint_text(&bytes, 12);
        assert_eq!(
            ImportRecord::checkpoint_of(&bytes, text.as_bytes()),
            Some(12)
        );
        assert_eq!(
            ImportRecord::checkpoint_of(&[MAGIC, &[0; 40]].concat(), text.as_bytes()),
            None
        );
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 0x40;
            assert_eq!(ImportRecord::decode(&other), None, "byte {at}");
            assert_eq!(ImportRecord::decode(&bytes[..at]), None, "{at} bytes of it");
        }
    }

    #[test]
    fn what_carries_its_own_hash_and_is_no_record_is_refused() {
        let whole = sample().encode();
        for cut in MAGIC.len() + HASH_BYTES..whole.len() {
            let body = &whole[MAGIC.len() + HASH_BYTES..cut];
            let bytes = [MAGIC, blake3::hash(body).as_bytes(), body].concat();
            // Decoding must not panic, and succeeds only where a directory ends.
            if let Some(record) = ImportRecord::decode(&bytes) {
                assert!(record.dirs.len() < 2, "cut at {cut}");
            }
        }
    }
}
