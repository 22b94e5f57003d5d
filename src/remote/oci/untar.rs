//! Reads the tar of an untrusted layer: every length is limited, and every field is checked.
//!
//! The crate `tar` parses the header fields. Its archive reader is not used: it reads extended
//! headers without a limit, and does not support values with a line feed.

use std::io::{self, Read};

use tar::Header;

use ckptfs_api::TreePath;
use ckptfs_sys::{self as sys, Kind, Time};
use ckptfs_transfer::is_zeros;

const BLOCK: usize = 512;
/// Size limit of the extended headers of one entry: names, and extended attributes of at most 64
/// KiB each.
const EXTENDED_BYTES_MAX: u64 = 8 << 20;
/// The kernel's limit of paths (`PATH_MAX`).
const PATH_BYTES_MAX: usize = 4096;
const XATTR_KEY: &[u8] = b"SCHILY.xattr.";

/// An entry.
#[derive(Debug)]
pub struct TarEntry {
    /// The name in the archive.
    pub name: Vec<u8>,
    /// The file type; `None`: a hard link to `link`.
    pub kind: Option<Kind>,
    /// The target of a link.
    pub link: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u64,
    /// Size of the content in bytes.
    pub size: u64,
    /// mtime.
    pub mtime: Time,
    /// Extended attributes, sorted by name.
    pub xattrs: Vec<(TreePath, TreePath)>,
}

/// Fields from the extended headers before an entry.
#[derive(Default)]
struct ExtendedHeaders {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<Time>,
    xattrs: Vec<(TreePath, TreePath)>,
}

/// Reads a tar entry by entry; a read returns the content of the last one.
pub struct Untar<R> {
    from: R,
    /// Bytes of content not yet read, and of the padding after it.
    content: u64,
    padding: u64,
}

fn odd(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

impl<R: Read> Untar<R> {
    /// Creates a reader at the beginning of a tar.
    pub fn new(from: R) -> Untar<R> {
        Untar {
            from,
            content: 0,
            padding: 0,
        }
    }

    /// Returns the next entry; `None`: the end was reached.
    ///
    /// # Errors
    /// Errors of reading; it is not a tar.
    pub fn advance(&mut self) -> io::Result<Option<TarEntry>> {
        let mut extended = ExtendedHeaders::default();
        loop {
            self.skip(self.content.saturating_add(self.padding))?;
            (self.content, self.padding) = (0, 0);
            let Some(header) = self.header()? else {
                io::copy(&mut self.from, &mut io::sink())?;
                return Ok(None);
            };
            let size = header.entry_size()?;
            match header.as_bytes().get(156).copied().unwrap_or_default() {
                b'x' => extended.take_pax(&self.extended(size)?)?,
                // Global headers contain nothing that an image needs.
                b'g' => drop(self.extended(size)?),
                b'L' => extended.name = Some(until_nul(self.extended(size)?)),
                b'K' => extended.link = Some(until_nul(self.extended(size)?)),
                kind => return self.entry(&header, kind, size, extended).map(Some),
            }
        }
    }

    fn entry(
        &mut self,
        header: &Header,
        kind: u8,
        size: u64,
        extended: ExtendedHeaders,
    ) -> io::Result<TarEntry> {
        let name = extended
            .name
            .unwrap_or_else(|| header.path_bytes().into_owned());
        let kind = match kind {
            // Before POSIX a directory was marked only by its name.
            0 | b'0' if name.ends_with(b"/") => Some(Kind::Dir),
            0 | b'0' | b'7' => Some(Kind::File),
            b'1' => None,
            b'2' => Some(Kind::Symlink),
            b'3' => Some(Kind::CharDev),
            b'4' => Some(Kind::BlockDev),
            b'5' => Some(Kind::Dir),
            b'6' => Some(Kind::Fifo),
            b'S' => return Err(odd("it has sparse files, which images should not have")),
            kind => {
                return Err(odd(format!(
                    "it has an entry of the unknown kind {kind:#x}"
                )));
            }
        };
        let link = extended
            .link
            .or_else(|| header.link_name_bytes().map(|link| link.into_owned()));
        let size = extended.size.unwrap_or(size);
        // Some programs write a size without content for other types.
        self.content = if kind == Some(Kind::File) { size } else { 0 };
        self.padding = self.content.wrapping_neg() % BLOCK as u64;
        let id = |number: u64| u32::try_from(number).map_err(|_| odd("an owner is out of range"));
        let device = |part: io::Result<Option<u32>>| part.ok().flatten().unwrap_or(0);
        let rdev = sys::make_device(device(header.device_major()), device(header.device_minor()));
        let mtime = extended.mtime.unwrap_or_else(|| Time {
            sec: header
                .mtime()
                .ok()
                .and_then(|sec| i64::try_from(sec).ok())
                .unwrap_or(0),
            nsec: 0,
        });
        let entry = TarEntry {
            kind,
            link: link.unwrap_or_default(),
            mode: header.mode()? & 0o7777,
            uid: id(extended.uid.map_or_else(|| header.uid(), Ok)?)?,
            gid: id(extended.gid.map_or_else(|| header.gid(), Ok)?)?,
            rdev: if matches!(kind, Some(Kind::CharDev | Kind::BlockDev)) {
                rdev
            } else {
                0
            },
            size: self.content,
            mtime,
            xattrs: extended.xattrs,
            name,
        };
        if entry.name.len() > PATH_BYTES_MAX || entry.link.len() > PATH_BYTES_MAX {
            return Err(odd("a path is too long"));
        }
        Ok(entry)
    }

    /// Returns the next header; `None`: the end.
    fn header(&mut self) -> io::Result<Option<Header>> {
        let mut header = Header::new_old();
        let bytes = header.as_mut_bytes();
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.from.read(rest)? {
                // The end marker may be missing.
                0 if filled == 0 => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => filled += read,
            }
        }
        if is_zeros(&bytes[..]) {
            return Ok(None);
        }
        let sum = bytes.iter().enumerate().map(|(at, byte)| {
            u32::from(if (148..156).contains(&at) {
                b' '
            } else {
                *byte
            })
        });
        let sum: u32 = sum.sum();
        if header.cksum().ok() != Some(sum) {
            return Err(odd("it is no tar"));
        }
        Ok(Some(header))
    }

    /// Returns the content of an extended header.
    fn extended(&mut self, size: u64) -> io::Result<Vec<u8>> {
        if size > EXTENDED_BYTES_MAX {
            return Err(odd("an extended header is too long"));
        }
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        self.from.read_exact(&mut bytes)?;
        self.skip(size.wrapping_neg() % BLOCK as u64)?;
        Ok(bytes)
    }

    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        if io::copy(&mut (&mut self.from).take(bytes), &mut io::sink())? == bytes {
            Ok(())
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }

    /// Returns the underlying reader.
    pub fn into_inner(self) -> R {
        self.from
    }
}

impl<R: Read> Read for Untar<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.content)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let Some(buffer) = buffer.get_mut(..most).filter(|buffer| !buffer.is_empty()) else {
            return Ok(0);
        };
        match self.from.read(buffer)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            read => {
                self.content -= read as u64;
                Ok(read)
            }
        }
    }
}

impl ExtendedHeaders {
    /// Parses records `LENGTH KEY=VALUE\n`, where the length includes the whole record.
    fn take_pax(&mut self, mut records: &[u8]) -> io::Result<()> {
        let broken = || odd("an extended header cannot be understood");
        while !records.is_empty() {
            let space = records
                .iter()
                .position(|byte| *byte == b' ')
                .ok_or_else(broken)?;
            let length = records.get(..space).and_then(number).ok_or_else(broken)?;
            let length = usize::try_from(length).map_err(|_| broken())?;
            let record = records
                .get(space + 1..length)
                .and_then(|record| record.strip_suffix(b"\n"));
            let record = record.ok_or_else(broken)?;
            let equals = record
                .iter()
                .position(|byte| *byte == b'=')
                .ok_or_else(broken)?;
            let (key, value) = record.split_at(equals);
            let value = value.get(1..).unwrap_or_default();
            records = records.get(length..).unwrap_or_default();
            let as_number = || number(value).map(Some).ok_or_else(broken);
            match key {
                b"path" => self.name = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => self.size = as_number()?,
                b"uid" => self.uid = as_number()?,
                b"gid" => self.gid = as_number()?,
                b"mtime" => self.mtime = Some(time(value).ok_or_else(broken)?),
                key if key.starts_with(b"GNU.sparse.") => {
                    return Err(odd("it has sparse files, which images should not have"));
                }
                key => {
                    if let Some(name) = key.strip_prefix(XATTR_KEY) {
                        self.xattrs
                            .push((TreePath(name.to_vec()), TreePath(value.to_vec())));
                    }
                }
            }
        }
        self.xattrs.sort();
        self.xattrs.dedup_by(|a, b| a.0 == b.0);
        Ok(())
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Parses seconds with an optional sign and fraction.
fn time(text: &[u8]) -> Option<Time> {
    let text = std::str::from_utf8(text).ok()?;
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (sec, fraction) = text.split_once('.').unwrap_or((text, ""));
    let sec: i64 = sec.parse().ok().filter(|sec| *sec >= 0)?;
    if !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let nsec: u32 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    Some(match (negative, nsec) {
        (false, nsec) => Time { sec, nsec },
        (true, 0) => Time { sec: -sec, nsec: 0 },
        (true, nsec) => Time {
            sec: -sec - 1,
            nsec: 1_000_000_000 - nsec,
        },
    })
}

fn until_nul(mut text: Vec<u8>) -> Vec<u8> {
    let end = text
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(text.len());
    text.truncate(end);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a file with attributes and a directory, as written by `tar c --format=pax --xattrs`.
    fn archive() -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        let extensions = [
            ("mtime", b"-1.25".as_slice()),
            ("SCHILY.xattr.user.b", b"one\ntwo\0"),
            ("SCHILY.xattr.user.a", b""),
            ("path", b"d/a name"),
        ];
        builder.append_pax_extensions(extensions).expect("written");
        let mut header = Header::new_ustar();
        header.set_size(5);
        header.set_mode(0o100_640);
        header.set_uid(7);
        header.set_gid(8);
        header.set_cksum();
        builder
            .append(&header, b"hello".as_slice())
            .expect("written");
        let mut header = Header::new_gnu();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_path("d/").expect("a path");
        header.set_size(0);
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(9);
        header.set_cksum();
        builder.append(&header, b"".as_slice()).expect("written");
        builder.into_inner().expect("ended")
    }

    fn read_all(bytes: &[u8]) -> io::Result<Vec<(TarEntry, Vec<u8>)>> {
        let (mut from, mut all) = (Untar::new(bytes), Vec::new());
        while let Some(entry) = from.advance()? {
            let mut content = Vec::new();
            // Every second entry is skipped.
            if all.len() % 2 == 0 {
                (&mut from).take(1 << 20).read_to_end(&mut content)?;
            }
            all.push((entry, content));
        }
        Ok(all)
    }

    #[test]
    fn entries_are_read_with_what_is_before_them() {
        let all = read_all(&archive()).expect("a tar");
        let [(file, content), (dir, _)] = all.as_slice() else {
            panic!("{all:?}");
        };
        assert_eq!(
            (file.name.as_slice(), content.as_slice()),
            (b"d/a name".as_slice(), b"hello".as_slice())
        );
        assert_eq!(
            (file.kind, file.mode, file.uid, file.gid),
            (Some(Kind::File), 0o640, 7, 8)
        );
        assert_eq!(
            file.mtime,
            Time {
                sec: -2,
                nsec: 750_000_000
            }
        );
        let xattrs: Vec<_> = file
            .xattrs
            .iter()
            .map(|(name, value)| (name.0.as_slice(), value.0.as_slice()))
            .collect();
        assert_eq!(
            xattrs,
            [
                (b"user.a".as_slice(), b"".as_slice()),
                (b"user.b", b"one\ntwo\0")
            ]
        );
        assert_eq!(
            (dir.kind, dir.mtime.sec, dir.xattrs.len()),
            (Some(Kind::Dir), 9, 0)
        );
    }

    #[test]
    fn what_is_cut_or_changed_anywhere_is_an_error_or_another_tar() {
        let whole = archive();
        for end in 0..whole.len() {
            let _ = read_all(&whole[..end]);
        }
        for at in 0..whole.len() {
            for value in [0, b'0', b'7', b'9', b' ', b'=', 0x80, 0xff] {
                let mut changed = whole.clone();
                changed[at] = value;
                let _ = read_all(&changed);
                // With a valid checksum.
                if let Some(block) = changed
                    .get_mut(at / BLOCK * BLOCK..)
                    .and_then(|rest| rest.get_mut(..BLOCK))
                {
                    let mut header = Header::from_byte_slice(block).clone();
                    header.set_cksum();
                    block.copy_from_slice(header.as_bytes());
                    let _ = read_all(&changed);
                }
            }
        }
    }

    #[test]
    fn an_extended_header_has_a_bound() {
        let mut header = Header::new_ustar();
        header.set_entry_type(tar::EntryType::XHeader);
        header.set_size(1 << 40);
        header.set_cksum();
        let endless = header.as_bytes().chain(io::repeat(0));
        let told = Untar::new(endless).advance().expect_err("too long");
        assert!(told.to_string().contains("too long"), "{told}");
    }

    #[test]
    fn times_have_signs_and_fractions() {
        let of = |text: &str| time(text.as_bytes()).map(|time| (time.sec, time.nsec));
        assert_eq!(of("1"), Some((1, 0)));
        assert_eq!(of("1.5"), Some((1, 500_000_000)));
        assert_eq!(of("1.0000000019"), Some((1, 1)));
        assert_eq!(of("-1.250000000"), Some((-2, 750_000_000)));
        assert_eq!(of("-3"), Some((-3, 0)));
        for wrong in ["", "-", "x", "1.x", "--1", "1.-5", "99999999999999999999"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }
}
