//! Paths in replies: bytes, mostly UTF-8.

use serde::{Deserialize, Serialize};

/// A path relative to the root of the tree, `/`-separated, arbitrary bytes; empty for the root. In
/// JSON: a string if it is UTF-8, else `{"base64": "..."}`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TreePath(pub Vec<u8>);

/// Returns whether `path` is at or below one of `above`; an empty list matches every path.
pub fn is_among(path: &[u8], above: &[TreePath]) -> bool {
    let is_below = |above: &TreePath| {
        path.strip_prefix(above.0.as_slice())
            .is_some_and(|rest| rest.is_empty() || above.0.is_empty() || rest.starts_with(b"/"))
    };
    above.is_empty() || above.iter().any(is_below)
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum PathText {
    Text(String),
    Bytes { base64: String },
}

impl Serialize for TreePath {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use base64::Engine;
        match std::str::from_utf8(&self.0) {
            Ok(text) => PathText::Text(text.to_owned()),
            Err(_) => PathText::Bytes {
                base64: base64::engine::general_purpose::STANDARD.encode(&self.0),
            },
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for TreePath {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use base64::Engine;
        match PathText::deserialize(deserializer)? {
            PathText::Text(text) => Ok(TreePath(text.into_bytes())),
            PathText::Bytes { base64 } => base64::engine::general_purpose::STANDARD
                .decode(base64)
                .map(TreePath)
                .map_err(serde::de::Error::custom),
        }
    }
}

/// JSON form of a host path: a string if it is UTF-8, else `{"base64": "..."}`, as for
/// [`TreePath`].
pub mod host_path {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::{Path, PathBuf};

    use super::TreePath;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Serializer for `#[serde(with)]`.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(
        path: impl AsRef<Path>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        TreePath(path.as_ref().as_os_str().as_bytes().to_vec()).serialize(serializer)
    }

    /// Deserializer for `#[serde(with)]`.
    ///
    /// # Errors
    /// The value is neither a string nor such an object.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        Ok(PathBuf::from(std::ffi::OsString::from_vec(
            TreePath::deserialize(deserializer)?.0,
        )))
    }
}
