//! Histories that others keep as plain directories: snapper's `.snapshots/N/snapshot`, and one
//! directory beside the other as `rsync --link-dest` makes them. What differs from one to the next,
//! without reading what is the same.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::OwnedFd;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::place::{open_below, split};
use super::walk::{Unread, Walk};
use crate::engine::api::TreePath;
use crate::engine::export::parts::{ExportData, ExportEntry, Refused};
use crate::sys::{self, Kind, Open, OpenKind, SysResult};

/// An `info.xml` is not read beyond this.
const INFO_BYTES_MAX: u64 = 64 * 1024;

/// One directory of such a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// What it is called.
    pub name: String,
    /// Where it is, below the directory that they are all in.
    pub path: Vec<u8>,
    /// When it was made, as its maker wrote it.
    pub date: Option<String>,
    /// What its maker wrote about it.
    pub description: Option<String>,
}

impl Snapshot {
    /// When it was made, in nanoseconds since 1970: by what snapper wrote, which is UTC
    /// (snapper(8)), else by a name that is a date or a time here.
    pub fn made_ns(&self) -> Option<i64> {
        let at = |text: &str, zone: TimeZone| {
            text.parse::<DateTime>()
                .ok()
                .and_then(|time| time.to_zoned(zone).ok())
                .map(|time| time.timestamp())
        };
        let written = self
            .date
            .as_deref()
            .and_then(|date| at(date, TimeZone::UTC));
        let made = written
            .or_else(|| self.name.parse().ok())
            .or_else(|| at(&self.name.replace('_', "T"), TimeZone::system()))?;
        i64::try_from(made.as_nanosecond()).ok()
    }
}

/// The snapshots in a directory, which is open for reading, the oldest first: by number where all
/// names are numbers, else by name. No link is followed: whoever may write there must not choose
/// what is imported.
///
/// # Errors
/// Those of reading it.
pub fn find(dir: &OwnedFd) -> SysResult<Vec<Snapshot>> {
    let mut found = Vec::new();
    for entry in sys::list_dir(dir)? {
        // A link to the newest is no snapshot; neither is what is hidden.
        if entry.name.starts_with(b".") || sys::stat_at(dir, &entry.name)?.kind != Kind::Dir {
            continue;
        }
        let name = String::from_utf8_lossy(&entry.name).into_owned();
        let below = |inner: &[u8]| [&entry.name, b"/".as_slice(), inner].concat();
        let inner = below(b"snapshot");
        let numbered = name.bytes().all(|byte| byte.is_ascii_digit());
        let info = if numbered && open_below(dir, &inner, OpenKind::Dir).is_ok() {
            read_info(dir, &below(b"info.xml"))
        } else {
            None
        };
        let text = |tag: &str| {
            info.as_deref()
                .and_then(|info| element(info, tag))
                .filter(|text| !text.is_empty())
        };
        let (date, description) = (text("date"), text("description"));
        found.push(Snapshot {
            name,
            path: if info.is_some() { inner } else { entry.name },
            date,
            description,
        });
    }
    let number = |snapshot: &Snapshot| snapshot.name.parse::<u64>().ok();
    if found.iter().all(|snapshot| number(snapshot).is_some()) {
        found.sort_by_key(number);
    } else {
        found.sort_by(|a, b| a.name.cmp(&b.name));
    }
    Ok(found)
}

fn read_info(dir: &OwnedFd, path: &[u8]) -> Option<String> {
    let file = File::from(open_below(dir, path, OpenKind::File(Open::READ)).ok()?);
    let stat = sys::stat_fd(&file).ok()?;
    if stat.kind != Kind::File || stat.size > INFO_BYTES_MAX {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(stat.size).ok()?];
    let read = sys::read_full_at(&file, &mut bytes, 0).ok()?;
    bytes.truncate(read);
    String::from_utf8(bytes).ok()
}

/// The text of the first element of this name.
fn element(xml: &str, name: &str) -> Option<String> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once(&format!("</{name}>"))?;
    let named = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&apos;", "'"),
        ("&amp;", "&"),
    ];
    Some(
        named
            .iter()
            .fold(text.trim().to_owned(), |text, (from, to)| {
                text.replace(from, to)
            }),
    )
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
            Err(Unread { path, errno }) => refused.push(Refused {
                path: TreePath(path),
                errno: errno.0,
            }),
        }
    }
    Ok((known, refused))
}

/// What turns one snapshot into the next.
#[derive(Debug, Default)]
pub struct Steps {
    /// Paths that go, with what is below.
    pub removed: Vec<Vec<u8>>,
    /// What is made, directories before what is in them. [`ExportData::File`]: its content is to be
    /// read from the snapshot.
    pub entries: Vec<ExportEntry>,
}

/// Two inodes are the same: it is one inode (`--link-dest`), or everything about them is and
/// `same_bytes` says that their content is too.
fn is_same(
    old: &(ExportEntry, u64),
    new: &(ExportEntry, u64),
    same_bytes: &dyn Fn(&[u8]) -> bool,
) -> bool {
    let (a, b) = (&old.0, &new.0);
    if (a.mode, a.uid, a.gid, a.mtime()) != (b.mode, b.uid, b.gid, b.mtime())
        || a.xattrs != b.xattrs
    {
        return false;
    }
    if (a.inode, old.1) == (b.inode, new.1) || a.kind == Kind::Dir {
        return true;
    }
    // Size and time alone prove nothing: two writes may fall into one tick of the clock.
    (a.rdev, &a.target) == (b.rdev, &b.target)
        && (a.kind != Kind::File || a.size == b.size && (a.size == 0 || same_bytes(&a.path.0)))
}

/// What must be done to a copy of `old` to make it one of `new`. `same_bytes`: whether a path holds
/// the same in both, asked only where nothing else tells.
pub fn steps(old: &Known, new: &Known, same_bytes: &dyn Fn(&[u8]) -> bool) -> Steps {
    let mut steps = Steps::default();
    let kind = |known: &Known, path: &[u8]| known.get(path).map(|(entry, _)| entry.kind);
    steps.removed = old
        .iter()
        .filter(|(path, (entry, _))| kind(new, path) != Some(entry.kind))
        .map(|(path, _)| path.clone())
        .collect();
    let staying: HashSet<&[u8]> = new
        .iter()
        .filter(|(path, b)| {
            old.get(*path)
                .is_some_and(|a| a.0.kind == b.0.kind && is_same(a, b, same_bytes))
        })
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
    let mut worked_in: HashSet<Vec<u8>> = steps
        .removed
        .iter()
        .filter_map(|path| Some(split(path)?.0.to_vec()))
        .collect();
    for (path, (entry, device)) in new.iter().filter(|(path, _)| !stays(path)) {
        worked_in.extend(split(path).map(|(above, _)| above.to_vec()));
        let mut entry = entry.clone();
        entry.data = match kept
            .get(&(entry.inode, *device))
            .filter(|_| entry.is_linked())
        {
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
    steps
        .removed
        .dedup_by(|below, above| below.starts_with(above) && below.get(above.len()) == Some(&b'/'));
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
        let info = "<?xml version=\"1.0\"?>\n<snapshot>\n<date>2026-01-02 03:04:05</date>\n<description>a &lt;b&gt; &amp;amp;</description>\n</snapshot>";
        std::fs::write(dir.path().join("9/info.xml"), info).expect("info");
        std::os::unix::fs::symlink("10", dir.path().join("latest")).expect("link");
        // Snapper makes no links; whoever does wants to be followed.
        std::fs::create_dir(dir.path().join("11")).expect("mkdir");
        std::fs::copy(
            dir.path().join("9/info.xml"),
            dir.path().join("11/info.xml"),
        )
        .expect("copy");
        std::os::unix::fs::symlink("../9/snapshot", dir.path().join("11/snapshot")).expect("link");
        let found = find(&sys::open_root(dir.path()).expect("open")).expect("found");
        let told: Vec<(&str, &[u8])> = found
            .iter()
            .map(|snapshot| (snapshot.name.as_str(), snapshot.path.as_slice()))
            .collect();
        assert_eq!(
            told,
            [
                ("9", b"9/snapshot".as_slice()),
                ("10", b"10"),
                ("11", b"11")
            ]
        );
        assert_eq!(
            (found[0].date.as_deref(), found[0].description.as_deref()),
            (Some("2026-01-02 03:04:05"), Some("a <b> &amp;"))
        );
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
        let read =
            |path: &std::path::Path| read(sys::open_root(path).expect("open")).expect("read").0;
        let steps = steps(&read(&a), &read(&b), &|_| false);
        let removed: Vec<&str> = steps
            .removed
            .iter()
            .map(|path| std::str::from_utf8(path).expect("text"))
            .collect();
        assert_eq!(removed, ["d/e", "gone", "kind"]);
        let made: Vec<(&[u8], &ExportData)> = steps
            .entries
            .iter()
            .map(|entry| (entry.path.0.as_slice(), &entry.data))
            .collect();
        let link = ExportData::Link(TreePath(b"same".to_vec()));
        assert_eq!(
            made,
            [
                (b"".as_slice(), &ExportData::None),
                (b"d", &ExportData::None),
                (b"d/more", &link),
                (b"kind", &ExportData::None)
            ]
        );
    }
}
