//! Walks of a tree: a lookup must find each name that readdir returns, with the same type.

use std::fs::{self, FileType};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Returns the names in a directory, sorted.
pub fn names(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = fs::read_dir(dir)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// Returns everything below `dir`, one line for each name in order: type, attributes, and content
/// hash.
pub fn walk(dir: &Path) -> io::Result<String> {
    let mut text = String::new();
    walk_below(dir, "", &mut text)?;
    Ok(text)
}

/// Returns the hash of [`walk`].
pub fn hash(dir: &Path) -> io::Result<String> {
    Ok(blake3::hash(walk(dir)?.as_bytes()).to_hex().to_string())
}

fn letter(kind: FileType) -> char {
    match () {
        () if kind.is_file() => 'f',
        () if kind.is_dir() => 'd',
        () if kind.is_symlink() => 'l',
        () if kind.is_fifo() => 'p',
        () => '?',
    }
}

fn named<T>(path: &Path, result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn walk_below(dir: &Path, at: &str, text: &mut String) -> io::Result<()> {
    use std::fmt::Write as _;
    let mut entries = named(
        dir,
        fs::read_dir(dir).and_then(|entries| entries.collect::<io::Result<Vec<_>>>()),
    )?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for pair in entries.windows(2) {
        if pair[0].file_name() == pair[1].file_name() {
            return Err(io::Error::other(format!(
                "{} lists {} twice",
                dir.display(),
                pair[0].file_name().display()
            )));
        }
    }
    for entry in entries {
        let path = entry.path();
        let stat = named(&path, fs::symlink_metadata(&path))?;
        if stat.file_type() != entry.file_type()? {
            return Err(io::Error::other(format!(
                "{} is listed with a wrong type",
                path.display()
            )));
        }
        let name = format!("{at}/{}", entry.file_name().display());
        let _ = write!(
            text,
            "{} {name} {:o} {} {}.{}",
            letter(stat.file_type()),
            stat.mode(),
            stat.uid(),
            stat.mtime(),
            stat.mtime_nsec()
        );
        if stat.is_dir() {
            text.push('\n');
            walk_below(&path, &name, text)?;
            continue;
        }
        if stat.is_symlink() {
            let _ = writeln!(text, " {}", named(&path, fs::read_link(&path))?.display());
        } else if stat.is_file() {
            let data = named(&path, fs::read(&path))?;
            if data.len() as u64 != stat.len() {
                return Err(io::Error::other(format!(
                    "{} has {} bytes, expected {}",
                    path.display(),
                    data.len(),
                    stat.len()
                )));
            }
            let _ = writeln!(text, " {} {}", stat.len(), blake3::hash(&data).to_hex());
        } else {
            text.push('\n');
        }
    }
    Ok(())
}

/// Reads views that may be deleted at any time; each step may fail only because the view does not
/// exist.
pub fn going(dir: &Path, prefix: &str) {
    let all = names(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    for name in all.into_iter().filter(|name| name.starts_with(prefix)) {
        if let Err(error) = some_of(&dir.join(&name)) {
            let gone = matches!(
                error
                    .raw_os_error()
                    .map(rustix::io::Errno::from_raw_os_error),
                Some(rustix::io::Errno::NOENT | rustix::io::Errno::STALE)
            );
            assert!(gone, "the view {name}, which is being deleted: {error}");
        }
    }
}

/// Reads the first levels of a view, and one file.
fn some_of(view: &Path) -> io::Result<()> {
    for name in names(view)? {
        let path = view.join(name);
        if !fs::symlink_metadata(&path)?.is_dir() {
            continue;
        }
        for entry in fs::read_dir(&path)? {
            let entry = entry?;
            if entry.metadata()?.is_file() {
                fs::read(entry.path())?;
                break;
            }
        }
    }
    Ok(())
}
