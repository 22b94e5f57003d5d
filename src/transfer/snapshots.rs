//! Histories that others keep as plain directories: snapper's `.snapshots/N/snapshot`, and one directory beside the other as `rsync --link-dest` makes
//! them. What differs from one to the next, without reading what is the same.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::place::split;
use super::walk::{Unread, Walk};
use crate::engine::api::TreePath;
use crate::engine::export::parts::{ExportData, ExportEntry, Refused};
use crate::sys::{self, Kind, SysResult};

/// An `info.xml` is not read beyond this.
const INFO_BYTES_MAX: u64 = 64 * 1024;

/// One directory of such a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// What it is called.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// When it was made, as its maker wrote it.
    pub date: Option<String>,
    /// What its maker wrote about it.
    pub description: Option<String>,
}

/// The snapshots in a directory, the oldest first: by number where all names are numbers, else by name.
///
/// # Errors
/// Those of reading it.
pub fn find(dir: &Path) -> std::io::Result<Vec<Snapshot>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // A link to the newest is no snapshot; neither is what is hidden.
        if !entry.file_type()?.is_dir() || name.starts_with('.') {
            continue;
        }
        let inner = entry.path().join("snapshot");
        let info = read_info(&entry.path().join("info.xml"));
        let snapper = name.bytes().all(|byte| byte.is_ascii_digit()) && info.is_some() && inner.is_dir();
        let info = info.filter(|_| snapper);
        let text = |tag: &str| info.as_deref().and_then(|info| element(info, tag)).filter(|text| !text.is_empty());
        let (date, description) = (text("date"), text("description"));
        found.push(Snapshot { name, path: if snapper { inner } else { entry.path() }, date, description });
    }
    let number = |snapshot: &Snapshot| snapshot.name.parse::<u64>().ok();
    if found.iter().all(|snapshot| number(snapshot).is_some()) {
        found.sort_by_key(number);
    } else {
        found.sort_by(|a, b| a.name.cmp(&b.name));
    }
    Ok(found)
}

fn read_info(path: &Path) -> Option<String> {
    let size = std::fs::symlink_metadata(path).ok().filter(|found| found.is_file())?.len();
    if size > INFO_BYTES_MAX { None } else { std::fs::read_to_string(path).ok() }
}

/// The text of the first element of this name.
fn element(xml: &str, name: &str) -> Option<String> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once(&format!("</{name}>"))?;
    let named = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
    Some(named.iter().fold(text.trim().to_owned(), |text, (from, to)| text.replace(from, to)))
}

/// A snapshot that was read: every inode by its path.
pub type Known = HashMap<Vec<u8>, (ExportEntry, u64)>;

/// Reads a snapshot; what cannot be read is told.
///
/// # Errors
/// Those of its root.
pub fn read(root: OwnedFd) -> SysResult<(Known, Vec<Refused>)> {
    let (mut known, mut refused) = (Known::new(), Vec::new());
    let mut walk = Walk::new(root)?;
    while let Some(next) = walk.next() {
        match next {
            Ok((entry, fd)) => {
                let device = sys::stat_fd(&fd)?.dev;
                known.insert(entry.path.0.clone(), (entry, device));
            }
            Err(Unread { path, errno }) => refused.push(Refused { path: TreePath(path), errno: errno.0 }),
        }
    }
    Ok((known, refused))
}

/// What turns one snapshot into the next.
#[derive(Debug, Default)]
pub struct Steps {
    /// Paths that go, with what is below.
    pub removed: Vec<Vec<u8>>,
    /// What is made, directories before what is in them. [`ExportData::File`]: its content is to be read from the snapshot.
    pub entries: Vec<ExportEntry>,
}

/// Two inodes are the same: it is one inode (`--link-dest`), or everything about them is and `same_bytes` says that their content is too.
fn is_same(old: &(ExportEntry, u64), new: &(ExportEntry, u64), same_bytes: &dyn Fn(&[u8]) -> bool) -> bool {
    let (a, b) = (&old.0, &new.0);
    if (a.mode, a.uid, a.gid, a.mtime()) != (b.mode, b.uid, b.gid, b.mtime()) || a.xattrs != b.xattrs {
        return false;
    }
    if (a.inode, old.1) == (b.inode, new.1) || a.kind == Kind::Dir {
        return true;
    }
    // Size and time alone prove nothing: two writes may fall into one tick of the clock.
    (a.rdev, &a.target) == (b.rdev, &b.target) && (a.kind != Kind::File || a.size == b.size && (a.size == 0 || same_bytes(&a.path.0)))
}

/// What must be done to a copy of `old` to make it one of `new`. `same_bytes`: whether a path holds the same in both, asked only where nothing else tells.
pub fn steps(old: &Known, new: &Known, same_bytes: &dyn Fn(&[u8]) -> bool) -> Steps {
    let mut steps = Steps::default();
    let kind = |known: &Known, path: &[u8]| known.get(path).map(|(entry, _)| entry.kind);
    steps.removed = old.iter().filter(|(path, (entry, _))| kind(new, path) != Some(entry.kind)).map(|(path, _)| path.clone()).collect();
    let staying: HashSet<&[u8]> = new
        .iter()
        .filter(|(path, b)| old.get(*path).is_some_and(|a| a.0.kind == b.0.kind && is_same(a, b, same_bytes)))
        .map(|(path, _)| path.as_slice())
        .collect();
    let stays = |path: &[u8]| staying.contains(path);
    // A file that stays under one of its names gets the others as links.
    let mut kept: HashMap<(u64, u64), &[u8]> = HashMap::new();
    for (path, (entry, device)) in new.iter().filter(|(_, (entry, _))| entry.is_linked()) {
        if stays(path) {
            kept.insert((entry.inode, *device), path);
        }
    }
    let mut worked_in: HashSet<Vec<u8>> = steps.removed.iter().filter_map(|path| Some(split(path)?.0.to_vec())).collect();
    for (path, (entry, device)) in new.iter().filter(|(path, _)| !stays(path)) {
        worked_in.extend(split(path).map(|(above, _)| above.to_vec()));
        let mut entry = entry.clone();
        entry.data = match kept.get(&(entry.inode, *device)).filter(|_| entry.is_linked()) {
            Some(to) => ExportData::Link(TreePath(to.to_vec())),
            None if entry.kind == Kind::File && entry.size > 0 => ExportData::File,
            None => ExportData::None,
        };
        steps.entries.push(entry);
    }
    for path in worked_in {
        if let Some((entry, _)) = new.get(&path).filter(|_| stays(&path)) {
            steps.entries.push(entry.clone());
        }
    }
    // What is above goes with everything below.
    steps.removed.sort();
    steps.removed.dedup_by(|below, above| below.starts_with(above) && below.get(above.len()) == Some(&b'/'));
    steps.entries.sort_by(|a, b| a.path.cmp(&b.path));
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_found_in_their_order_with_what_is_known_of_them() {
        let dir = tempfile::tempdir().expect("directory");
        for number in ["9", "10"] {
            std::fs::create_dir_all(dir.path().join(number).join("snapshot")).expect("mkdir");
        }
        let info =
            "<?xml version=\"1.0\"?>\n<snapshot>\n<date>2026-01-02 03:04:05</date>\n<description>a &lt;b&gt; &amp;amp;</description>\n</snapshot>";
        std::fs::write(dir.path().join("9/info.xml"), info).expect("info");
        std::os::unix::fs::symlink("10", dir.path().join("latest")).expect("link");
        let found = find(dir.path()).expect("found");
        let told: Vec<(&str, bool)> = found.iter().map(|snapshot| (snapshot.name.as_str(), snapshot.path.ends_with("snapshot"))).collect();
        assert_eq!(told, [("9", true), ("10", false)]);
        assert_eq!((found[0].date.as_deref(), found[0].description.as_deref()), (Some("2026-01-02 03:04:05"), Some("a <b> &amp;")));
    }

    #[test]
    fn steps_name_what_changed_and_link_what_stays() {
        let dir = tempfile::tempdir().expect("directory");
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::create_dir_all(a.join("d/e")).expect("mkdir");
        std::fs::create_dir_all(b.join("d")).expect("mkdir");
        for name in ["same", "gone", "kind"] {
            std::fs::write(a.join(name), name).expect("file");
        }
        std::fs::hard_link(a.join("same"), b.join("same")).expect("link");
        std::fs::hard_link(a.join("same"), b.join("d/more")).expect("link");
        std::fs::create_dir(b.join("kind")).expect("mkdir");
        let read = |path: &Path| read(sys::open_root(path).expect("open")).expect("read").0;
        let steps = steps(&read(&a), &read(&b), &|_| false);
        let removed: Vec<&str> = steps.removed.iter().map(|path| std::str::from_utf8(path).expect("text")).collect();
        assert_eq!(removed, ["d/e", "gone", "kind"]);
        let made: Vec<(&[u8], &ExportData)> = steps.entries.iter().map(|entry| (entry.path.0.as_slice(), &entry.data)).collect();
        let link = ExportData::Link(TreePath(b"same".to_vec()));
        assert_eq!(made, [(b"".as_slice(), &ExportData::None), (b"d", &ExportData::None), (b"d/more", &link), (b"kind", &ExportData::None)]);
    }
}
