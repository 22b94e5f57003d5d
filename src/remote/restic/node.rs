//! Converts entries of a tree to nodes of restic's format, and back.
//!
//! Like restic, we store the mtime in place of the access time. The format supports only extended
//! attributes whose names are UTF-8. The inode number is the slot. The device is set only for files
//! with several names, so that equal trees of two machines are equal nodes.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use jiff::Timestamp;
use rustic_core::repofile::{Metadata, Node, NodeType};

use ckptfs_api::{ExportData, ExportEntry, TreePath};
use ckptfs_sys::{Kind, Time};

/// The device of files with several names.
const LINKED_DEVICE: u64 = 1;

/// File type bits of a mode in Go (os.FileMode), which restic's format uses.
const GO_KINDS: [(Kind, u32); 7] = [
    (Kind::Dir, 1 << 31),
    (Kind::Symlink, 1 << 27),
    (Kind::BlockDev, 1 << 26),
    (Kind::CharDev, 1 << 26 | 1 << 21),
    (Kind::Fifo, 1 << 25),
    (Kind::Socket, 1 << 24),
    (Kind::File, 0),
];
/// Set-user-id, set-group-id and sticky: of a mode (inode(7)), and in Go.
const GO_BITS: [(u32, u32); 3] = [(0o4000, 1 << 23), (0o2000, 1 << 22), (0o1000, 1 << 20)];

/// The reason why the format cannot represent an entry.
pub enum Unrepresentable {
    /// Its name would change.
    Name,
    /// An extended attribute has a name that is not UTF-8.
    Xattr,
    /// A time is out of the format's range (years -9999 to 9999).
    Time,
}

impl Unrepresentable {
    pub fn reason(&self) -> &'static str {
        match self {
            Unrepresentable::Name => "its name does not fit into restic's format",
            Unrepresentable::Xattr => {
                "an extended attribute has a name that is not UTF-8, which restic's format cannot hold"
            }
            Unrepresentable::Time => "one of its times is out of the range of restic's format",
        }
    }
}

fn timestamp(time: Time) -> Result<Timestamp, Unrepresentable> {
    let nanoseconds = i32::try_from(time.nsec).map_err(|_| Unrepresentable::Time)?;
    Timestamp::new(time.sec, nanoseconds).map_err(|_| Unrepresentable::Time)
}

/// Returns the time of a node; 1970 if it has no time.
fn time(timestamp: Option<Timestamp>) -> Time {
    let nanoseconds = timestamp.map_or(0, Timestamp::as_nanosecond);
    Time {
        sec: i64::try_from(nanoseconds.div_euclid(1_000_000_000)).unwrap_or(0),
        nsec: u32::try_from(nanoseconds.rem_euclid(1_000_000_000)).unwrap_or(0),
    }
}

/// Converts an entry to a node named `name`. `changed_after`: the content has changed since this
/// time, so the ctime must be later.
///
/// # Errors
/// The part that the format cannot represent.
pub fn of_entry(
    entry: &ExportEntry,
    name: &[u8],
    changed_after: Option<Timestamp>,
) -> Result<Node, Unrepresentable> {
    let mtime = timestamp(entry.mtime())?;
    let mut ctime = timestamp(Time {
        sec: entry.ctime[0],
        nsec: u32::try_from(entry.ctime[1]).unwrap_or(0),
    })?;
    if let Some(after) = changed_after.filter(|after| ctime <= *after) {
        ctime = after
            .checked_add(jiff::SignedDuration::from_nanos(1))
            .map_err(|_| Unrepresentable::Time)?;
    }
    let xattrs = entry.xattrs.iter().map(|(name, value)| {
        serde_json::from_value(serde_json::json!({
            "name": std::str::from_utf8(&name.0).map_err(|_| Unrepresentable::Xattr)?,
            "value": base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &value.0),
        }))
        .map_err(|_| Unrepresentable::Xattr)
    });
    let linked = entry.is_linked();
    let meta = Metadata {
        mode: Some(go_mode(entry.kind, entry.mode)),
        mtime: Some(mtime),
        atime: Some(mtime),
        ctime: Some(ctime),
        uid: Some(entry.uid),
        gid: Some(entry.gid),
        inode: entry.inode,
        device_id: if linked { LINKED_DEVICE } else { 0 },
        size: if entry.kind == Kind::File {
            entry.size
        } else {
            0
        },
        links: if linked { entry.nlink.into() } else { 1 },
        extended_attributes: xattrs.collect::<Result<_, Unrepresentable>>()?,
        ..Metadata::default()
    };
    let kind = match entry.kind {
        Kind::File => NodeType::File,
        Kind::Dir => NodeType::Dir,
        Kind::Symlink => {
            let target = entry.target.as_ref().map_or(&[][..], |target| &target.0);
            NodeType::from_link(std::path::Path::new(OsStr::from_bytes(target)))
        }
        Kind::BlockDev => NodeType::Dev { device: entry.rdev },
        Kind::CharDev => NodeType::Chardev { device: entry.rdev },
        Kind::Fifo => NodeType::Fifo,
        Kind::Socket => NodeType::Socket,
    };
    let node = Node::new_node(OsStr::from_bytes(name), kind, meta);
    if node.name().as_bytes() == name {
        Ok(node)
    } else {
        Err(Unrepresentable::Name)
    }
}

fn go_mode(kind: Kind, mode: u32) -> u32 {
    let kind = GO_KINDS
        .iter()
        .find(|(of, _)| *of == kind)
        .map_or(0, |(_, bits)| *bits);
    let special = GO_BITS.iter().filter(|(bit, _)| mode & bit != 0);
    special.fold(kind | mode & 0o777, |all, (_, bit)| all | bit)
}

/// Converts a node to an entry at `path`.
pub fn to_entry(node: &Node, path: Vec<u8>) -> Option<ExportEntry> {
    let meta = &node.meta;
    let (kind, rdev) = match &node.node_type {
        NodeType::File => (Kind::File, 0),
        NodeType::Dir => (Kind::Dir, 0),
        NodeType::Symlink { .. } => (Kind::Symlink, 0),
        NodeType::Dev { device } => (Kind::BlockDev, *device),
        NodeType::Chardev { device } => (Kind::CharDev, *device),
        NodeType::Fifo => (Kind::Fifo, 0),
        NodeType::Socket => (Kind::Socket, 0),
    };
    let target = (kind == Kind::Symlink)
        .then(|| TreePath(node.node_type.to_link().as_os_str().to_owned().into_vec()));
    let told = meta.mode.unwrap_or(0o600);
    let special = GO_BITS.iter().filter(|(_, bit)| told & bit != 0);
    let mode = special.fold(told & 0o777, |all, (bit, _)| all | bit);
    let (atime, mtime, ctime) = (time(meta.mtime), time(meta.mtime), time(meta.ctime));
    let xattrs = meta.extended_attributes.iter().map(|one| {
        let value = one.value.clone().unwrap_or_default();
        (TreePath(one.name.clone().into_bytes()), TreePath(value))
    });
    Some(ExportEntry {
        path: TreePath(path),
        kind,
        mode,
        uid: meta.uid.unwrap_or(0),
        gid: meta.gid.unwrap_or(0),
        rdev,
        size: if kind == Kind::File { meta.size } else { 0 },
        times: [atime.sec, atime.nsec.into(), mtime.sec, mtime.nsec.into()],
        ctime: [ctime.sec, ctime.nsec.into()],
        inode: meta.inode,
        nlink: u32::try_from(meta.links).unwrap_or(u32::MAX),
        target,
        xattrs: xattrs.collect(),
        data: ExportData::None,
        again: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: Kind, mode: u32) -> ExportEntry {
        ExportEntry {
            path: TreePath(b"a".to_vec()),
            kind,
            mode,
            uid: 1,
            gid: 2,
            rdev: if kind == Kind::CharDev { 0x103 } else { 0 },
            size: if kind == Kind::File { 5 } else { 0 },
            times: [-1, 5, -1, 5],
            ctime: [7, 999_999_999],
            inode: 12,
            nlink: 1,
            target: (kind == Kind::Symlink).then(|| TreePath(b"to \xff\"\\".to_vec())),
            xattrs: vec![(TreePath(b"user.a".to_vec()), TreePath(vec![0, 255]))],
            data: ExportData::None,
            again: false,
        }
    }

    #[test]
    fn what_goes_in_comes_back() {
        for (kind, _) in GO_KINDS {
            for mode in [0, 0o644, 0o7777, 0o4755, 0o2755, 0o1777] {
                let entry = entry(kind, mode);
                let node = of_entry(&entry, b"a", None).ok().expect("fits");
                assert_eq!(to_entry(&node, b"a".to_vec()), Some(entry));
            }
        }
    }

    #[test]
    fn every_name_comes_back_or_is_refused() {
        for byte in (1..=255_u8).filter(|byte| *byte != b'/') {
            for name in [
                vec![byte],
                vec![b'a', byte, b'b'],
                vec![byte, 0xc3, 0xa4],
                vec![b'\\', byte],
            ] {
                let node = of_entry(&entry(Kind::File, 0), &name, None);
                assert!(node.is_ok(), "{name:?}");
            }
        }
    }

    #[test]
    fn what_was_changed_has_a_later_ctime() {
        let after = Timestamp::new(7, 999_999_999).expect("a time");
        let node = of_entry(&entry(Kind::File, 0), b"a", Some(after))
            .ok()
            .expect("fits");
        assert!(node.meta.ctime > Some(after));
    }
}
