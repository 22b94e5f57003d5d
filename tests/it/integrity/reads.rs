//! The sealer reads only the changed parts of large files, and its hashes always match the bytes.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, copy_file_range, fallocate};

use super::story::caught_up;
use crate::common::command::check;
use crate::common::wait::{seen, wait_until};
use crate::common::{Fs, Image, Mount, MountOpts, Variant, for_each_variant};

for_each_variant! { reflink =>
    of_a_large_file_only_what_has_changed_is_read,
    a_hash_is_of_the_bytes_whatever_was_done_to_the_file,
    what_is_compressed_is_read,
}

const MIB: u64 = 1 << 20;
/// Bytes that the sealer reads for one changed byte.
const BLOCK: u64 = 64 << 10;

/// Returns bytes in which no two pages are equal.
fn noise(length: u64, seed: u8) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(length).unwrap()];
    blake3::Hasher::new()
        .update(&[seed])
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

/// Returns the objects hashed and bytes read once the sealer is idle.
fn sealed(mount: &Mount) -> (u64, u64) {
    caught_up(mount);
    let stats = mount.stats();
    let count = |what: &str| stats["sealer"][what].as_u64().unwrap();
    (count("objects"), count("read"))
}

/// Failed before: a few checkpoints with 16 KiB changed of 256 MiB made the sealer read 1.07 GB.
fn of_a_large_file_only_what_has_changed_is_read(v: Variant) {
    let size = 64 * MIB;
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        std::fs::write(dir.join("large"), noise(size, 0)).unwrap()
    });
    let path = rig.path().join("large");
    let open = || {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap()
    };
    let change = |file: &File, round: u8| {
        file.write_all_at(&noise(16 << 10, round), u64::from(round) * 5 * MIB + 12_345)
            .unwrap()
    };
    rig.mount.checkpoint();
    change(&open(), 1);
    rig.mount.checkpoint();
    let mut before = sealed(&rig.mount);
    assert_eq!(before.1, size, "the first time, all of it is read");
    // Open throughout, as by a database, then opened for each change.
    let kept = open();
    for round in 2..=9 {
        if round < 6 {
            change(&kept, round)
        } else {
            change(&open(), round)
        }
        rig.mount.checkpoint();
        let now = sealed(&rig.mount);
        let (objects, read) = (now.0 - before.0, now.1 - before.1);
        assert!(
            read <= 2 * BLOCK * objects,
            "round {round}: {read} bytes read for {objects} versions with 16 KiB changed in each"
        );
        before = now;
    }
    drop(kept);
    assert!(before.0 >= 8, "{before:?}");
    // A provisional capture is voided when no writer is left. The kernel sends RELEASE before the
    // close completes, so the close of another file retries it.
    wait_until("nothing is captured that is not hashed", || {
        std::fs::write(rig.path().join("other"), "").unwrap();
        let (status, report) = check(rig.path(), &["verify", "--deep"]);
        assert_eq!(status, 0, "{report}");
        seen(report["unhashed"] == 0, report)
    });
}

/// An operation on a file, and the bytes that hashing it may read.
type Act = (&'static str, u64, fn(&File, &File));

fn copy(from: &File, at: u64, to: &File, to_at: u64, length: u64) {
    let (mut at, mut to_at, mut left) = (at, to_at, length);
    while left > 0 {
        let copied = copy_file_range(
            from,
            Some(&mut at),
            to,
            Some(&mut to_at),
            usize::try_from(left).unwrap(),
        )
        .unwrap() as u64;
        assert!(copied > 0);
        left -= copied;
    }
}

/// Operations that move content or extents, within the file and between two files.
const ACTS: [Act; 16] = [
    ("written in place", 2 * BLOCK, |file, _| {
        file.write_all_at(&noise(16 << 10, 1), MIB).unwrap()
    }),
    ("made shorter", BLOCK, |file, _| {
        file.set_len(7 * MIB + 100).unwrap()
    }),
    ("made longer", MIB, |file, _| file.set_len(8 * MIB).unwrap()),
    ("written behind the old end", 2 * BLOCK, |file, _| {
        file.write_all_at(b"byte", 7 * MIB + BLOCK + 5).unwrap()
    }),
    ("a hole", 5 * BLOCK, |file, _| {
        fallocate(
            file,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            2 * MIB + 5000,
            4 * BLOCK,
        )
        .unwrap();
    }),
    ("next to the hole", BLOCK, |file, _| {
        file.write_all_at(b"byte", 2 * MIB + 10).unwrap()
    }),
    ("data in the hole", BLOCK, |file, _| {
        file.write_all_at(&noise(4096, 2), 2 * MIB + 2 * BLOCK)
            .unwrap()
    }),
    ("the same bytes again", 2 * BLOCK, |file, _| {
        file.write_all_at(&noise(16 << 10, 1), MIB).unwrap()
    }),
    ("its own blocks at another place", MIB, |file, _| {
        copy(file, 4 * MIB, file, 0, MIB)
    }),
    ("and at two", MIB, |file, _| {
        copy(file, 4 * MIB + 4096, file, 6 * MIB, MIB)
    }),
    ("of another file", MIB, |file, other| {
        copy(other, 3 * MIB, file, MIB, MIB)
    }),
    ("to another file and back", MIB, |file, other| {
        copy(file, 6 * MIB, other, MIB, MIB);
        copy(other, MIB, file, 6 * MIB, MIB);
    }),
    ("allocated behind the end", MIB + BLOCK, |file, _| {
        fallocate(file, FallocateFlags::empty(), 8 * MIB, MIB).unwrap()
    }),
    ("written where it was allocated", 2 * BLOCK, |file, _| {
        file.write_all_at(&noise(5000, 3), 8 * MIB + 9000).unwrap()
    }),
    ("emptied and written again", 8 * MIB, |file, _| {
        file.set_len(0).unwrap();
        file.write_all_at(&noise(8 * MIB, 4), 0).unwrap();
    }),
    ("all of another file", 8 * MIB, |file, other| {
        copy(other, 0, file, 0, 8 * MIB)
    }),
];

fn opened(path: &Path) -> File {
    let mut how = OpenOptions::new();
    how.read(true).write(true).create(true).truncate(false);
    how.open(path).unwrap()
}

fn a_hash_is_of_the_bytes_whatever_was_done_to_the_file(v: Variant) {
    let rig = v.start();
    let open = |name: &str| opened(&rig.path().join(name));
    let (file, other) = (open("file"), open("other"));
    file.write_all_at(&noise(8 * MIB, 10), 0).unwrap();
    other.write_all_at(&noise(8 * MIB, 11), 0).unwrap();
    drop((file, other));
    rig.mount.checkpoint();
    // The first version of each file, read whole.
    let mut may = 16 * MIB;
    for (what, cost, act) in ACTS {
        act(&open("file"), &open("other"));
        let id = rig.mount.checkpoint();
        // That version is hashed when its file has changed again.
        let (_, read) = sealed(&rig.mount);
        may += cost + BLOCK;
        assert!(
            read <= may,
            "checkpoint {id}, {what}: {read} bytes were read, of at most {may}"
        );
    }
    drop(open("file").write_at(b"last", 0));
    rig.mount.checkpoint();
    sealed(&rig.mount);
    let (status, report) = check(rig.path(), &["verify", "--deep"]);
    assert_eq!((status, &report["unhashed"]), (0, &0.into()), "{report}");
    assert!(
        report["versions"].as_u64() >= Some(ACTS.len() as u64),
        "{report}"
    );
}

/// For a compressed extent FIEMAP reports its start but not which part the file uses: both halves
/// are at the same address.
fn what_is_compressed_is_read(v: Variant) {
    let mut image = Image::of(v.fs);
    if v.fs == Fs::Btrfs {
        image.unmount();
        image.mount_with("compress-force=zstd");
    }
    let rig = v.start_on(image, MountOpts::new(v.io), |_| {});
    let open = |name: &str| opened(&rig.path().join(name));
    let lines = |from: u64, to: u64| {
        (from / 16..to / 16)
            .flat_map(|line| format!("line {line:10}\n").into_bytes())
            .collect::<Vec<u8>>()
    };
    let half = BLOCK;
    let acts: [fn(&File, &File, u64); 4] = [
        |file, other, half| copy(file, half, other, 0, half),
        |file, _, half| {
            file.write_all_at(&vec![7; usize::try_from(half).unwrap()], half)
                .unwrap()
        },
        |file, other, half| copy(other, 0, file, 0, half),
        |file, _, half| file.write_all_at(b"last", 3 * half).unwrap(),
    ];
    open("file").write_all_at(&lines(0, 2 * MIB), 0).unwrap();
    open("file").sync_all().unwrap();
    rig.mount.checkpoint();
    for act in acts {
        act(&open("file"), &open("other"), half);
        rig.mount.checkpoint();
        sealed(&rig.mount);
    }
    // The daemon receives the last RELEASE late, and hashes the version after it.
    wait_until("every version has a hash", || {
        check(rig.path(), &["verify", "--deep"]).1["unhashed"] == 0
    });
    let (status, report) = check(rig.path(), &["verify", "--deep"]);
    assert_eq!((status, &report["unhashed"]), (0, &0.into()), "{report}");
}
