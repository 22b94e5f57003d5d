//! Names of volumes. An engine passes on arbitrary input, including `../../etc`, so names are
//! validated before they become part of a path.

use ckptfs_api::{Code, VerbResult, error, hinted};
use ckptfs_core::engine::branches::check_name;

/// Maximum length of a name in bytes, with space for suffixes of file names.
pub const NAME_BYTES_MAX: usize = 200;

/// Prefix of the name of a branch.
const BRANCH: &str = "branch/";

/// Name of a volume, of a past state of it, or of a branch of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeRef {
    /// The volume.
    pub volume: String,
    /// The checkpoint in `volume@checkpoint`: the state, read-only.
    pub checkpoint: Option<String>,
    /// The branch in `volume@branch/name`.
    pub branch: Option<String>,
}

impl VolumeRef {
    /// Names a volume itself.
    pub fn whole(volume: &str) -> VolumeRef {
        VolumeRef {
            volume: volume.to_owned(),
            ..VolumeRef::default()
        }
    }
}

/// Parses `NAME`, `NAME@CHECKPOINT`, or `NAME@branch/BRANCH`.
///
/// # Errors
/// `bad-name`.
pub fn parse(text: &str) -> VerbResult<VolumeRef> {
    let (volume, rest) = match text.split_once('@') {
        Some((volume, rest)) => (volume, Some(rest)),
        None => (text, None),
    };
    check(volume)?;
    let whole = VolumeRef::whole(volume);
    match rest.map(|rest| (rest, rest.strip_prefix(BRANCH))) {
        None => Ok(whole),
        Some((_, Some(branch))) => {
            check_name(branch)?;
            Ok(VolumeRef {
                branch: Some(branch.to_owned()),
                ..whole
            })
        }
        Some((checkpoint, None)) => {
            check_checkpoint(checkpoint)?;
            Ok(VolumeRef {
                checkpoint: Some(checkpoint.to_owned()),
                ..whole
            })
        }
    }
}

/// Checks the name of a volume: a letter or digit, followed by letters, digits, `_`, `.` and `-`.
/// Such a name is a single path component, never hidden, and never an option.
///
/// # Errors
/// `bad-name`.
pub fn check(name: &str) -> VerbResult<()> {
    let first = name
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_alphanumeric());
    let rest = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'));
    if name.len() > NAME_BYTES_MAX {
        return Err(error(
            Code::BadName,
            format!(
                "the name of a volume has at most {NAME_BYTES_MAX} bytes; this one has {}",
                name.len()
            ),
        ));
    }
    if first && rest {
        return Ok(());
    }
    let hint = "a name begins with a letter or digit, followed by letters, digits, _ . and -";
    Err(hinted(
        Code::BadName,
        format!("{name:?} cannot be the name of a volume"),
        hint,
    ))
}

/// Rejects text that cannot name a checkpoint. Whether the checkpoint exists is not checked.
///
/// # Errors
/// `bad-name`.
pub fn check_checkpoint(name: &str) -> VerbResult<()> {
    let fits = !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.starts_with('-');
    if fits
        && !name
            .chars()
            .any(|char| char.is_control() || matches!(char, '/' | '\\'))
    {
        return Ok(());
    }
    Err(hinted(
        Code::BadName,
        format!("{name:?} cannot be the name of a checkpoint"),
        "name it by its number or a tag: VOLUME@3",
    ))
}

/// Returns a key for any text that is usable as a file name.
pub fn key(text: &str) -> String {
    blake3::hash(text.as_bytes())
        .to_hex()
        .as_str()
        .chars()
        .take(32)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_name_is_refused() {
        let longest = "a".repeat(NAME_BYTES_MAX);
        for good in [
            "a",
            "0",
            "pg_data-1.2",
            "A..b",
            longest.as_str(),
            "con@1",
            "v@v1.2~3",
        ] {
            assert!(parse(good).is_ok(), "{good}");
        }
        let long = "a".repeat(NAME_BYTES_MAX + 1);
        let bad = [
            "",
            ".",
            "..",
            "../../etc",
            "a/b",
            "/a",
            "a b",
            "-a",
            "_a",
            ".a",
            "a\0",
            "a\n",
            "ä",
            "a@",
            "@1",
            "a@b/c",
            "a@-n",
            "a@\u{1}",
            "a@branch/",
            "a@branch/../b",
            "a@branch/b/c",
            "a@branch/-b",
            &long,
        ];
        for bad in bad {
            assert_eq!(
                parse(bad).map_err(|error| error.code),
                Err(Code::BadName),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn a_past_state_is_behind_the_first_at_sign() {
        assert_eq!(
            parse("v@a@b").unwrap(),
            VolumeRef {
                checkpoint: Some("a@b".into()),
                ..VolumeRef::whole("v")
            }
        );
        assert_eq!(parse("v").unwrap(), VolumeRef::whole("v"));
        assert_eq!(
            parse("v@branch/try-1").unwrap(),
            VolumeRef {
                branch: Some("try-1".into()),
                ..VolumeRef::whole("v")
            }
        );
    }
}
