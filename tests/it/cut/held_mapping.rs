//! A shared mapping that outlives its descriptor: no request precedes a store through it, and each
//! view shows exactly its content at the checkpoint.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::common::command::try_run_limited;
use crate::common::wait::{same, wait_until};
use crate::common::{Rig, Variant, for_each_variant, skip, tool};
use crate::cut::map::SharedMapping;

/// Bytes of the mapped file: large folios, and a partial last page.
const LEN: usize = 300 * 1024 - 1000;

fn open(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap()
}

/// The expected content of the file, now and at each checkpoint.
struct Expected {
    now: Vec<u8>,
    then: Vec<(u64, Vec<u8>)>,
}

impl Expected {
    fn new(path: &Path) -> Expected {
        let now: Vec<u8> = (0..LEN).map(|index| (index / 7) as u8).collect();
        fs::write(path, &now).unwrap();
        Expected {
            now,
            then: Vec::new(),
        }
    }

    fn stored(&mut self, offset: usize, value: u64) {
        self.now[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    }

    /// Makes a checkpoint, and checks all views.
    #[track_caller]
    fn checkpoint(&mut self, rig: &Rig) -> serde_json::Value {
        let info = rig.mount.checkpoint_json(&[]);
        assert_eq!(info["atomic"], true, "no process writes: {info}");
        self.then
            .push((info["id"].as_u64().expect("an id"), self.now.clone()));
        for (id, bytes) in &self.then {
            assert!(
                fs::read(rig.view(*id).join("f")).unwrap() == *bytes,
                "the view of checkpoint {id} has other content"
            );
        }
        assert!(
            fs::read(rig.path().join("f")).unwrap() == self.now,
            "the live file has other content"
        );
        info
    }
}

fn stores_between_checkpoints(v: Variant) {
    let rig = v.start();
    let path = rig.path().join("f");
    let mut expected = Expected::new(&path);
    let map = SharedMapping::new(open(&path), LEN);
    let store = |expected: &mut Expected, offset, value| {
        map.store(offset, value);
        expected.stored(offset, value);
    };
    for round in 1..=4_u64 {
        store(&mut expected, 8, round);
        store(&mut expected, 200 * 1024, round);
        expected.checkpoint(&rig);
        assert_eq!(
            rig.mount.dirty(),
            [] as [&str; 0],
            "nothing was stored since the checkpoint"
        );
        store(&mut expected, 16, round);
        assert_eq!(rig.mount.dirty(), ["f"]);
        store(&mut expected, (round as usize) * 40 * 1024, round);
        expected.checkpoint(&rig);
        // A store into a page that has been written back since.
        File::open(&path).unwrap().sync_all().unwrap();
        store(&mut expected, 16, round + 100);
        expected.checkpoint(&rig);
        // No store between two checkpoints.
        for _ in 0..2 {
            expected.checkpoint(&rig);
            assert_eq!(rig.mount.dirty(), [] as [&str; 0]);
        }
    }
    store(&mut expected, 24, 77);
    drop(map);
    assert_eq!(rig.mount.dirty(), ["f"]);
    expected.checkpoint(&rig);
    let info = expected.checkpoint(&rig);
    assert_eq!(info["open_files"], 0, "the mapping is gone: {info}");
    let (first, bytes) = expected.then[0].clone();
    rig.mount.restore(first);
    assert!(fs::read(&path).unwrap() == bytes);
}

/// A file that is mapped without a store is not dirty: neither before nor after a checkpoint, nor
/// after the unmap.
fn a_mapping_without_a_store_is_not_dirty(v: Variant) {
    let rig = v.start();
    let path = rig.path().join("f");
    let mut expected = Expected::new(&path);
    expected.checkpoint(&rig);
    let map = SharedMapping::new(open(&path), LEN);
    assert_eq!(
        map.load(LEN / 16 * 8),
        u64::from_le_bytes(expected.now[LEN / 16 * 8..][..8].try_into().unwrap())
    );
    assert_eq!(rig.mount.dirty(), [] as [&str; 0]);
    expected.checkpoint(&rig);
    assert_eq!(rig.mount.dirty(), [] as [&str; 0]);
    drop(map);
    assert_eq!(rig.mount.dirty(), [] as [&str; 0]);
    let info = expected.checkpoint(&rig);
    assert_eq!(
        (&info["open_files"], &info["dirty"]),
        (&0.into(), &0.into()),
        "{info}"
    );
}

/// The file is renamed and then unlinked while mapped.
fn a_mapped_file_moves_and_goes(v: Variant) {
    let rig = v.start();
    let (path, moved) = (rig.path().join("f"), rig.path().join("g"));
    let mut expected = Expected::new(&path);
    let map = SharedMapping::new(open(&path), LEN);
    expected.checkpoint(&rig);
    map.store(8, 1);
    fs::rename(&path, &moved).unwrap();
    map.store(16, 2);
    let renamed = rig.mount.checkpoint();
    map.store(16, 3);
    fs::remove_file(&moved).unwrap();
    map.store(8, 4);
    let removed = rig.mount.checkpoint();
    map.store(8, 5);
    rig.mount.checkpoint();
    let (first, bytes) = expected.then[0].clone();
    assert!(fs::read(rig.view(first).join("f")).unwrap() == bytes);
    expected.stored(8, 1);
    expected.stored(16, 2);
    assert!(fs::read(rig.view(renamed).join("g")).unwrap() == expected.now);
    assert!(!rig.view(renamed).join("f").exists() && !rig.view(removed).join("g").exists());
    assert_eq!((map.load(8), map.load(16)), (5, 3));
}

/// Stores its input in a separate process without an open descriptor.
const HOLDER: &str = r#"
import mmap, struct, sys
with open(sys.argv[1], "r+b") as f:
    m = mmap.mmap(f.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
for fd in range(3, 64):
    try: __import__("os").close(fd)
    except OSError: pass
print("mapped", flush=True)
for line in sys.stdin:
    offset, value = map(int, line.split())
    struct.pack_into("<Q", m, offset, value)
    print("stored", flush=True)
"#;

struct MappingProcess {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl MappingProcess {
    fn start(path: &Path) -> MappingProcess {
        let mut child = Command::new("python3")
            .args(["-c", HOLDER])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (
            child.stdin.take(),
            BufReader::new(child.stdout.take().unwrap()),
        );
        let mut holder = MappingProcess {
            child,
            input,
            output,
        };
        holder.says("mapped");
        holder
    }

    fn says(&mut self, word: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), word);
    }

    fn store(&mut self, offset: usize, value: u64) {
        writeln!(self.input.as_mut().unwrap(), "{offset} {value}").unwrap();
        self.says("stored");
    }
}

impl Drop for MappingProcess {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn held_by_another_process(v: Variant) {
    if try_run_limited(&mut tool("python3", &["--version"]), 60).is_err() {
        return skip("python3 is not installed");
    }
    let rig = v.start();
    let path = rig.path().join("f");
    let mut expected = Expected::new(&path);
    let mut holder = MappingProcess::start(&path);
    for round in 1..=3 {
        holder.store(8, round);
        expected.stored(8, round);
        expected.checkpoint(&rig);
        holder.store(100 * 1024, round);
        expected.stored(100 * 1024, round);
        assert_eq!(rig.mount.dirty(), ["f"]);
        expected.checkpoint(&rig);
        expected.checkpoint(&rig);
        assert_eq!(rig.mount.dirty(), [] as [&str; 0]);
    }
    drop(holder);
    // The process may not be fully released until after it is reaped.
    wait_until("the mapping is gone", || {
        same(expected.checkpoint(&rig)["open_files"].clone(), 0)
    });
    assert_eq!(rig.mount.dirty(), [] as [&str; 0]);
}

for_each_variant! { reflink => a_mapping_without_a_store_is_not_dirty, a_mapped_file_moves_and_goes, held_by_another_process }
for_each_variant! { reflink => stores_between_checkpoints }
