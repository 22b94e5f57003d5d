//! Documented limits of the kernel's FUSE client: the current behavior. A kernel that behaves as on
//! a plain filesystem fails these tests, and then the documentation must be updated.

use std::fs::{self, OpenOptions};
use std::io::{IoSlice, Seek, SeekFrom, Write};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};

use super::support::Mapping;
use crate::common::{Io, Variant, for_each_variant};

for_each_variant! { xfs =>
    stores_beyond_the_end_are_seen_when_the_file_grows,
    a_file_that_was_opened_to_append_goes_on_to,
}

/// The kernel keeps the page, and does not zero its bytes beyond the end of the file.
fn stores_beyond_the_end_are_seen_when_the_file_grows(v: Variant) {
    let rig = v.start();
    let path = rig.path().join("f");
    fs::write(&path, [b'.'; 100]).unwrap();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let mapping = Mapping::writable(&file, 4096);
    mapping.write(200, b"beyond");
    file.set_len(4096).unwrap();
    let seen = &fs::read(&path).unwrap()[200..206];
    match v.io {
        Io::Daemon => assert_eq!(seen, b"beyond"),
        _ => assert_eq!(seen, [0; 6]),
    }
}

/// RWF_NOAPPEND of linux/fs.h (Linux 6.9).
const NOAPPEND: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x20);

/// In a passthrough mount the kernel writes with the open flags of the file.
fn a_file_that_was_opened_to_append_goes_on_to(v: Variant) {
    let rig = v.start();
    let (one, other) = (rig.path().join("one"), rig.path().join("other"));
    let mut ends = Vec::new();
    for path in [&one, &other] {
        fs::write(path, "0123456789").unwrap();
        let open = || OpenOptions::new().append(true).open(path).unwrap();
        let mut file = open();
        if path == &one {
            let flags = fcntl_getfl(&file).unwrap();
            fcntl_setfl(&file, flags - OFlags::APPEND).unwrap();
            file.seek(SeekFrom::Start(0)).unwrap();
            file.write_all(b"ab").unwrap();
        } else if pwritev2(&file, &[IoSlice::new(b"ab")], 0, NOAPPEND) == Err(Errno::OPNOTSUPP) {
            continue;
        }
        ends.push(fs::read_to_string(path).unwrap());
    }
    let expected = match v.io {
        Io::Passthrough => "0123456789ab",
        _ => "ab23456789",
    };
    assert!(
        !ends.is_empty() && ends.iter().all(|text| text == expected),
        "{ends:?}"
    );
}
