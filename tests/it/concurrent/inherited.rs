//! Concurrent changes of a branch's inherited files: the first change copies the file up, and
//! earlier descriptors and mappings see all the changes.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::thread;

use crate::common::tree::{TreeOpts, assert_tree_is, tree};
use crate::common::{MountOpts, Rig, Variant, for_each_variant};
use crate::cut::map::SharedMapping;

for_each_variant! { reflink => everybody_changes_inherited_files }

/// Lengths below and above the limit for reads through the daemon (128 KiB), by the number of the
/// file.
const LENGTHS: [usize; 4] = [4096, 100_000, 140_000, 300_000];
const FILES: usize = 16;
const WRITERS: usize = 4;
/// Writes of each writer, at offsets of its own.
const WRITES: usize = 8;
const CELL: usize = 32;
const LINE: &[u8] = b"one more line.\n";
const APPENDS: usize = 10;
const RENAMES: usize = 12;

/// Descriptors and mappings opened before a change.
struct EarlierOpens {
    read: File,
    map: SharedMapping,
    /// Only for files with an even number.
    stores: Option<SharedMapping>,
}

fn name(number: usize) -> String {
    format!("d/f{number}")
}

fn original(number: usize) -> Vec<u8> {
    vec![b'0' + number as u8; LENGTHS[number % LENGTHS.len()]]
}

fn prepare(root: &Path) {
    fs::create_dir(root.join("d")).unwrap();
    fs::create_dir(root.join("e")).unwrap();
    for number in 0..FILES {
        let path = root.join(name(number));
        fs::write(&path, original(number)).unwrap();
        if number % 3 == 0 {
            fs::hard_link(&path, root.join(format!("e/g{number}"))).unwrap();
        }
        if number % 5 == 0 {
            fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        }
    }
}

/// Retries while a concurrent rename hides the name.
fn again<T>(act: impl Fn() -> io::Result<T>) -> T {
    loop {
        match act() {
            Err(error) if error.kind() == ErrorKind::NotFound => thread::yield_now(),
            done => return done.unwrap_or_else(|error| panic!("{error}")),
        }
    }
}

/// Writes this writer's cells.
fn write_cells(path: &Path, writer: usize) {
    for turn in 0..WRITES {
        let file = again(|| OpenOptions::new().read(true).write(true).open(path));
        let at = (1 + writer * WRITES + turn) * CELL;
        file.write_all_at(&[b'A' + writer as u8; CELL], at as u64)
            .unwrap();
    }
}

fn append(path: &Path) {
    for _ in 0..APPENDS {
        let mut file = again(|| OpenOptions::new().append(true).open(path));
        file.write_all(LINE).unwrap();
    }
}

fn rename(path: &Path) {
    let other = path.with_extension("other");
    for _ in 0..RENAMES {
        fs::rename(path, &other).unwrap();
        fs::rename(&other, path).unwrap();
    }
}

fn attributes(path: &Path, number: usize) {
    again(|| fs::hard_link(path, path.with_extension("link")));
    again(|| fs::set_permissions(path, Permissions::from_mode(0o700 + number as u32)));
    let value = [number as u8];
    let flags = rustix::fs::XattrFlags::empty();
    again(|| Ok(rustix::fs::setxattr(path, "user.x", &value, flags)?));
}

/// Asserts that a reader sees the original bytes or those of one writer.
fn read(path: &Path, number: usize) {
    let was = original(number);
    for _ in 0..6 {
        let now = again(|| fs::read(path));
        assert!(now.len() >= was.len(), "{}: {}", path.display(), now.len());
        let end = (1 + WRITERS * WRITES) * CELL;
        let wrong = (CELL..end).find(|at| {
            let writer = (at / CELL - 1) / WRITES;
            now[*at] != was[*at] && now[*at] != b'A' + writer as u8
        });
        assert_eq!(wrong, None, "{}: {:?}", path.display(), &now[..end]);
        assert!(now[end..was.len()] == was[end..], "{}", path.display());
    }
}

fn hold(path: &Path, number: usize) -> EarlierOpens {
    let read = File::open(path).unwrap();
    let map = SharedMapping::read_only(read.try_clone().unwrap(), CELL);
    map.load(0);
    let stores = number.is_multiple_of(2).then(|| {
        let file = OpenOptions::new().read(true).write(true).open(path);
        SharedMapping::new(file.unwrap(), CELL)
    });
    EarlierOpens { read, map, stores }
}

/// Returns the final content of the file.
fn expected(number: usize) -> Vec<u8> {
    let mut content = original(number);
    content[..8].copy_from_slice(&(number as u64).to_ne_bytes());
    for writer in 0..WRITERS {
        let at = (1 + writer * WRITES) * CELL;
        content[at..at + WRITES * CELL].fill(b'A' + writer as u8);
    }
    (0..2 * APPENDS).for_each(|_| content.extend_from_slice(LINE));
    content
}

fn all_at_once(rig: &Rig, number: usize) {
    let path = rig.path().join(name(number));
    let before = fs::metadata(&path).unwrap();
    let held = hold(&path, number);
    let turn = Barrier::new(WRITERS + 6);
    thread::scope(|scope| {
        let begin = |what: Box<dyn FnOnce() + Send>| {
            let turn = &turn;
            scope.spawn(move || {
                turn.wait();
                what();
            });
        };
        let path = || path.clone();
        let paths: Vec<PathBuf> = (0..WRITERS).map(|_| path()).collect();
        for (writer, path) in paths.into_iter().enumerate() {
            begin(Box::new(move || write_cells(&path, writer)));
        }
        for path in [path(), path()] {
            begin(Box::new(move || append(&path)));
        }
        let (renamed, changed, shown) = (path(), path(), path());
        begin(Box::new(move || rename(&renamed)));
        begin(Box::new(move || attributes(&changed, number)));
        begin(Box::new(move || read(&shown, number)));
        let path = path();
        turn.wait();
        match &held.stores {
            Some(map) => map.store(0, number as u64),
            None => again(|| OpenOptions::new().write(true).open(&path))
                .write_all_at(&(number as u64).to_ne_bytes(), 0)
                .unwrap(),
        }
    });
    let EarlierOpens { read, map, stores } = held;
    assert_eq!(map.load(0), number as u64, "file {number}, mapped before");
    drop(stores);
    let mut content = vec![0; expected(number).len() + 1];
    let length = read.read_at(&mut content, 0).unwrap();
    assert!(
        content[..length] == expected(number),
        "file {number}, opened before, {length} bytes"
    );
    assert_eq!(read.metadata().unwrap().ino(), before.ino(), "{number}");
    assert_eq!(
        read.metadata().unwrap().nlink(),
        before.nlink() + 1,
        "file {number}"
    );
}

/// Checks the content and the original inode number through each name.
fn all_are_there(rig: &Rig, numbers: &BTreeMap<usize, u64>, when: &str) {
    for (number, ino) in numbers {
        let path = rig.path().join(name(*number));
        let mut paths = vec![path.with_extension("link"), path];
        if number % 3 == 0 {
            paths.push(rig.path().join(format!("e/g{number}")));
        }
        for path in paths {
            let shown = fs::metadata(&path).unwrap();
            assert_eq!(shown.ino(), *ino, "{}, {when}", path.display());
            assert_eq!(shown.mode() & 0o7777, 0o700 + *number as u32, "{number}");
            assert!(
                fs::read(&path).unwrap() == expected(*number),
                "{}, {when}",
                path.display()
            );
        }
    }
}

fn everybody_changes_inherited_files(v: Variant) {
    let mut opts = MountOpts::new(v.io);
    opts.branch = true;
    let mut rig = v.start_with(opts, prepare);
    let inherited = tree(rig.path());
    let opts = TreeOpts::default();
    assert_tree_is(rig.mount.parent(), &inherited, &opts);
    let numbers = (0..FILES).map(|number| {
        let shown = fs::metadata(rig.path().join(name(number))).unwrap();
        (number, shown.ino())
    });
    let numbers = numbers.collect();
    let id = rig.mount.checkpoint();
    (0..FILES).for_each(|number| all_at_once(&rig, number));
    all_are_there(&rig, &numbers, "at the end");
    for round in 0..2 {
        assert_tree_is(rig.mount.parent(), &inherited, &opts);
        assert_tree_is(&rig.view(id), &inherited, &opts);
        if round == 0 {
            rig.mount.umount();
            rig.mount.remount();
            all_are_there(&rig, &numbers, "mounted again");
        }
    }
    rig.mount.restore(id);
    assert_tree_is(rig.path(), &inherited, &opts);
    assert_tree_is(rig.mount.parent(), &inherited, &opts);
}
