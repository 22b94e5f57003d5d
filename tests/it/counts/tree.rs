//! The tree of the counts, and the operations of ordinary programs on it.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::ops::Range;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Directories of the tree.
pub const DIRS: usize = 20;
/// Files in each of them.
pub const FILES_PER_DIR: usize = 50;
/// Total number of files.
pub const FILES: usize = DIRS * FILES_PER_DIR;

/// Creates the tree in `root`.
pub fn fill(root: &Path) {
    for path in paths(root) {
        fs::create_dir_all(path.parent().expect("it has a parent directory")).expect("a directory");
        fs::write(&path, content(&path)).expect("a file");
    }
}

fn content(path: &Path) -> String {
    format!(
        "{}\n",
        path.file_name().expect("it has a name").to_string_lossy()
    )
    .repeat(20)
}

/// Returns the files of the tree, directory by directory.
pub fn paths(root: &Path) -> Vec<PathBuf> {
    (0..FILES)
        .map(|index| {
            root.join(format!("dir-{:02}", index / FILES_PER_DIR))
                .join(format!("file-{index:03}"))
        })
        .collect()
}

/// Returns `count` names in one directory.
pub fn names(dir: &Path, count: usize) -> Vec<PathBuf> {
    (0..count)
        .map(|index| dir.join(format!("name-{index:04}")))
        .collect()
}

/// Creates, writes and closes each file.
pub fn create(files: &[PathBuf]) {
    for path in files {
        File::create_new(path)
            .and_then(|mut file| file.write_all(b"new"))
            .expect("a new file");
    }
}

/// Opens each file for writing, changes its first byte, and closes it.
pub fn touch(files: &[PathBuf]) {
    for path in files {
        OpenOptions::new()
            .write(true)
            .open(path)
            .and_then(|mut file| file.write_all(b"X"))
            .expect("a byte can be written");
    }
}

/// Reads each file to its end, as `cat` does.
pub fn read(files: &[PathBuf]) {
    let mut buffer = Vec::new();
    for path in files {
        buffer.clear();
        File::open(path)
            .and_then(|mut file| file.read_to_end(&mut buffer))
            .expect("the file can be read");
        assert!(!buffer.is_empty(), "{} is not empty", path.display());
    }
}

/// Renames each file in its directory.
pub fn rename(files: &[PathBuf]) {
    for path in files {
        fs::rename(path, renamed(path)).expect("a rename");
    }
}

/// Returns the name that [`rename`] assigns.
pub fn renamed(path: &Path) -> PathBuf {
    path.with_extension("renamed")
}

pub fn unlink(files: &[PathBuf]) {
    for path in files {
        fs::remove_file(path).expect("an unlink");
    }
}

pub fn mkdir(dirs: &[PathBuf]) {
    for path in dirs {
        fs::create_dir(path).expect("a directory");
    }
}

pub fn links(links: &[PathBuf]) {
    for path in links {
        symlink("target", path).expect("a link");
    }
}

/// Stats everything below `root`, as `find -printf %s` does; returns the number of files.
pub fn stat_walk(root: &Path) -> usize {
    let mut found = 0;
    let mut pending = vec![root.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir).expect("a listing") {
            let path = entry.expect("an entry").path();
            let kind = fs::symlink_metadata(&path).expect("attributes").file_type();
            if kind.is_dir() {
                pending.push(path);
            } else {
                found += 1;
            }
        }
    }
    found
}

/// Lists everything below `root` by name and type alone, as `find` does; returns the number of
/// files.
pub fn name_walk(root: &Path) -> usize {
    let mut found = 0;
    let mut pending = vec![root.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir).expect("a listing") {
            let entry = entry.expect("an entry");
            if entry.file_type().expect("a kind").is_dir() {
                pending.push(entry.path());
            } else {
                found += 1;
            }
        }
    }
    found
}

/// Makes hard links to a file in its directory.
pub fn link(file: &Path, names: Range<usize>) {
    names.for_each(|name| {
        fs::hard_link(file, file.with_file_name(name.to_string())).expect("a link")
    });
}

/// Removes such links.
pub fn unlink_names(dir: &Path, names: Range<usize>) {
    names.for_each(|name| fs::remove_file(dir.join(name.to_string())).expect("the name exists"));
}

/// Stats and opens such links.
pub fn open_names(dir: &Path, names: Range<usize>) {
    names.for_each(|name| {
        let path = dir.join(name.to_string());
        fs::symlink_metadata(&path)
            .and_then(|_| File::open(&path))
            .expect("the name exists");
    });
}
