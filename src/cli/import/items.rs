//! The sources of an import: trees, and series of snapshots of one tree.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::export_common;
use ckptfs_api::{Code, VerbResult};
use ckptfs_sys::{self as sys, Kind};
use ckptfs_transfer::snapshots::{self, Snapshot};
use ckptfs_ui::error::{ErrorContext, hinted};

/// One directory that becomes a checkpoint.
#[derive(Clone, Debug)]
pub struct Item {
    /// Its name.
    pub name: String,
    /// Its path, for messages.
    pub path: PathBuf,
    /// The directory on the command line, and the path below it, on which no link is followed.
    pub dir: Arc<OwnedFd>,
    /// See `dir`.
    pub below: Vec<u8>,
    /// Metadata of a snapshot of a series.
    pub snapshot: Option<Snapshot>,
}

/// Interpretation of directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// By their content.
    Found,
    /// Each is a tree.
    Trees,
    /// Each is a series.
    Series,
}

/// Returns the items in directories, in their order.
pub fn find(cwd: &Path, dirs: &[PathBuf], how: SourceKind) -> VerbResult<Vec<Item>> {
    let mut items = Vec::new();
    for given in dirs {
        let path = export_common::destination(cwd, given);
        let real = path.canonicalize().on(path.display())?;
        if !real.is_dir() {
            return Err(hinted(
                Code::NotADirectory,
                format!("{} is not a directory", path.display()),
                "name the directory that is to be imported",
            ));
        }
        let dir = Arc::new(sys::open_root(&real).on(path.display())?);
        let series = match how {
            SourceKind::Trees => Vec::new(),
            SourceKind::Series => snapshots::find(&dir).on(path.display())?,
            // Errors are reported when the tree is read.
            SourceKind::Found => snapshots::find(&dir)
                .ok()
                .filter(|found| looks_like_series(&dir, found))
                .unwrap_or_default(),
        };
        if series.is_empty() && how == SourceKind::Series {
            let hint = "each snapshot is a directory of its own in DIR; snapper's are N/snapshot with N/info.xml";
            return Err(hinted(
                Code::NotFound,
                format!("there are no snapshots in {}", path.display()),
                hint,
            ));
        }
        if series.is_empty() {
            let (dir, below) = (Arc::clone(&dir), Vec::new());
            items.push(Item {
                name: path.display().to_string(),
                path: real.clone(),
                dir,
                below,
                snapshot: None,
            });
        }
        let item = |snapshot: Snapshot| Item {
            name: snapshot.name.clone(),
            path: real.join(OsStr::from_bytes(&snapshot.path)),
            dir: Arc::clone(&dir),
            below: snapshot.path.clone(),
            snapshot: Some(snapshot),
        };
        items.extend(series.into_iter().map(item));
    }
    Ok(items)
}

/// Reports whether a directory looks like a series: snapper's with metadata, or only directories
/// with dates or numbers for names.
fn looks_like_series(dir: &OwnedFd, found: &[Snapshot]) -> bool {
    let snapper = |snapshot: &Snapshot| snapshot.path.ends_with(b"/snapshot");
    if found.is_empty() || found.iter().any(snapper) {
        return !found.is_empty();
    }
    let Ok(names) = sys::list_dir(dir) else {
        return false;
    };
    let only_dirs = names.iter().all(|entry| {
        let hidden = entry.name.starts_with(b".");
        hidden
            || sys::stat_at(dir, &entry.name)
                .is_ok_and(|stat| matches!(stat.kind, Kind::Dir | Kind::Symlink))
    });
    only_dirs && found.len() > 1 && found.iter().all(|snapshot| is_dated(&snapshot.name))
}

/// Reports whether a name is a number, or contains a date: four digits, two and two, with or
/// without separators.
fn is_dated(name: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits(name) {
        return true;
    }
    let bytes = name.as_bytes();
    (0..bytes.len()).any(|at| {
        let Some(rest) = name.get(at..) else { return false };
        let plain = rest.get(..8).is_some_and(digits);
        let dashed = rest.get(..10).is_some_and(|date| {
            let parts: Vec<&str> = date.split(['-', '_', '.']).collect();
            matches!(parts.as_slice(), [year, month, day] if year.len() == 4 && month.len() == 2 && day.len() == 2 && [year, month, day].iter().all(|part| digits(part)))
        });
        plain || dashed
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_and_trees_are_told_apart_by_what_is_there() {
        let dir = tempfile::tempdir().expect("directory");
        let make = |paths: &[&str]| {
            let root = dir.path().join(paths.join("+").replace('/', "_"));
            for path in paths {
                std::fs::create_dir_all(root.join(path)).expect("mkdir");
            }
            root
        };
        let kinds = |root: &Path, how| {
            find(Path::new("/"), &[root.to_owned()], how)
                .map(|items| items.iter().filter(|item| item.snapshot.is_some()).count())
        };
        let dated = make(&["2026-01-01", "2026-01-02T10:00", "host.20260103"]);
        assert_eq!(kinds(&dated, SourceKind::Found), Ok(3));
        assert_eq!(kinds(&dated, SourceKind::Trees), Ok(0));
        std::fs::write(dated.join("README"), "").expect("file");
        assert_eq!(kinds(&dated, SourceKind::Found), Ok(0), "a file among them");
        assert_eq!(kinds(&dated, SourceKind::Series), Ok(3));
        let plain = make(&["src", "docs"]);
        assert_eq!(kinds(&plain, SourceKind::Found), Ok(0));
        assert_eq!(kinds(&plain, SourceKind::Series), Ok(2));
        assert_eq!(
            kinds(&make(&["2026"]), SourceKind::Found),
            Ok(0),
            "one directory is no series"
        );
        let snapper = make(&["7/snapshot"]);
        std::fs::write(snapper.join("7/info.xml"), "<num>7</num>").expect("info");
        assert_eq!(kinds(&snapper, SourceKind::Found), Ok(1));
        assert_eq!(
            kinds(&make(&[".hidden"]), SourceKind::Series)
                .expect_err("none")
                .code,
            Code::NotFound
        );
    }
}
