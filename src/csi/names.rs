//! Names: an orchestrator's may have any characters, the pool's may not.

use crate::volumes::{SNAPSHOT_TAG, Sent, name};

/// Longest name that an orchestrator may give, in bytes (the specification's limit for strings).
pub const NAME_BYTES_MAX: usize = 128;
/// What stands for a name that the pool cannot have begins so.
const MAPPED: &str = "csi-";
/// Hexadecimal digits of a BLAKE3 hash.
const HASH_DIGITS: usize = 64;
/// So many volumes of one name may have been deleted and be kept for their clones.
const AGAIN_MAX: u8 = 15;
/// Longest rest of such a tag: a tag has at most 100 bytes.
const TAG_REST_BYTES_MAX: usize = 96;
/// What stands in place of a node in the id of a snapshot that is in a remote begins so; no node
/// can be called so.
const SENT: &str = "remote/";
/// Longest name of a node that stands as it is in the id of a snapshot: a label of a host's name
/// has no more bytes (RFC 1035).
const NODE_BYTES_MAX: usize = 63;
/// Hexadecimal digits that stand for any other.
const NODE_HASH_DIGITS: usize = 16;

/// The pool's name for what is called `text`: that itself, or its hash. Never the same for two:
/// what looks like a hash is hashed too.
pub fn volume(text: &str) -> String {
    mapped(text, name::NAME_BYTES_MAX)
}

/// Further names of the pool for what is called `text`, in their order: for a volume that was
/// deleted and is kept for its clones has the first. Never those of another text.
pub fn volumes_again(text: &str) -> impl Iterator<Item = String> {
    (0..AGAIN_MAX).map(move |number| {
        let mut hasher = blake3::Hasher::new();
        // No text has a byte as the second one.
        hasher.update(text.as_bytes()).update(&[0xff, number]);
        format!("{MAPPED}{}", hasher.finalize().to_hex())
    })
}

/// The tag of a snapshot that is called `text`.
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

/// What the id of a snapshot says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotId<'a> {
    /// The volume.
    pub volume: &'a str,
    /// The number of its checkpoint.
    pub checkpoint: u64,
    /// The node that it is on, as [`node`] writes it; an id that somebody writes by hand may leave
    /// it out, and one that is in a remote has none.
    pub node: Option<&'a str>,
    /// The remote that has it, and the number of the volume's store, by which it is known there.
    pub sent: Option<(&'a str, &'a str)>,
}

/// A node as it stands in the id of a snapshot: its name, or the beginning of a hash where that is
/// too long or has other characters than a host's.
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

/// The id of a snapshot on a node.
pub fn snapshot_id(volume: &str, checkpoint: u64, on: &str) -> String {
    format!("{volume}@{checkpoint}@{}", node(on))
}

/// The id of a snapshot that is in a remote, or is to be. Every node understands it.
pub fn sent_id(volume: &str, checkpoint: u64, sent: &Sent) -> String {
    format!("{volume}@{checkpoint}@{SENT}{}/{}", sent.remote, sent.store)
}

/// Where a snapshot is in a remote, if its id says that it is: the number of its checkpoint, the
/// remote and the store. What it says is to be seen there.
pub fn sent(id: &str) -> Option<(u64, Sent)> {
    let parsed = parse_snapshot_id(id)?;
    let (remote, store) = parsed.sent?;
    let sent = Sent {
        remote: remote.to_owned(),
        store: store.to_owned(),
        whole: false,
    };
    Some((parsed.checkpoint, sent))
}

/// What the id of a snapshot says; `None`: it is none of ours.
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
        let there = Sent {
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
