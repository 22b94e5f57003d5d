//! Names: an orchestrator's may have any characters, the pool's may not.

use crate::volumes::name;

/// Longest name that an orchestrator may give, in bytes (the specification's limit for strings).
pub const NAME_BYTES_MAX: usize = 128;
/// What stands for a name that the pool cannot have begins so.
const MAPPED: &str = "csi-";
/// Hexadecimal digits of a BLAKE3 hash.
const HASH_DIGITS: usize = 64;
/// Tags of checkpoints that are snapshots begin so.
const TAG: &str = "csi.";
/// Longest rest of such a tag: a tag has at most 100 bytes.
const TAG_REST_BYTES_MAX: usize = 96;

/// The pool's name for what is called `text`: that itself, or its hash. Never the same for two: what looks like a hash is hashed too.
pub fn volume(text: &str) -> String {
    mapped(text, name::NAME_BYTES_MAX)
}

/// The tag of a snapshot that is called `text`.
pub fn tag(text: &str) -> String {
    format!("{TAG}{}", mapped(text, TAG_REST_BYTES_MAX))
}

fn mapped(text: &str, bytes_max: usize) -> String {
    let looks_mapped = text.strip_prefix(MAPPED).is_some_and(|rest| rest.len() == HASH_DIGITS && rest.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if !looks_mapped && text.len() <= bytes_max && name::check(text).is_ok() {
        return text.to_owned();
    }
    format!("{MAPPED}{}", blake3::hash(text.as_bytes()).to_hex())
}

/// The id of a snapshot.
pub fn snapshot_id(volume: &str, checkpoint: u64) -> String {
    format!("{volume}@{checkpoint}")
}

/// The volume and the checkpoint of a snapshot's id; `None`: it is none of ours.
pub fn parse_snapshot_id(id: &str) -> Option<(&str, u64)> {
    let (volume, number) = id.rsplit_once('@')?;
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) && !number.starts_with('0');
    name::check(volume).ok().filter(|()| digits)?;
    Some((volume, number.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kept_where_they_can_be_and_never_fall_together() {
        let hash = volume("a b");
        let taken = ["pvc-1", "a.b_c", "a b", "a/b", "../etc", "", "ä", "-a", ".a", "a\0", hash.as_str(), &"x".repeat(128), &"ä".repeat(64)];
        assert_eq!(volume("pvc-1"), "pvc-1");
        assert!(hash.len() == MAPPED.len() + HASH_DIGITS && volume(&hash) != hash);
        for map in [volume, tag] {
            let mapped: std::collections::BTreeSet<String> = taken.iter().map(|text| map(text)).collect();
            assert_eq!(mapped.len(), taken.len());
            assert!(mapped.iter().all(|text| name::check(text).is_ok() && text.len() <= 200));
        }
        assert!(taken.iter().all(|text| tag(text).len() <= 100));
    }

    #[test]
    fn an_id_of_a_snapshot_is_read_as_it_was_written() {
        assert_eq!(parse_snapshot_id(&snapshot_id("pvc-1", 12)), Some(("pvc-1", 12)));
        for none in ["", "@", "v", "v@", "@1", "v@x", "v@+1", "v@01", "v@0", "../v@1", "v@1@2", "v@99999999999999999999999"] {
            assert_eq!(parse_snapshot_id(none), None, "{none}");
        }
    }
}
