//! Other users than the owner of the tree: the daemon does their I/O even where the kernel does the
//! owner's. Thus none of their processes can hold the lock of a backing file in the kernel. Their
//! reads and writes are coherent with the owner's.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::freeze::{BystanderWorkload, LockHolder, checkpoint, theirs};
use super::stuck::UnresponsiveFs;
use super::support::{Mapping, get, put};
use crate::common::wait::seen;
use crate::common::{CallerCreds, Io, MountOpts, Rig, Variant, caller, for_each_variant};

for_each_variant! { reflink => what_one_writes_the_other_reads, what_is_sent_is_never_stale }
for_each_variant! { xfs => nobody_keeps_a_lock }

const STRANGER: CallerCreds = caller("a stranger", 4_001, 4_001, &[], false);
const OWNER: CallerCreds = caller("the owner", 4_002, 4_002, &[], false);

/// As with `--io=auto`, but passthrough is required.
fn start(v: Variant) -> Rig {
    let opts = MountOpts::new(v.io);
    let opts = if v.io == Io::Passthrough {
        opts.arg("--others-io=daemon")
    } else {
        opts
    };
    v.start_with(opts, |dir| {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("chmod");
        chown(dir, Some(OWNER.uid), Some(OWNER.gid)).expect("chown");
    })
}

/// Returns the number of requests of this kind.
fn requests(rig: &Rig, kind: &str) -> u64 {
    rig.mount.stats()["requests"][kind].as_u64().unwrap_or(0)
}

fn opened(path: &Path, write: bool) -> File {
    OpenOptions::new()
        .read(true)
        .write(write)
        .open(path)
        .expect("open")
}

/// Returns the bytes that sendfile(2) sends from a file.
fn sent(file: &File, length: usize) -> rustix::io::Result<Vec<u8>> {
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let (mut offset, mut got) = (0, vec![0; length]);
    rustix::fs::sendfile(&writer, file, Some(&mut offset), length)?;
    drop(writer);
    let count = reader.read(&mut got).expect("read");
    got.truncate(count);
    Ok(got)
}

/// sendfile(2) reads through the page cache of the mount, which is not invalidated by the kernel's
/// passthrough writes of other processes: a possibly stale read is rejected.
fn what_is_sent_is_never_stale(v: Variant) {
    let rig = start(v);
    let path = rig.path().join("F");
    put(&path, "0123");
    let mut reads = OWNER.does(|| opened(&path, false));
    let theirs = STRANGER.does(|| opened(&path, false));
    for content in ["abcd", "efgh", "ijkl+", "mnop++"] {
        let before = get(&path);
        assert_eq!(
            sent(&theirs, 100).expect("no program has it open for writing"),
            before.as_bytes()
        );
        assert_eq!(
            sent(&theirs, 100).expect("no program has it open for writing"),
            before.as_bytes()
        );
        let writes = opened(&path, true);
        for byte in [b'1', b'2'] {
            writes.write_all_at(&[byte], 0).expect("write");
            let now = [&[byte], &before.as_bytes()[1..]].concat();
            match sent(&theirs, 100) {
                Ok(got) => assert_eq!((got, v.io), (now, Io::Daemon)),
                Err(errno) => {
                    assert_eq!((errno, v.io), (rustix::io::Errno::INVAL, Io::Passthrough))
                }
            }
        }
        writes.write_all_at(content.as_bytes(), 0).expect("write");
        drop(writes);
        // RELEASE is asynchronous to close(2).
        crate::common::wait_until("the writer is gone", || sent(&theirs, 100).is_ok());
        assert_eq!(
            sent(&theirs, 100).expect("no program has it open for writing"),
            content.as_bytes()
        );
        let mut all = String::new();
        reads.read_to_string(&mut all).expect("read");
    }
}

/// The owner's I/O is done by the kernel, and another user's by the daemon, on the same file at the
/// same time.
fn what_one_writes_the_other_reads(v: Variant) {
    let rig = start(v);
    let path = rig.path().join("F");
    put(&path, "0000");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("chmod");
    let first = rig.mount.checkpoint();
    let mine = OWNER.does(|| opened(&path, true));
    let theirs = STRANGER.does(|| opened(&path, true));
    let appends = STRANGER.does(|| OpenOptions::new().append(true).open(&path).expect("open"));
    let mapping = Mapping::readable(&theirs, 4096);
    let (reads, writes) = (requests(&rig, "read"), requests(&rig, "write"));
    let mut expected = b"0000".to_vec();
    for round in 0..50_u8 {
        let byte = b'a' + round % 26;
        mine.write_all_at(&[byte], 0).expect("write");
        expected[0] = byte;
        let mut got = vec![0; expected.len()];
        theirs.read_exact_at(&mut got, 0).expect("read");
        assert_eq!(got, expected, "read, round {round}");
        assert_eq!(
            mapping.read(0, 4),
            &expected[..4],
            "a mapping, round {round}"
        );
        theirs
            .write_all_at(&[byte.to_ascii_uppercase()], 1)
            .expect("write");
        expected[1] = byte.to_ascii_uppercase();
        (&appends).write_all(b"+").expect("append");
        mine.write_all_at(b"-", expected.len() as u64 + 1)
            .expect("write");
        expected.extend(b"+-");
        mine.read_exact_at(&mut got, 0).expect("read");
        assert_eq!(
            got,
            &expected[..got.len()],
            "the owner's read, round {round}"
        );
    }
    assert_eq!(
        requests(&rig, "write") - writes,
        100 + if v.io == Io::Daemon { 100 } else { 0 },
        "the writes of the other user go through the daemon"
    );
    if v.io == Io::Passthrough {
        assert!(requests(&rig, "read") - reads >= 50, "and so do its reads");
    }
    let second = rig.mount.checkpoint();
    theirs.write_all_at(b"!!", 0).expect("write");
    assert_eq!(get(&path).as_bytes()[..2], *b"!!");
    assert_eq!(get(rig.view(second).join("F")).as_bytes(), expected);
    assert_eq!(get(rig.view(first).join("F")), "0000");
    drop((mine, theirs, appends, mapping));
    the_owner_alone_has_the_kernel(v, &rig, &path);
    rig.mount.ok(&["verify", "--deep"]);
}

/// A file that is open nowhere is first opened by another user, whose I/O the daemon does. Then the
/// owner alone opens it, and has passthrough again.
fn the_owner_alone_has_the_kernel(v: Variant, rig: &Rig, path: &Path) {
    STRANGER
        .does(|| opened(path, true))
        .write_all_at(b"??", 0)
        .expect("write");
    let writes = requests(rig, "write");
    OWNER
        .does(|| {
            OpenOptions::new()
                .write(true)
                .custom_flags(0)
                .open(path)
                .expect("open")
        })
        .write_all_at(b"==", 0)
        .expect("write");
    let cost = requests(rig, "write") - writes;
    assert_eq!(cost, u64::from(v.io == Io::Daemon));
    assert_eq!(get(path).as_bytes()[..2], *b"==");
}

/// Queued readers, a writer, and an exchange of two files. Failed before: with passthrough each of
/// these blocked the mount until the reader's filesystem replied.
fn nobody_keeps_a_lock(v: Variant) {
    const ROUNDS: usize = 6;
    let rig = start(v);
    let names: Vec<_> = (0..ROUNDS)
        .map(|n| (format!("F{n}"), format!("G{n}")))
        .collect();
    let files: Vec<_> = names
        .iter()
        .map(|(f, g)| (theirs(rig.path(), f, b'1'), theirs(rig.path(), g, b'2')))
        .collect();
    // A change of a file's name waits in the kernel for a writer of the file, as natively: this one
    // is not changed.
    let written = theirs(rig.path(), "W", b'3');
    let id = rig.mount.checkpoint();
    let stuck = UnresponsiveFs::start();
    let other = BystanderWorkload::start(rig.path());
    // The owner has half of the files open, with passthrough.
    let held: Vec<File> = files
        .iter()
        .step_by(2)
        .flat_map(|(f, g)| [opened(f, false), opened(g, false)])
        .collect();
    let script = "m = mmap.mmap(os.open(a[1], os.O_RDONLY), 64 << 20, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)\n\
        k = iter(range(0, 64 << 20, 64 << 10)); part = lambda: memoryview(m)[(p := next(k)):p + 4096]\n\
        def reads(p):\n f = os.open(p, os.O_RDONLY)\n while True: os.preadv(f, [part()], 0)\n\
        def writes(p): os.pwritev(os.open(p, os.O_RDWR), [part()], 0)\n\
        t = [threading.Thread(target=reads, args=(p,), daemon=True) for p in a[3:] for _ in range(6)]\n\
        t += [threading.Thread(target=writes, args=(a[2],), daemon=True)]\n\
        [x.start() for x in t]; say('ready'); sys.stdin.read(); os._exit(0)";
    let all: Vec<&Path> = files
        .iter()
        .flat_map(|(f, g)| [f.as_path(), g.as_path()])
        .collect();
    let mut attack = LockHolder::start(script, &[&[&*stuck.file(), &written], &all[..]].concat());
    attack.hear("ready");
    crate::common::wait_until("the readers wait", || {
        seen(stuck.waiting() > all.len(), stuck.waiting())
    });
    let longest = longest_change(&files);
    assert!(checkpoint(&rig, "theirs/"), "no process is in the way");
    let now = rig.mount.checkpoint();
    rig.mount.ok(&["restore", &id.to_string(), "theirs"]);
    assert_eq!(get(rig.view(id).join("theirs/F1")), "1".repeat(32 << 10));
    other.goes_on();
    stuck.release();
    drop(attack.child.stdin.take());
    attack.ends();
    drop(held);
    eprintln!("the owner waited at most {longest:?} for one change");
    other.went_on();
    assert!(now > id);
    rig.mount.ok(&["verify", "--deep"]);
}

/// Returns the longest time of one change to the files of these pairs, including their exchange.
fn longest_change(files: &[(PathBuf, PathBuf)]) -> Duration {
    let mut longest = Duration::ZERO;
    for (f, g) in files {
        let moved = f.with_extension("moved");
        let steps: [&dyn Fn() -> std::io::Result<()>; 4] = [
            &|| fs::set_permissions(f, fs::Permissions::from_mode(0o640)),
            &|| {
                Ok(rustix::fs::renameat_with(
                    rustix::fs::CWD,
                    f,
                    rustix::fs::CWD,
                    g,
                    rustix::fs::RenameFlags::EXCHANGE,
                )?)
            },
            &|| fs::rename(f, &moved),
            &|| fs::hard_link(g, g.with_extension("link")),
        ];
        for step in steps {
            let began = Instant::now();
            step().expect("it can be done");
            longest = longest.max(began.elapsed());
        }
    }
    longest
}
