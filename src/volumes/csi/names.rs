//! Mapping of names: an orchestrator's may have any characters, the pool's may not.

use crate::{RemoteDestination, SNAPSHOT_TAG, name};

/// Maximum length of an orchestrator's name in bytes (the specification's limit for strings).
pub const NAME_BYTES_MAX: usize = 128;
/// Prefix of the replacement for a name that is invalid in the pool.
const MAPPED: &str = "csi-";
/// Hexadecimal digits of a BLAKE3 hash.
const HASH_DIGITS: usize = 64;
/// Maximum number of deleted volumes of one name that are retained for their clones.
const AGAIN_MAX: u8 = 15;
/// Maximum length of such a tag without its prefix; a tag has up to 100 bytes.
const TAG_REST_BYTES_MAX: usize = 96;
/// Prefix that replaces the node in the id of a snapshot in a remote; no node can have this name.
const SENT: &str = "remote/";
/// Maximum length of a node name that is used unchanged in the id of a snapshot: that of a host
/// name's label (RFC 1035).
const NODE_BYTES_MAX: usize = 63;
/// Hexadecimal digits that replace other node names.
const NODE_HASH_DIGITS: usize = 16;

/// Returns the pool's name for `text`: the text itself, or its hash. The mapping is injective: a
/// text that resembles a hash is hashed.
pub fn volume(text: &str) -> String {
    mapped(text, name::NAME_BYTES_MAX)
}

/// Returns further names in the pool for `text`, in order, for use while a deleted volume retained
/// for its clones has the first. They never collide with those of another text.
pub fn volumes_again(text: &str) -> impl Iterator<Item = String> {
    (0..AGAIN_MAX).map(move |number| {
        let mut hasher = blake3::Hasher::new();
        // UTF-8 text never contains the byte 0xff.
        hasher.update(text.as_bytes()).update(&[0xff, number]);
        format!("{MAPPED}{}", hasher.finalize().to_hex())
    })
}

/// Returns the tag of the snapshot called `text`.
pub fn tag(text: &str) -> String {
    format!("{SNAPSHOT_TAG}{}", mapped(text, TAG_REST_BYTES_MAX))
}

fn mapped(text: &str, bytes_max: usize) -> String {
    let looks_mapped = text.strip_prefix(MAPPED).is_some_and(|rest| {
        rest.len() == HASH_DIGITS && rest.bytes().all(|byte| byte.is_ascii_hexdigit())
    });
    if !looks_mapped && text.len() <= bytes_max && name::check(text).is_ok() {
        return text.to_owned();
    }
    format!("{MAPPED}{}", blake3::hash(text.as_bytes()).to_hex())
}

/// The parsed id of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotId<'a> {
    /// The volume.
    pub volume: &'a str,
    /// The number of its checkpoint.
    pub checkpoint: u64,
    /// The node of the snapshot, as encoded by [`node`]. A user may omit it, and a snapshot in a
    /// remote has none.
    pub node: Option<&'a str>,
    /// The remote that stores it, and the id of the volume's store, which names it there.
    pub sent: Option<(&'a str, &'a str)>,
}

/// Returns the form of a node name in the id of a snapshot: the name, or a prefix of its hash if
/// the name is too long or has other characters than a host name.
pub fn node(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    if !name.is_empty() && name.len() <= NODE_BYTES_MAX && name.bytes().all(plain) {
        return name.to_owned();
    }
    format!(
        "_{}",
        blake3::hash(name.as_bytes())
            .to_hex()
            .as_str()
            .chars()
            .take(NODE_HASH_DIGITS)
            .collect::<String>()
    )
}

/// Returns the id of a snapshot on a node.
pub fn snapshot_id(volume: &str, checkpoint: u64, on: &str) -> String {
    format!("{volume}@{checkpoint}@{}", node(on))
}

/// Returns the id of a snapshot that is, or will be, in a remote. It is valid on every node.
pub fn sent_id(volume: &str, checkpoint: u64, sent: &RemoteDestination) -> String {
    format!("{volume}@{checkpoint}@{SENT}{}/{}", sent.remote, sent.store)
}

/// Returns checkpoint number, remote and store if the id is that of a snapshot in a remote. The
/// remote is not queried.
pub fn sent(id: &str) -> Option<(u64, RemoteDestination)> {
    let parsed = parse_snapshot_id(id)?;
    let (remote, store) = parsed.sent?;
    let sent = RemoteDestination {
        remote: remote.to_owned(),
        store: store.to_owned(),
        whole: false,
    };
    Some((parsed.checkpoint, sent))
}

/// Parses the id of a snapshot; `None` if it is not an id of this driver.
pub fn parse_snapshot_id(id: &str) -> Option<SnapshotId<'_>> {
    let (volume, rest) = id.split_once('@')?;
    let (number, node) = rest
        .split_once('@')
        .map_or((rest, None), |(number, node)| (number, Some(node)));
    let digits = !number.is_empty()
        && number.bytes().all(|byte| byte.is_ascii_digit())
        && !number.starts_with('0');
    let sent = node.and_then(|node| node.strip_prefix(SENT));
    let sent = match sent.map(|sent| sent.split_once('/')) {
        Some(Some((remote, store))) => {
            name::check(remote).and(name::check(store)).ok()?;
            Some((remote, store))
        }
        Some(None) => return None,
        None => None,
    };
    let node_ok = node.is_none_or(|node| !node.is_empty() && !node.contains('@'));
    name::check(volume).ok().filter(|()| digits && node_ok)?;
    Some(SnapshotId {
        volume,
        checkpoint: number.parse().ok()?,
        node: node.filter(|_| sent.is_none()),
        sent,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kept_where_they_can_be_and_never_fall_together() {
        let hash = volume("a b");
        let taken = [
            "pvc-1",
            "a.b_c",
            "a b",
            "a/b",
            "../etc",
            "",
            "ä",
            "-a",
            ".a",
            "a\0",
            hash.as_str(),
            &"x".repeat(128),
            &"ä".repeat(64),
        ];
        assert_eq!(volume("pvc-1"), "pvc-1");
        assert!(hash.len() == MAPPED.len() + HASH_DIGITS && volume(&hash) != hash);
        for map in [volume, tag] {
            let mapped: std::collections::BTreeSet<String> =
                taken.iter().map(|text| map(text)).collect();
            assert_eq!(mapped.len(), taken.len());
            assert!(
                mapped
                    .iter()
                    .all(|text| name::check(text).is_ok() && text.len() <= 200)
            );
        }
        assert!(taken.iter().all(|text| tag(text).len() <= 100));
        let again: std::collections::BTreeSet<String> = taken
            .iter()
            .flat_map(|text| volumes_again(text).chain([volume(text)]))
            .collect();
        assert_eq!(again.len(), taken.len() * (usize::from(AGAIN_MAX) + 1));
        assert!(again.iter().all(|text| name::check(text).is_ok()));
    }

    #[test]
    fn an_id_of_a_snapshot_is_read_as_it_was_written() {
        assert_eq!(
            parse_snapshot_id("pvc-1@12"),
            Some(SnapshotId {
                volume: "pvc-1",
                checkpoint: 12,
                node: None,
                sent: None
            })
        );
        for on in ["node-1.example", "a b", "a@b", "", &"n".repeat(200)] {
            let (id, node) = (snapshot_id("pvc-1", 12, on), node(on));
            assert_eq!(
                parse_snapshot_id(&id),
                Some(SnapshotId {
                    volume: "pvc-1",
                    checkpoint: 12,
                    node: Some(&node),
                    sent: None
                })
            );
            assert!(
                node == on || node.starts_with('_') && node.len() == 1 + NODE_HASH_DIGITS,
                "{node}"
            );
        }
        let there = RemoteDestination {
            remote: "home-2".into(),
            store: "b644".into(),
            whole: false,
        };
        let id = sent_id("pvc-1", 12, &there);
        assert_eq!(id, "pvc-1@12@remote/home-2/b644");
        assert_eq!(sent(&id), Some((12, there)));
        assert_eq!(parse_snapshot_id(&id).and_then(|one| one.node), None);
        assert_eq!(sent("pvc-1@12@node-1"), None);
        for none in [
            "v@1@remote/",
            "v@1@remote/home",
            "v@1@remote/home/",
            "v@1@remote//b644",
            "v@1@remote/home/b644/c",
            "v@1@remote/../b644",
            "v@1@remote/-f/b644",
            "v@1@remote/home/b644@c",
            "v@1@",
            "v@1@a@b",
            "",
            "@",
            "v",
            "v@",
            "@1",
            "v@x",
            "v@+1",
            "v@01",
            "v@0",
            "../v@1",
            "v@99999999999999999999999",
        ] {
            assert_eq!(parse_snapshot_id(none), None, "{none}");
        }
    }
}
