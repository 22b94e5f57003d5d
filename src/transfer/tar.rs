//! A tar stream in the pax format of POSIX.1-2001, with the extensions of GNU tar and bsdtar for
//! extended attributes (`SCHILY.xattr.NAME`) and holes (GNU.sparse 1.0).
//!
//! ```text
//! header   0 name 100 B | 100 mode 8 | 108 uid 8 | 116 gid 8 | 124 size 12 | 136 mtime 12 | 148 checksum 8 | 156 type 1
//!          157 linkname 100 | 257 "ustar\0" "00" | 265 uname 32 | 297 gname 32 | 329 devmajor 8 | 337 devminor 8 | 345 prefix 155
//! ```
//! Numbers are octal, terminated by NUL. Values that do not fit are in a preceding pax header:
//! records `LENGTH KEY=VALUE\n`.

use std::fs::File;
use std::io::{self, Write};

use super::verified_stream::BufferedContent;
use ckptfs_api::ExportEntry;
use ckptfs_sys::{self as sys, Errno, Kind, SysResult};

const BLOCK: usize = 512;
/// Largest number of 7 and of 11 octal digits.
const OCTAL_7_MAX: u64 = 0o7_777_777;
const OCTAL_11_MAX: u64 = 0o77_777_777_777;
/// Read size, in bytes.
const CHUNK_BYTES: usize = 256 * 1024;
/// A stream ends with two blocks of zeros and is padded to a multiple of this.
const RECORD_BYTES: u64 = 10_240;

/// Writes a tar stream.
#[derive(Debug)]
pub struct Stream<W: Write> {
    to: W,
    written: u64,
    layer: bool,
}

/// Offset and length of each piece of a file between its holes.
pub type Pieces = Vec<(u64, u64)>;

impl<W: Write> Stream<W> {
    /// Begins a stream.
    pub fn new(to: W) -> Stream<W> {
        Stream {
            to,
            written: 0,
            layer: false,
        }
    }

    /// Begins an image layer. Holes are written as zeros, which every image unpacker reads, and
    /// access times are omitted, so that equal trees produce equal streams.
    pub fn layer(to: W) -> Stream<W> {
        Stream {
            layer: true,
            ..Stream::new(to)
        }
    }

    /// Writes one entry under `path`. `first`: path of an earlier entry for the same inode.
    /// `large`: the file to read if the content is not buffered.
    ///
    /// # Errors
    /// Those of writing, and of reading; the stream is unusable then.
    pub fn entry(
        &mut self,
        path: &[u8],
        entry: &ExportEntry,
        first: Option<&[u8]>,
        content: &BufferedContent<'_>,
        large: Option<&File>,
    ) -> io::Result<()> {
        let target = first.or(entry.target.as_ref().map(|target| target.0.as_slice()));
        let file = entry.kind == Kind::File && first.is_none();
        let found = large
            .filter(|_| file && !self.layer)
            .map(|from| pieces(from, entry.size))
            .transpose()?
            .flatten();
        let pieces = match content {
            BufferedContent::Held { pieces, .. } if file => *pieces,
            _ => found.as_ref(),
        };
        let mut records = of_inode(entry, first.is_none(), !self.layer);
        let map = pieces.filter(|_| !self.layer).map(map_of);
        let size = match (&map, pieces) {
            (Some(map), Some(pieces)) => {
                map.len() as u64 + pieces.iter().map(|(_, length)| length).sum::<u64>()
            }
            _ if file => entry.size,
            _ => 0,
        };
        let mut name = path.to_vec();
        if map.is_some() {
            record_sparse(&mut records, path, entry.size);
            name = b"./GNUSparseFile.0/sparse".to_vec();
        }
        if entry.kind == Kind::Dir {
            name.push(b'/');
        }
        if name.len() > 100 || !name.is_ascii() {
            record(&mut records, b"path", &name);
        }
        if let Some(target) = target.filter(|target| target.len() > 100 || !target.is_ascii()) {
            record(&mut records, b"linkpath", target);
        }
        record_large(&mut records, b"size", size, OCTAL_11_MAX);
        record_large(&mut records, b"uid", entry.uid.into(), OCTAL_7_MAX);
        record_large(&mut records, b"gid", entry.gid.into(), OCTAL_7_MAX);
        if !records.is_empty() {
            self.pax(&records)?;
        }
        self.header(
            &name,
            entry,
            kind_of(entry.kind, first.is_some())?,
            size,
            target.unwrap_or_default(),
        )?;
        if !file {
            return Ok(());
        }
        self.write(&map.unwrap_or_default())?;
        self.content(content, large, pieces, entry.size)?;
        self.pad()
    }

    /// Writes the content of a file: its pieces, in a layer all bytes.
    fn content(
        &mut self,
        content: &BufferedContent<'_>,
        large: Option<&File>,
        pieces: Option<&Pieces>,
        size: u64,
    ) -> io::Result<()> {
        match (content, large) {
            (BufferedContent::Held { bytes, .. }, _) if self.layer => {
                self.without_holes(bytes, pieces, size)?
            }
            (BufferedContent::Held { bytes, .. }, _) => self.write(bytes)?,
            (_, Some(from)) => {
                for (offset, length) in pieces.map_or(&[(0, size)][..], Vec::as_slice) {
                    self.copy(from, *offset, *length)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Ends the stream and returns the writer.
    ///
    /// # Errors
    /// Those of writing.
    pub fn finish(mut self) -> io::Result<W> {
        self.write(&[0; 2 * BLOCK])?;
        let over = self.written % RECORD_BYTES;
        if over > 0 {
            let rest = usize::try_from(RECORD_BYTES - over).unwrap_or(0);
            self.write(&vec![0; rest])?;
        }
        self.to.flush()?;
        Ok(self.to)
    }

    fn pax(&mut self, records: &[u8]) -> io::Result<()> {
        let mut block = Header::new(b"./PaxHeaders/x", b'x', records.len() as u64);
        block.octal(100, 8, 0o644);
        self.write(&block.seal())?;
        self.write(records)?;
        self.pad()
    }

    fn header(
        &mut self,
        name: &[u8],
        entry: &ExportEntry,
        kind: u8,
        size: u64,
        target: &[u8],
    ) -> io::Result<()> {
        let mut block = Header::new(name, kind, size.min(OCTAL_11_MAX));
        block.octal(100, 8, u64::from(entry.mode));
        block.octal(108, 8, u64::from(entry.uid).min(OCTAL_7_MAX));
        block.octal(116, 8, u64::from(entry.gid).min(OCTAL_7_MAX));
        block.octal(
            136,
            12,
            u64::try_from(entry.mtime().sec)
                .unwrap_or(0)
                .min(OCTAL_11_MAX),
        );
        block.put(157, target.get(..target.len().min(100)).unwrap_or_default());
        if matches!(entry.kind, Kind::CharDev | Kind::BlockDev) {
            block.octal(329, 8, sys::device_major(entry.rdev).into());
            block.octal(337, 8, sys::device_minor(entry.rdev).into());
        }
        self.write(&block.seal())
    }

    /// Writes the pieces with zeros for the holes between them.
    fn without_holes(
        &mut self,
        mut bytes: &[u8],
        pieces: Option<&Pieces>,
        size: u64,
    ) -> io::Result<()> {
        let mut at = 0;
        for (offset, length) in pieces.map_or(&[(0, size)][..], Vec::as_slice) {
            let length = usize::try_from(*length).map_err(|_| Errno::EIO)?;
            let (piece, rest) = bytes.split_at_checked(length).ok_or(Errno::EIO)?;
            let hole = usize::try_from(offset.saturating_sub(at)).map_err(|_| Errno::EIO)?;
            // Buffered files are small, and therefore their holes.
            self.write(&vec![0; hole])?;
            self.write(piece)?;
            (at, bytes) = (offset + length as u64, rest);
        }
        Ok(())
    }

    fn copy(&mut self, from: &File, offset: u64, length: u64) -> io::Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES];
        let (mut at, end) = (offset, offset + length);
        while at < end {
            let want = usize::try_from(end - at)
                .unwrap_or(usize::MAX)
                .min(CHUNK_BYTES);
            let buffer = chunk.get_mut(..want).ok_or(Errno::EIO)?;
            let got = sys::read_at(from, buffer, at)?;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let read = chunk.get(..got).unwrap_or_default();
            self.to.write_all(read)?;
            self.written += got as u64;
            at += got as u64;
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.to.write_all(bytes)
    }

    /// Pads to the next block.
    fn pad(&mut self) -> io::Result<()> {
        let over = usize::try_from(self.written % BLOCK as u64).unwrap_or(0);
        if over == 0 {
            Ok(())
        } else {
            self.write(&vec![0; BLOCK - over])
        }
    }
}

struct Header([u8; BLOCK]);

impl Header {
    fn new(name: &[u8], kind: u8, size: u64) -> Header {
        let mut header = Header([0; BLOCK]);
        header.put(0, name.get(..name.len().min(100)).unwrap_or_default());
        header.octal(124, 12, size);
        header.octal(136, 12, 0);
        header.put(156, &[kind]);
        header.put(257, b"ustar\x0000");
        header
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(field) = self.0.get_mut(at..at + bytes.len()) {
            field.copy_from_slice(bytes);
        }
    }

    fn octal(&mut self, at: usize, width: usize, number: u64) {
        let digits = format!("{number:0width$o}", width = width - 1);
        self.put(at, digits.as_bytes());
    }

    /// Sets the checksum: the sum of all bytes, with its own eight bytes as spaces.
    fn seal(mut self) -> [u8; BLOCK] {
        self.put(148, b"        ");
        let sum: u64 = self.0.iter().map(|byte| u64::from(*byte)).sum();
        let digits = format!("{sum:06o}\0 ");
        self.put(148, digits.as_bytes());
        self.0
    }
}

fn kind_of(kind: Kind, again: bool) -> io::Result<u8> {
    Ok(match kind {
        _ if again => b'1',
        Kind::File => b'0',
        Kind::Symlink => b'2',
        Kind::CharDev => b'3',
        Kind::BlockDev => b'4',
        Kind::Dir => b'5',
        Kind::Fifo => b'6',
        // The format has no type for sockets.
        Kind::Socket => return Err(Errno::EOPNOTSUPP.into()),
    })
}

/// Appends `LENGTH KEY=VALUE\n`; the length includes its own digits.
fn record(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    records.extend_from_slice(format!("{length} ").as_bytes());
    records.extend_from_slice(key);
    records.push(b'=');
    records.extend_from_slice(value);
    records.push(b'\n');
}

/// Appends the records of a sparse file, whose content is a map followed by its pieces.
fn record_sparse(records: &mut Vec<u8>, path: &[u8], size: u64) {
    record(records, b"GNU.sparse.major", b"1");
    record(records, b"GNU.sparse.minor", b"0");
    record(records, b"GNU.sparse.name", path);
    record(records, b"GNU.sparse.realsize", size.to_string().as_bytes());
}

/// Appends a number that does not fit into the header.
fn record_large(records: &mut Vec<u8>, key: &[u8], number: u64, most: u64) {
    if number > most {
        record(records, key, number.to_string().as_bytes());
    }
}

/// Returns the records of an inode: times, and if requested extended attributes and access time.
fn of_inode(entry: &ExportEntry, xattrs: bool, atime: bool) -> Vec<u8> {
    let (mut records, mtime) = (Vec::new(), entry.mtime());
    if mtime.nsec != 0 || mtime.sec < 0 {
        record(&mut records, b"mtime", decimal(mtime).as_bytes());
    }
    if atime {
        record(&mut records, b"atime", decimal(entry.atime()).as_bytes());
    }
    for (name, value) in entry.xattrs.iter().filter(|_| xattrs) {
        let key = [b"SCHILY.xattr.", name.0.as_slice()].concat();
        record(&mut records, &key, &value.0);
    }
    records
}

/// Formats seconds since 1970 with nine decimals. In `Time`, `sec` is rounded down for times before
/// 1970 and `nsec` counts up.
fn decimal(time: sys::Time) -> String {
    let nanoseconds = i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec);
    let (sign, all) = if nanoseconds < 0 {
        ("-", -nanoseconds)
    } else {
        ("", nanoseconds)
    };
    format!("{sign}{}.{:09}", all / 1_000_000_000, all % 1_000_000_000)
}

/// Returns the pieces of a file between its holes; `None` if the holes do not save a block.
///
/// # Errors
/// Those of lseek(2).
pub fn pieces(file: &File, size: u64) -> SysResult<Option<Pieces>> {
    let (mut pieces, mut at) = (Vec::new(), 0);
    // Most files have no holes; one call shows that.
    if size == 0 || sys::seek_hole(file, 0).is_ok_and(|hole| hole >= size) {
        return Ok(None);
    }
    while at < size {
        let start = match sys::seek_data(file, at) {
            Ok(start) => start.min(size),
            Err(Errno::ENXIO) => break,
            // The filesystem does not support SEEK_DATA.
            Err(_) => return Ok(None),
        };
        let end = sys::seek_hole(file, start)?.min(size);
        if end <= start {
            break;
        }
        pieces.push((start, end - start));
        at = end;
    }
    let held: u64 = pieces.iter().map(|(_, length)| length).sum();
    if held + BLOCK as u64 > size {
        return Ok(None);
    }
    // The map ends at the end of the file.
    pieces.push((size, 0));
    Ok(Some(pieces))
}

/// Returns the map that precedes the content of a sparse file: lines of decimal numbers, padded to
/// a block.
fn map_of(pieces: &Pieces) -> Vec<u8> {
    let mut map = format!("{}\n", pieces.len()).into_bytes();
    for (offset, length) in pieces {
        map.extend_from_slice(format!("{offset}\n{length}\n").as_bytes());
    }
    map.resize(map.len().next_multiple_of(BLOCK), 0);
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_its_own_length() {
        for length in [
            1, 5, 90, 91, 92, 93, 94, 95, 96, 980, 990, 991, 992, 993, 9980, 9990,
        ] {
            let mut records = Vec::new();
            record(&mut records, b"k", &vec![b'v'; length]);
            let text = String::from_utf8(records).expect("text");
            let (said, _) = text.split_once(' ').expect("a length");
            assert_eq!(said.parse::<usize>().expect("a number"), text.len());
        }
    }

    #[test]
    fn times_before_1970_have_their_digits() {
        assert_eq!(
            decimal(sys::Time {
                sec: -2,
                nsec: 750_000_000
            }),
            "-1.250000000"
        );
        assert_eq!(decimal(sys::Time { sec: 1, nsec: 5 }), "1.000000005");
    }

    #[test]
    fn a_stream_is_whole_records_and_a_socket_is_refused() {
        let stream = Stream::new(Vec::new());
        assert_eq!(stream.finish().expect("ends").len() as u64, RECORD_BYTES);
        assert!(kind_of(Kind::Socket, false).is_err());
    }
}
