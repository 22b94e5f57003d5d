//! Histories stored as plain directories: snapper's `.snapshots/N/snapshot`, and sibling
//! directories created by `rsync --link-dest`.

use std::fs::File;
use std::os::fd::OwnedFd;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::dirs::open_below;
use ckptfs_sys::{self as sys, Access, Kind, OpenKind, SysResult};

/// Size limit of `info.xml`, in bytes.
const INFO_BYTES_MAX: u64 = 64 * 1024;

/// One snapshot directory of such a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its name.
    pub name: String,
    /// Its path below the common directory.
    pub path: Vec<u8>,
    /// Creation time as written by the tool that created it.
    pub date: Option<String>,
    /// Description written by that tool.
    pub description: Option<String>,
}

impl Snapshot {
    /// Returns the creation time in nanoseconds since 1970: the date that snapper wrote, which is
    /// UTC (snapper(8)), or else a name that parses as a date or a local time.
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

/// Returns the snapshots in a directory that is open for reading, oldest first: by number if all
/// names are numbers, otherwise by name. No symbolic link is followed: a user with write access
/// there must not choose the imported files.
///
/// # Errors
/// Those of reading the directory.
pub fn find(dir: &OwnedFd) -> SysResult<Vec<Snapshot>> {
    let mut found = Vec::new();
    for entry in sys::list_dir(dir)? {
        // Symbolic links (`latest`) and hidden names are not snapshots.
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
    let file = File::from(open_below(dir, path, OpenKind::File(Access::READ)).ok()?);
    let stat = sys::stat_fd(&file).ok()?;
    if stat.kind != Kind::File || stat.size > INFO_BYTES_MAX {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(stat.size).ok()?];
    let read = sys::read_full_at(&file, &mut bytes, 0).ok()?;
    bytes.truncate(read);
    String::from_utf8(bytes).ok()
}

/// Returns the text of the first element of this name.
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
        // Snapper creates no symbolic links; a link here could be an attack.
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
}
