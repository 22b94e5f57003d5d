//! Equal ranges of two files, found by their location on the device.

use std::fs::File;
use std::ops::Range;

use super::super::fault::{self, CallKind};
use super::super::types::SysResult;
use super::probe::{EXTENT_OPAQUE, EXTENT_UNWRITTEN, EXTENTS_MAX, each_extent};
use super::project::fsxattr;

/// The data is on XFS's real-time device, which has a separate address space (`FS_XFLAG_REALTIME`).
const XFLAG_REALTIME: u32 = 0x1;

/// A range of a file that is no hole, and its start on the device. `None`: the location does not
/// determine the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MappedPiece {
    start: u64,
    end: u64,
    place: Option<u64>,
}

/// The data at an offset of a file.
#[derive(PartialEq, Eq)]
enum DataAt {
    Hole,
    At(u64),
    Unknown,
}

/// Returns the ranges of the first `size` bytes in which two files are equal, because both have the
/// data at one location of the device or both have a hole. The ranges are in order and not
/// adjacent. Other ranges may also be equal: inline, compressed or encrypted data has no comparable
/// location.
///
/// It proves equality of files that are not written. Their data may be moved (by sharing or
/// defragmentation). Both files are open, so a block referenced by one is not reused before it is
/// moved, and the extents of `a` are read again at the end to detect that. The result is empty on
/// filesystems other than XFS and btrfs and on XFS's real-time device, because an address must mean
/// one location, and for files of more than 2^18 extents. Both files are flushed.
///
/// Errors: those of the system calls.
pub fn same_ranges(a: &File, b: &File, size: u64) -> SysResult<Vec<Range<u64>>> {
    fault::check(CallKind::Probe)?;
    if super::stat_fd(a)?.dev != super::stat_fd(b)?.dev
        || !has_one_address_space(a)?
        || !has_one_address_space(b)?
    {
        return Ok(Vec::new());
    }
    let (Some(before), Some(other)) = (pieces(a, size)?, pieces(b, size)?) else {
        return Ok(Vec::new());
    };
    if pieces(a, size)?.as_ref() != Some(&before) {
        return Ok(Vec::new());
    }
    Ok(equal_ranges(&before, &other, size))
}

/// Returns whether equal addresses of two such files of one filesystem are one location.
fn has_one_address_space(file: &File) -> SysResult<bool> {
    if !matches!(
        super::fs_name(super::statfs_fd(file)?.fs_type),
        "xfs" | "btrfs"
    ) {
        return Ok(false);
    }
    Ok(fsxattr(file)?.xflags & XFLAG_REALTIME == 0)
}

/// Returns the ranges up to `size` that are not holes, in order; `None` if there are too many, or
/// the extents are out of order. Unwritten extents count as holes.
fn pieces(file: &File, size: u64) -> SysResult<Option<Vec<MappedPiece>>> {
    let mut found: Vec<MappedPiece> = Vec::new();
    let mut upto = 0;
    let whole = each_extent(file, size, |extent| {
        let piece = MappedPiece {
            start: extent.logical,
            end: extent.logical.saturating_add(extent.length),
            place: (extent.flags & EXTENT_OPAQUE == 0).then_some(extent.physical),
        };
        let in_order = piece.start >= upto;
        upto = piece.end;
        if extent.flags & (EXTENT_UNWRITTEN | EXTENT_OPAQUE) != EXTENT_UNWRITTEN {
            found.push(piece);
        }
        in_order && found.len() <= EXTENTS_MAX
    })?;
    Ok(whole.then_some(found))
}

fn equal_ranges(mut a: &[MappedPiece], mut b: &[MappedPiece], size: u64) -> Vec<Range<u64>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    let mut at = 0;
    while at < size {
        let ((in_a, end_a), (in_b, end_b)) = (held_at(&mut a, at, size), held_at(&mut b, at, size));
        let end = end_a.min(end_b).min(size);
        if in_a == in_b && in_a != DataAt::Unknown {
            match found.last_mut() {
                Some(last) if last.end == at => last.end = end,
                _ => found.push(at..end),
            }
        }
        at = end;
    }
    found
}

/// The data at `at`, and its end; drops earlier pieces from `rest`.
fn held_at(rest: &mut &[MappedPiece], at: u64, size: u64) -> (DataAt, u64) {
    while let Some((_, more)) = rest.split_first().filter(|(first, _)| first.end <= at) {
        *rest = more;
    }
    match rest.first() {
        None => (DataAt::Hole, size),
        Some(next) if next.start > at => (DataAt::Hole, next.start),
        Some(piece) => (
            piece.place.map_or(DataAt::Unknown, |place| {
                DataAt::At(place.saturating_add(at - piece.start))
            }),
            piece.end,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(start: u64, end: u64, place: u64) -> MappedPiece {
        MappedPiece {
            start,
            end,
            place: Some(place),
        }
    }

    #[test]
    fn what_is_at_one_place_or_a_hole_in_both_is_the_same_and_nothing_else() {
        let a = [
            piece(0, 10, 100),
            piece(10, 20, 500),
            piece(30, 40, 700),
            MappedPiece {
                start: 40,
                end: 50,
                place: None,
            },
        ];
        assert_eq!(
            equal_ranges(&a, &a, 60),
            [0..40, 50..60],
            "the unknown is not even itself"
        );
        assert_eq!(equal_ranges(&a, &a, 55), [0..40, 50..55]);
        let cases: [(&[MappedPiece], &[Range<u64>]); 6] = [
            // One byte rewritten in the middle.
            (
                &[
                    piece(0, 4, 100),
                    piece(4, 5, 900),
                    piece(5, 10, 105),
                    piece(10, 20, 500),
                    piece(30, 40, 700),
                ],
                &[0..4, 5..40, 50..60],
            ),
            // The same locations in another order, and a part of an extent at another offset.
            (
                &[piece(0, 10, 500), piece(10, 20, 100), piece(30, 40, 701)],
                &[20..30, 50..60],
            ),
            // A hole became data, and data a hole.
            (
                &[piece(0, 10, 100), piece(20, 30, 500), piece(30, 40, 700)],
                &[0..10, 30..40, 50..60],
            ),
            // Adjacent ranges of the device as one extent.
            (
                &[piece(0, 20, 100), piece(30, 40, 700)],
                &[0..10, 20..40, 50..60],
            ),
            (&[], &[20..30, 50..60]),
            (
                &[MappedPiece {
                    start: 0,
                    end: 60,
                    place: None,
                }],
                &[],
            ),
        ];
        for (b, expected) in cases {
            assert_eq!(equal_ranges(&a, b, 60), expected, "{b:?}");
            assert_eq!(equal_ranges(b, &a, 60), expected, "{b:?}");
        }
    }
}
