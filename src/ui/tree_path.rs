//! Conversion of a path on the command line to a path in the tree.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::error::hinted;
use ckptfs_api::{Code, TreePath, VerbResult};

/// Returns the path in the tree at `root` of `given`, relative to `cwd`. It need not exist, because
/// a deleted path can be restored.
///
/// `..` removes the name before it, whatever its type, because a path that does not exist cannot be
/// resolved. Both directories are absolute.
pub fn in_tree(root: &Path, cwd: &Path, given: &Path) -> VerbResult<TreePath> {
    let whole = normal(&cwd.join(given));
    let found = match whole.strip_prefix(root) {
        Ok(inside) => Some(inside.to_owned()),
        // The path to the tree may contain a symbolic link.
        Err(_) => {
            beyond_links(&whole).and_then(|real| real.strip_prefix(root).ok().map(Path::to_owned))
        }
    };
    match found {
        Some(inside) => Ok(TreePath(inside.as_os_str().as_bytes().to_vec())),
        None => Err(hinted(
            Code::UnknownPath,
            format!(
                "{} is outside of the tree at {}",
                given.display(),
                root.display()
            ),
            "name paths inside the mount; relative ones are taken from the working directory",
        )),
    }
}

/// Returns `path` without `.` and `..`.
pub fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) | Component::Normal(_) => {
                normal.push(part.as_os_str())
            }
        }
    }
    normal
}

/// Returns `path` with symbolic links resolved as far as it exists, except for the last name.
pub fn beyond_links(path: &Path) -> Option<PathBuf> {
    let mut rest: Vec<&OsStr> = vec![path.file_name()?];
    let mut parent = path.parent()?;
    loop {
        match parent.canonicalize() {
            Ok(real) => return Some(rest.iter().rev().fold(real, |path, name| path.join(name))),
            Err(_) => {
                rest.push(parent.file_name()?);
                parent = parent.parent()?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inside(root: &str, cwd: &str, given: &str) -> Option<String> {
        let path = in_tree(Path::new(root), Path::new(cwd), Path::new(given)).ok()?;
        Some(String::from_utf8(path.0).expect("UTF-8"))
    }

    #[test]
    fn paths_are_taken_from_the_working_directory() {
        assert_eq!(inside("/t", "/t", "a/b").as_deref(), Some("a/b"));
        assert_eq!(inside("/t", "/t/a", "b").as_deref(), Some("a/b"));
        assert_eq!(inside("/t", "/t/a", "../c/./d/").as_deref(), Some("c/d"));
        assert_eq!(inside("/t", "/t/a", "/t/x").as_deref(), Some("x"));
        assert_eq!(inside("/t", "/t/a", "..").as_deref(), Some(""));
    }

    #[test]
    fn what_is_outside_is_refused() {
        for outside in ["../..", "/etc/passwd", "../../tt/x", "/"] {
            assert_eq!(inside("/t", "/t/a", outside), None, "{outside}");
        }
    }

    #[test]
    fn a_link_on_the_way_to_the_tree_is_followed_and_the_last_name_is_not() {
        let dir = tempfile::tempdir().expect("directory");
        let real = dir.path().canonicalize().expect("path");
        std::fs::create_dir(real.join("tree")).expect("mkdir");
        std::os::unix::fs::symlink("tree", real.join("link")).expect("symlink");
        std::os::unix::fs::symlink("/etc", real.join("tree/out")).expect("symlink");
        let given = real.join("link/gone/deeper");
        let path = in_tree(&real.join("tree"), Path::new("/"), &given).expect("inside");
        assert_eq!(path.0, b"gone/deeper");
        assert_eq!(
            in_tree(&real.join("tree"), Path::new("/"), &real.join("link/out"))
                .expect("inside")
                .0,
            b"out"
        );
    }
}
