//! Object names, and objects in their directories.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;

use super::*;

struct Bench {
    dir: tempfile::TempDir,
    layout: Layout,
}

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::open(File::open(dir.path()).unwrap(), true).unwrap();
        Bench { dir, layout }
    }

    fn layers(&self) -> Layers {
        Layers::new(&self.layout).unwrap()
    }

    fn objects(&self, epoch: u64) -> PathBuf {
        self.dir
            .path()
            .join(format!(".ckptfs/layers/{epoch}/objects"))
    }
}

const EPOCH: Epoch = Epoch(5);

#[test]
fn a_name_has_one_spelling() {
    for (slot, serial, origin, name) in [
        (0, 0, ObjectOrigin::Cloned, "0-0.c"),
        (
            u64::MAX,
            u32::MAX,
            ObjectOrigin::Moved,
            "18446744073709551615-4294967295.m",
        ),
        (42, 7, ObjectOrigin::Moved, "42-7.m"),
    ] {
        let id = ObjectId {
            epoch: EPOCH,
            slot: Slot(slot),
            serial,
            origin,
        };
        assert_eq!(file_name(id), name);
        assert_eq!(parse_name(EPOCH, name.as_bytes()), Some(id));
    }
    for bad in [
        "",
        ".c",
        "-.c",
        "1-.c",
        "-1.c",
        "01-1.c",
        "1-01.c",
        "+1-1.c",
        "1-1.d",
        "1-1",
        "1-1.c.c",
        "1-1-1.c",
        "1-4294967296.c",
        "1 -1.c",
        "..",
        "1-1.C",
    ] {
        assert_eq!(parse_name(EPOCH, bad.as_bytes()), None, "{bad:?}");
    }
    assert_eq!(parse_name(EPOCH, b"1-1.c\xff"), None);
}

#[test]
fn an_object_is_made_once_read_listed_and_removed() {
    let bench = Bench::new();
    let layers = bench.layers();
    let id = layers
        .next_object(EPOCH, Slot(9), ObjectOrigin::Cloned)
        .unwrap();
    layers.create(id).unwrap().write_all(b"old bytes").unwrap();
    assert_eq!(
        layers.create(id).unwrap_err().errno(),
        ckptfs_sys::Errno::EEXIST
    );
    let mut read = String::new();
    layers.open(id).unwrap().read_to_string(&mut read).unwrap();
    assert_eq!(read, "old bytes");
    assert!(
        layers.open(id).unwrap().write_all(b"x").is_err(),
        "read only"
    );
    assert_eq!(layers.list(EPOCH).unwrap(), [id]);
    assert_eq!(layers.epochs().unwrap(), [EPOCH]);
    assert!(!layers.remove_epoch_if_empty(EPOCH).unwrap());
    layers.remove(id).unwrap();
    for error in [layers.remove(id).unwrap_err(), layers.open(id).unwrap_err()] {
        assert_eq!(error.errno(), ckptfs_sys::Errno::ENOENT);
    }
    assert!(layers.remove_epoch_if_empty(EPOCH).unwrap());
    assert!(layers.remove_epoch_if_empty(EPOCH).unwrap());
    assert_eq!(layers.epochs().unwrap(), []);
    assert_eq!(layers.list(EPOCH).unwrap(), []);
    layers.create(id).unwrap();
}

#[test]
fn reading_makes_no_directories() {
    let bench = Bench::new();
    let layers = bench.layers();
    let id = ObjectId {
        epoch: EPOCH,
        slot: Slot(1),
        serial: 0,
        origin: ObjectOrigin::Cloned,
    };
    assert_eq!(
        layers.open(id).unwrap_err().errno(),
        ckptfs_sys::Errno::ENOENT
    );
    assert_eq!(layers.list(EPOCH).unwrap(), []);
    assert_eq!(layers.epochs().unwrap(), []);
}

#[test]
fn serials_are_not_given_twice_over_mounts_and_threads() {
    let bench = Bench::new();
    let mut given = BTreeSet::new();
    for _mount in 0..3 {
        let layers = bench.layers();
        let mut ids = Vec::new();
        std::thread::scope(|scope| {
            let give = || {
                (0..50)
                    .map(|_| {
                        layers
                            .next_object(EPOCH, Slot(1), ObjectOrigin::Moved)
                            .unwrap()
                    })
                    .collect::<Vec<_>>()
            };
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(give)).collect();
            ids.extend(
                threads
                    .into_iter()
                    .flat_map(|thread| thread.join().unwrap()),
            );
        });
        for id in ids {
            layers.create(id).unwrap();
            assert!(given.insert(id));
        }
    }
    let last = ObjectId {
        epoch: EPOCH,
        slot: Slot(1),
        serial: u32::MAX,
        origin: ObjectOrigin::Cloned,
    };
    bench.layers().create(last).unwrap();
    let error = bench
        .layers()
        .next_object(EPOCH, Slot(2), ObjectOrigin::Cloned)
        .unwrap_err();
    assert!(matches!(error, StoreError::SerialsUsedUp(EPOCH)));
}

#[test]
fn an_inode_is_moved_in_and_one_that_is_no_file_is_not_opened() {
    let bench = Bench::new();
    let layers = bench.layers();
    let root = File::open(bench.dir.path()).unwrap();
    rustix::fs::mkfifoat(&root, "pipe", rustix::fs::Mode::RUSR).unwrap();
    fs::create_dir(bench.dir.path().join("dir")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", bench.dir.path().join("link")).unwrap();
    for name in ["pipe", "dir", "link"] {
        let id = layers
            .next_object(EPOCH, Slot(1), ObjectOrigin::Moved)
            .unwrap();
        let (dir, object) = layers.location(id).unwrap();
        rustix::fs::renameat(&root, name, &*dir, &object).unwrap();
        assert!(
            matches!(layers.open(id), Err(StoreError::NotAFile(_))),
            "{name}"
        );
        assert_eq!(layers.list(EPOCH).unwrap(), [id]);
        layers.remove(id).unwrap();
    }
}

#[test]
fn what_is_not_ours_is_left_alone() {
    let bench = Bench::new();
    let layers = bench.layers();
    let id = layers
        .next_object(EPOCH, Slot(1), ObjectOrigin::Cloned)
        .unwrap();
    layers.create(id).unwrap();
    fs::write(bench.objects(5).join("README"), "").unwrap();
    fs::create_dir(bench.dir.path().join(".ckptfs/layers/05")).unwrap();
    fs::create_dir(bench.dir.path().join(".ckptfs/layers/old")).unwrap();
    assert_eq!(layers.list(EPOCH).unwrap(), [id]);
    assert_eq!(layers.epochs().unwrap(), [EPOCH]);
    layers.remove(id).unwrap();
    assert!(!layers.remove_epoch_if_empty(EPOCH).unwrap());
    layers.create(id).unwrap();
}

#[test]
fn more_epochs_than_are_kept_open() {
    let bench = Bench::new();
    let layers = bench.layers();
    let count = OPEN_EPOCHS_MAX as u64 + 10;
    for _round in 0..2 {
        for epoch in (0..count).map(Epoch) {
            let id = layers
                .next_object(epoch, Slot(1), ObjectOrigin::Cloned)
                .unwrap();
            layers.create(id).unwrap();
        }
    }
    assert_eq!(layers.epochs().unwrap().len() as u64, count);
    assert!(layers.epochs.read().len() <= OPEN_EPOCHS_MAX);
    assert!((0..count).all(|epoch| layers.list(Epoch(epoch)).unwrap().len() == 2));
}
