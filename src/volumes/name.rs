//! Names of volumes. An engine hands on whatever somebody typed, also `../../etc`: what is no name
//! gets nowhere near a path.

use super::error::{error, hinted};
use crate::engine::api::{Code, VerbResult};
use crate::engine::branches::check_name;

/// Longest name in bytes: room is left for what is put behind it in names of files.
pub const NAME_BYTES_MAX: usize = 200;

/// What the name of a branch of a volume has before it.
const BRANCH: &str = "branch/";

/// What somebody calls a volume, a past state or a branch of one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// The volume.
    pub volume: String,
    /// The checkpoint, of `volume@checkpoint`: what is meant is that state, read-only.
    pub checkpoint: Option<String>,
    /// The branch, of `volume@branch/name`.
    pub branch: Option<String>,
}

impl Named {
    /// A volume as a whole.
    pub fn whole(volume: &str) -> Named {
        Named {
            volume: volume.to_owned(),
            ..Named::default()
        }
    }
}

/// Takes `NAME`, `NAME@CHECKPOINT`, or `NAME@branch/BRANCH`.
///
/// # Errors
/// `bad-name`.
pub fn parse(text: &str) -> VerbResult<Named> {
    let (volume, rest) = match text.split_once('@') {
        Some((volume, rest)) => (volume, Some(rest)),
        None => (text, None),
    };
    check(volume)?;
    let whole = Named::whole(volume);
    match rest.map(|rest| (rest, rest.strip_prefix(BRANCH))) {
        None => Ok(whole),
        Some((_, Some(branch))) => {
            check_name(branch)?;
            Ok(Named {
                branch: Some(branch.to_owned()),
                ..whole
            })
        }
        Some((checkpoint, None)) => {
            check_checkpoint(checkpoint)?;
            Ok(Named {
                checkpoint: Some(checkpoint.to_owned()),
                ..whole
            })
        }
    }
}

/// A name is a letter or digit, and then letters, digits, `_`, `.` and `-`; so it is one component
/// of a path, never hidden, never an option.
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

/// The name of a checkpoint is asked for as it is; what cannot be one is refused here.
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

/// A key of any text that can be the name of a file.
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
            Named {
                checkpoint: Some("a@b".into()),
                ..Named::whole("v")
            }
        );
        assert_eq!(parse("v").unwrap(), Named::whole("v"));
        assert_eq!(
            parse("v@branch/try-1").unwrap(),
            Named {
                branch: Some("try-1".into()),
                ..Named::whole("v")
            }
        );
    }
}
