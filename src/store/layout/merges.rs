//! Records of merges between a branch and its parent, in both directions: the states that both have
//! in common, and the inodes that are one.
//!
//! ```text
//! .ckptfs/merges/ID        of the branch whose store has this id: text, written atomically, in order (`in_order`)
//! .ckptfs/merges/ID.same   pairs of inodes, appended, in order: 56 bytes each
//!
//!   ckptfs merges
//!   version 1
//!   into branch epoch 8 number 5 at 1764117933000000000 from 12 made 1764117932000000000 clean done
//!   into parent epoch 14 number 0 at 0 from 9 made 1764117934000000000 begun
//!
//! pair      inode, inode, 8 B of the BLAKE3 hash of both
//! inode     u64 slot, i64 seconds, u32 nanoseconds of its birth (ffffffff: unknown), u32 0
//! ```
//!
//! A merge is written as `begun` before its operation ends, and as `done` after that: `done` is
//! never on disk without the operation. A merge in state `begun` is valid if its operation exists.
//! A kill or a power cut thus leaves both or none of them.
//!
//! Locking: none; the writer has claimed the branch.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::super::{at, ordered_file};
use super::branches::{BranchEntry, MARK, Registry, read_entry};
use super::{StoreId, open_trusted, own_dir};
use crate::error::{StoreError, StoreResult};
use crate::ids::Slot;
use ckptfs_api::CheckpointId;
use ckptfs_sys::Time;

const MERGES: &str = "merges";
const SAME_SUFFIX: &str = ".same";
const HEAD: &str = "ckptfs merges\nversion 1\n";
/// Size limit of the text, in bytes; a merge has less than 150.
const TEXT_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of recorded merges; the oldest are discarded.
pub const MERGES_MAX: usize = 4000;
const PAIR_BYTES: usize = 56;
/// Maximum number of recorded pairs. Inodes merged beyond it have no common history.
const PAIRS_MAX: usize = 1_000_000;
/// Stands for an unknown time in place of the nanoseconds.
const NO_TIME: u32 = u32::MAX;

/// The target of a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeInto {
    /// The parent was merged into the branch.
    Branch,
    /// The branch was merged into the parent.
    Parent,
}

/// A complete merge of one side into the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeEntry {
    /// The side that was changed.
    pub into: MergeInto,
    /// The first checkpoint of that side that contains, or will contain, the merged changes.
    pub epoch: CheckpointId,
    /// The number of the operation on that side, and its time, nanoseconds since 1970. If the merge
    /// changed nothing, those of the previous merge with changes; 0 if none exists.
    pub operation: (u64, i64),
    /// The merged checkpoint of the other side, and its creation time.
    pub from: (CheckpointId, i64),
    /// The merge had no conflicts.
    pub clean: bool,
    /// The merge is known to be durable.
    pub done: bool,
}

/// An inode number and birth time, because numbers are reused.
pub type InodeBirth = (Slot, Option<Time>);

impl MergeEntry {
    fn line(&self) -> String {
        let into = match self.into {
            MergeInto::Branch => "branch",
            MergeInto::Parent => "parent",
        };
        let ((number, at_ns), (from, made_ns)) = (self.operation, self.from);
        let state = if self.done { "done" } else { "begun" };
        let clean = if self.clean { "clean " } else { "" };
        format!(
            "into {into} epoch {} number {number} at {at_ns} from {} made {made_ns} {clean}{state}\n",
            self.epoch.0, from.0
        )
    }

    fn parse(line: &str) -> Option<MergeEntry> {
        let mut words: Vec<&str> = line.split(' ').collect();
        let clean = words.iter().rev().nth(1) == Some(&"clean");
        if clean {
            words.remove(words.len().saturating_sub(2));
        }
        let [
            "into",
            into,
            "epoch",
            epoch,
            "number",
            number,
            "at",
            at_ns,
            "from",
            from,
            "made",
            made_ns,
            state,
        ] = words[..]
        else {
            return None;
        };
        Some(MergeEntry {
            into: match into {
                "branch" => MergeInto::Branch,
                "parent" => MergeInto::Parent,
                _ => return None,
            },
            epoch: CheckpointId(epoch.parse().ok()?),
            operation: (number.parse().ok()?, at_ns.parse().ok()?),
            from: (CheckpointId(from.parse().ok()?), made_ns.parse().ok()?),
            clean,
            done: match state {
                "done" => true,
                "begun" => false,
                _ => return None,
            },
        })
    }
}

fn parse(bytes: &[u8]) -> Option<Vec<MergeEntry>> {
    let text = std::str::from_utf8(bytes).ok()?.strip_prefix(HEAD)?;
    text.lines().map(MergeEntry::parse).collect()
}

fn birth_bytes((slot, btime): &InodeBirth) -> [u8; 24] {
    let (sec, nsec) = btime.map_or((0, NO_TIME), |time| (time.sec, time.nsec));
    let mut bytes = [0; 24];
    let (number, rest) = bytes.split_at_mut(8);
    let (seconds, rest) = rest.split_at_mut(8);
    number.copy_from_slice(&slot.0.to_le_bytes());
    seconds.copy_from_slice(&sec.to_le_bytes());
    if let Some((nanoseconds, _)) = rest.split_at_mut_checked(4) {
        nanoseconds.copy_from_slice(&nsec.to_le_bytes());
    }
    bytes
}

fn parse_birth(bytes: &[u8]) -> Option<InodeBirth> {
    let (slot, rest) = bytes.split_first_chunk::<8>()?;
    let (sec, rest) = rest.split_first_chunk::<8>()?;
    let (nsec, _) = rest.split_first_chunk::<4>()?;
    let (sec, nsec) = (i64::from_le_bytes(*sec), u32::from_le_bytes(*nsec));
    let btime = (nsec != NO_TIME).then_some(Time { sec, nsec });
    Some((Slot(u64::from_le_bytes(*slot)), btime))
}

fn sum(pair: &[u8]) -> [u8; 8] {
    let hash = blake3::hash(pair);
    *hash.as_bytes().first_chunk().unwrap_or(&[0; 8])
}

/// Parses a pair; `None` if it was written partly.
fn parse_pair(bytes: &[u8]) -> Option<[InodeBirth; 2]> {
    let (pair, written) = bytes.split_at_checked(48)?;
    let (one, other) = pair.split_at_checked(24)?;
    (written == sum(pair)).then_some([parse_birth(one)?, parse_birth(other)?])
}

impl<'a> Registry<'a> {
    /// Returns the merges of the branch whose store has this id.
    pub fn merges(&self, branch: StoreId) -> Merges<'a> {
        Merges {
            store: self.store,
            branch,
        }
    }

    /// Returns the branch entry of the store itself; `None` if it is not a branch.
    ///
    /// # Errors
    /// `BadBranch`; those of read(2).
    pub fn own(&self) -> StoreResult<Option<BranchEntry>> {
        read_entry(self.store, MARK)
    }
}

/// The merges of a branch, in the store of its parent.
#[derive(Clone, Copy, Debug)]
pub struct Merges<'a> {
    store: &'a OwnedFd,
    branch: StoreId,
}

impl Merges<'_> {
    fn dir(&self) -> StoreResult<Option<OwnedFd>> {
        match at::open_dir(self.store, MERGES) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            _ => open_trusted(self.store, self.store, MERGES).map(Some),
        }
    }

    /// Returns all recorded merges, oldest first.
    ///
    /// # Errors
    /// `BadBranch`: the file is invalid. Those of read(2).
    pub fn all(&self) -> StoreResult<Vec<MergeEntry>> {
        let Some(dir) = self.dir()? else {
            return Ok(Vec::new());
        };
        let file = self.branch.to_string();
        match ordered_file::read(&dir, &file, TEXT_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(StoreError::io("read", MERGES)(error)),
            Ok(bytes) => parse(&bytes).ok_or(StoreError::BadBranch { file }),
        }
    }

    /// Writes all merges, newest last. After a power cut they exist if any later change does, and
    /// only together with all earlier ones. If the file must be synced for that, `before` is called
    /// first.
    ///
    /// # Errors
    /// Those of `before`, write(2), fsync(2) and rename(2).
    pub fn write(
        &self,
        merges: &[MergeEntry],
        before: &dyn Fn() -> io::Result<()>,
    ) -> StoreResult<()> {
        let dir = self.made_dir()?;
        let newest = merges.len().saturating_sub(MERGES_MAX);
        let mut text = HEAD.to_owned();
        for merge in merges.iter().skip(newest) {
            text.push_str(&merge.line());
        }
        ordered_file::write(&dir, &self.branch.to_string(), text.as_bytes(), before)
            .map_err(StoreError::io("write", MERGES))
    }

    fn made_dir(&self) -> StoreResult<OwnedFd> {
        if let Some(dir) = self.dir()? {
            return Ok(dir);
        }
        let dir = own_dir(self.store, MERGES)?;
        if !ordered_file::is_kept(&dir) {
            at::sync_dir(self.store).map_err(StoreError::io("sync", MERGES))?;
        }
        Ok(dir)
    }

    fn same_name(&self) -> String {
        format!("{}{SAME_SUFFIX}", self.branch)
    }

    /// Returns the pairs of inodes that are one.
    ///
    /// # Errors
    /// Those of read(2).
    pub fn pairs(&self) -> StoreResult<Vec<[InodeBirth; 2]>> {
        let Some(dir) = self.dir()? else {
            return Ok(Vec::new());
        };
        let limit = (PAIRS_MAX * PAIR_BYTES) as u64;
        let bytes = match ordered_file::read(&dir, &self.same_name(), limit) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            bytes => bytes.map_err(StoreError::io("read", MERGES))?,
        };
        Ok(bytes
            .chunks_exact(PAIR_BYTES)
            .filter_map(parse_pair)
            .collect())
    }

    /// Appends pairs, ordered as in [`Merges::write`]. A pair with an inode that was never created
    /// is harmless.
    ///
    /// # Errors
    /// Those of write(2), fsync(2).
    pub fn add_pairs(&self, pairs: &[[InodeBirth; 2]]) -> StoreResult<()> {
        if pairs.is_empty() {
            return Ok(());
        }
        let dir = self.made_dir()?;
        let mut bytes = Vec::with_capacity(pairs.len() * PAIR_BYTES);
        for [one, other] in pairs {
            let begin = bytes.len();
            bytes.extend_from_slice(&birth_bytes(one));
            bytes.extend_from_slice(&birth_bytes(other));
            let sum = sum(bytes.get(begin..).unwrap_or_default());
            bytes.extend_from_slice(&sum);
        }
        let limit = (PAIRS_MAX * PAIR_BYTES) as u64;
        ordered_file::append(&dir, &self.same_name(), &bytes, (PAIR_BYTES, limit))
            .map_err(StoreError::io("write", MERGES))
    }

    /// Compacts the pairs for faster reading.
    ///
    /// # Errors
    /// Those of write(2), fsync(2).
    pub fn fold_pairs(&self) -> StoreResult<()> {
        let Some(dir) = self.dir()? else {
            return Ok(());
        };
        ordered_file::fold(&dir, &self.same_name()).map_err(StoreError::io("write", MERGES))
    }

    /// Removes the records of a freed branch.
    ///
    /// # Errors
    /// Those of unlink(2).
    pub fn forget(&self) -> StoreResult<()> {
        let Some(dir) = self.dir()? else {
            return Ok(());
        };
        for name in [self.branch.to_string(), self.same_name()] {
            match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(StoreError::io("remove", MERGES)(errno)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(into: MergeInto, done: bool) -> MergeEntry {
        MergeEntry {
            into,
            epoch: CheckpointId(8),
            operation: (5, 1_764_117_933_000_000_000),
            from: (CheckpointId(12), -3),
            clean: !done,
            done,
        }
    }

    #[test]
    fn a_merge_is_read_as_it_was_written_and_nothing_else_is() {
        for merge in [
            entry(MergeInto::Branch, false),
            entry(MergeInto::Parent, true),
        ] {
            let text = format!("{HEAD}{}", merge.line());
            assert_eq!(parse(text.as_bytes()), Some(vec![merge]));
            for end in HEAD.len() + 1..text.len() - 1 {
                assert_eq!(parse(&text.as_bytes()[..end]), None, "{end}");
            }
        }
        assert_eq!(parse(b"ckptfs merges\nversion 2\n"), None);
    }

    #[test]
    fn a_pair_that_was_written_in_part_is_none() {
        let births = [
            (Slot(7), None),
            (Slot(1 << 56), Some(Time { sec: -5, nsec: 7 })),
        ];
        let mut bytes = [birth_bytes(&births[0]), birth_bytes(&births[1])].concat();
        bytes.extend(sum(&bytes));
        assert_eq!(bytes.len(), PAIR_BYTES);
        assert_eq!(parse_pair(&bytes), Some(births));
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_eq!(parse_pair(&other), None, "{at}");
        }
        assert_eq!(parse_pair(&[0; PAIR_BYTES]), None);
    }
}
