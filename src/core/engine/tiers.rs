//! Tiers: paths with a shorter retention.
//!
//! A **pattern** has the syntax of `globset`: `*` and `?` do not match `/`, `**` matches any
//! directories, `[a-z]` and `{a,b}` are as in a shell, and `\` escapes the next character. A
//! pattern without `/` matches a name at any depth, one with `/` the path from the root of the
//! tree; a trailing `/` restricts it to directories. A match includes everything below it: the
//! topmost matching path is the **unit** of a file.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// Limit of patterns per tier.
const PATHS_MAX: usize = 256;
/// Limit of a pattern in bytes.
const PATH_BYTES_MAX: usize = 1024;

/// Compiled patterns of a tier. See the module.
#[derive(Clone, Debug)]
pub(super) struct TierPatterns {
    /// Patterns of names, and of paths from the root.
    any: [GlobSet; 2],
    /// The same for directories only.
    dirs: [GlobSet; 2],
}

impl TierPatterns {
    /// Compiles patterns. Returns the reason if one is invalid.
    pub(super) fn new(paths: &[String]) -> Result<TierPatterns, String> {
        if paths.is_empty() || paths.len() > PATHS_MAX {
            return Err(format!(
                "there are {} of 1 to {PATHS_MAX} patterns",
                paths.len()
            ));
        }
        let mut sets = [const { Vec::new() }; 4];
        for pattern in paths {
            let (inner, only_dirs) = pattern
                .strip_suffix('/')
                .map_or((pattern.as_str(), false), |inner| (inner, true));
            let anchored = inner.contains('/');
            let inner = inner.strip_prefix('/').unwrap_or(inner);
            let strange = inner
                .split('/')
                .any(|name| name.is_empty() || name == "." || name == "..");
            if strange || pattern.len() > PATH_BYTES_MAX {
                return Err(format!(
                    "{pattern:?} does not name a path below the root of the tree"
                ));
            }
            let glob = GlobBuilder::new(inner)
                .literal_separator(true)
                .backslash_escape(true)
                .build();
            let glob = glob.map_err(|error| format!("{pattern:?}: {}", error.kind()))?;
            if let Some(set) = sets.get_mut(usize::from(anchored) + 2 * usize::from(only_dirs)) {
                set.push(glob);
            }
        }
        let [names, rooted, name_dirs, rooted_dirs] = sets.map(|globs| {
            let mut builder = GlobSetBuilder::new();
            for glob in globs {
                builder.add(glob);
            }
            builder.build().map_err(|error| error.to_string())
        });
        Ok(TierPatterns {
            any: [names?, rooted?],
            dirs: [name_dirs?, rooted_dirs?],
        })
    }

    /// Returns the unit of a file; `None` if the tier does not apply.
    pub(super) fn unit<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        let ends = path
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'/')
            .map(|(end, _)| end)
            .chain([path.len()]);
        let mut begin = 0;
        for end in ends {
            let (above, name) = (path.get(..end)?, path.get(begin..end)?);
            let (above_text, name) = (OsStr::from_bytes(above), OsStr::from_bytes(name));
            let matches = |[names, rooted]: &[GlobSet; 2]| {
                names.is_match(name) || rooted.is_match(above_text)
            };
            if matches(&self.any) || (end < path.len() && matches(&self.dirs)) {
                return Some(above);
            }
            begin = end + 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit<'p>(patterns: &[&str], path: &'p str) -> Option<&'p str> {
        let paths: Vec<String> = patterns
            .iter()
            .map(|pattern| (*pattern).to_owned())
            .collect();
        TierPatterns::new(&paths)
            .unwrap()
            .unit(path.as_bytes())
            .map(|unit| std::str::from_utf8(unit).unwrap())
    }

    #[test]
    fn a_name_matches_at_any_depth_and_a_path_from_the_root() {
        assert_eq!(
            unit(&["node_modules"], "a/node_modules/b/node_modules/c"),
            Some("a/node_modules"),
            "the topmost"
        );
        assert_eq!(unit(&["node_modules"], "a/node_modules.old/b"), None);
        assert_eq!(unit(&["*.tmp"], "a/b.tmp"), Some("a/b.tmp"));
        assert_eq!(unit(&["*.tmp"], "a.tmp.d/b"), None, "a whole name");
        assert_eq!(unit(&["/target"], "target/x"), Some("target"));
        assert_eq!(unit(&["/target"], "a/target/x"), None);
        assert_eq!(unit(&["a/*/x"], "a/b/x/y"), Some("a/b/x"));
        assert_eq!(unit(&["a/*/x"], "a/b/c/x"), None, "a star matches no slash");
        assert_eq!(unit(&["a/**/x"], "a/b/c/x"), Some("a/b/c/x"));
        assert_eq!(unit(&["{dist,out}"], "b/out/x"), Some("b/out"));
        assert_eq!(unit(&["\\*"], "a/b"), None);
        assert_eq!(unit(&["\\*"], "a/*"), Some("a/*"));
    }

    #[test]
    fn a_slash_at_the_end_means_a_directory() {
        assert_eq!(unit(&["target/"], "target"), None);
        assert_eq!(unit(&["target/"], "a/target/b"), Some("a/target"));
        assert_eq!(unit(&["a/b/"], "a/b"), None);
        assert_eq!(unit(&["a/b/"], "a/b/c"), Some("a/b"));
    }

    #[test]
    fn any_bytes_are_a_name() {
        let matcher = TierPatterns::new(&["*.o".to_owned()]).unwrap();
        assert_eq!(matcher.unit(b"a/\xff.o"), Some(b"a/\xff.o".as_slice()));
        assert_eq!(matcher.unit(b"a/\xff.c"), None);
    }

    #[test]
    fn what_names_no_path_is_refused() {
        for wrong in ["", "/", "a//b", "../a", "./a", "a/..", "[", "{a"] {
            assert!(TierPatterns::new(&[wrong.to_owned()]).is_err(), "{wrong:?}");
        }
        assert!(TierPatterns::new(&[]).is_err());
        assert!(TierPatterns::new(&vec!["a".to_owned(); PATHS_MAX]).is_ok());
        assert!(TierPatterns::new(&vec!["a".to_owned(); PATHS_MAX + 1]).is_err());
        assert!(TierPatterns::new(&["a".repeat(PATH_BYTES_MAX + 1)]).is_err());
    }
}
