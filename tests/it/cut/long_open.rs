//! Descriptors opened long before a checkpoint, with writes long after it.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::wait::{same, wait_until};
use crate::common::{Rig, Variant, for_each_variant};

/// Contents by name.
type Files = BTreeMap<String, Vec<u8>>;

/// Returns the files of a directory with their contents.
fn files(dir: &Path) -> Files {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| {
            (
                entry.file_name().into_string().unwrap(),
                fs::read(entry.path()).unwrap(),
            )
        })
        .collect()
}

/// Checkpoints with their expected contents.
#[derive(Default)]
struct History(Vec<(u64, Files)>);

impl History {
    /// Makes a checkpoint of a tree with the expected content, and checks all views.
    #[track_caller]
    fn checkpoint(&mut self, rig: &Rig, expected: &Files) {
        assert_eq!(shown(&files(rig.path())), shown(expected), "the live tree");
        self.0.push((rig.mount.checkpoint(), expected.clone()));
        for (id, then) in &self.0 {
            assert_eq!(
                shown(&files(&rig.view(*id))),
                shown(then),
                "the view of checkpoint {id}"
            );
        }
        assert_eq!(rig.mount.dirty(), [] as [&str; 0]);
    }
}

/// Formats files for messages: names, lengths, hashes and last bytes.
fn shown(files: &Files) -> Vec<String> {
    files
        .iter()
        .map(|(name, bytes)| {
            format!(
                "{name} {} {} {}",
                bytes.len(),
                blake3::hash(bytes),
                bytes[bytes.len().saturating_sub(20)..].escape_ascii()
            )
        })
        .collect()
}

fn append(path: &Path) -> File {
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .unwrap()
}

fn read_write(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap()
}

fn logs(v: Variant) {
    let rig = v.start();
    let mut expected = Files::from([("old".into(), b"before the mount knew it\n".to_vec())]);
    fs::write(rig.path().join("old"), &expected["old"]).unwrap();
    let mut history = History::default();
    history.checkpoint(&rig, &expected);
    let mut logs: Vec<(String, File)> = ["old", "a", "b"]
        .map(|name| (name.to_owned(), append(&rig.path().join(name))))
        .into();
    // Two writers of one log.
    logs.push(("a".into(), append(&rig.path().join("a"))));
    for round in 0..6 {
        for (number, (name, log)) in logs.iter_mut().enumerate() {
            if (round + number) % 3 == 0 {
                continue;
            }
            let line = format!("round {round}, writer {number}\n").repeat(1 + 400 * (round % 2));
            log.write_all(line.as_bytes()).unwrap();
            expected
                .entry(name.clone())
                .or_default()
                .extend(line.as_bytes());
        }
        expected.entry("a".into()).or_default();
        expected.entry("b".into()).or_default();
        history.checkpoint(&rig, &expected);
    }
    // A log truncated while its writer has it open, as by logrotate.
    rustix::fs::ftruncate(&logs[1].1, 0).unwrap();
    logs[1].1.write_all(b"anew\n").unwrap();
    expected.insert("a".into(), b"anew\n".to_vec());
    history.checkpoint(&rig, &expected);
    drop(logs);
    history.checkpoint(&rig, &expected);
    let (first, then) = history.0[2].clone();
    rig.mount.restore(first);
    assert_eq!(shown(&files(rig.path())), shown(&then));
}

fn several_handles_and_names(v: Variant) {
    let rig = v.start();
    let path = |name: &str| rig.path().join(name);
    let mut content = vec![b'.'; 50_000];
    fs::write(path("f"), &content).unwrap();
    fs::hard_link(path("f"), path("other-name")).unwrap();
    let both = |content: &[u8]| {
        Files::from([
            ("f".to_owned(), content.to_vec()),
            ("other-name".to_owned(), content.to_vec()),
        ])
    };
    let mut history = History::default();
    let early = read_write(&path("f"));
    history.checkpoint(&rig, &both(&content));
    let by_link = OpenOptions::new()
        .write(true)
        .open(path("other-name"))
        .unwrap();
    let reader = File::open(path("f")).unwrap();
    for round in 0..4 {
        let handles = [&early, &by_link];
        for (number, handle) in handles.iter().enumerate() {
            let (at, text) = (
                round * 9000 + number * 3000,
                format!("round {round} by {number}"),
            );
            handle.write_all_at(text.as_bytes(), at as u64).unwrap();
            content[at..at + text.len()].copy_from_slice(text.as_bytes());
            history.checkpoint(&rig, &both(&content));
        }
    }
    drop(early);
    by_link.write_all_at(b"last", 49_990).unwrap();
    content[49_990..49_994].copy_from_slice(b"last");
    let mut read = vec![0; 50_000];
    reader.read_exact_at(&mut read, 0).unwrap();
    assert!(
        read == content,
        "a handle that stayed open reads the last write"
    );
    history.checkpoint(&rig, &both(&content));
    fs::remove_file(path("f")).unwrap();
    by_link.write_all_at(b"LAST", 0).unwrap();
    content[..4].copy_from_slice(b"LAST");
    history.checkpoint(
        &rig,
        &Files::from([("other-name".to_owned(), content.clone())]),
    );
}

/// Files are renamed, replaced and removed while open, across checkpoints.
fn names_that_go_while_the_file_is_open(v: Variant) {
    let rig = v.start();
    let path = |name: &str| rig.path().join(name);
    let files = |list: &[(&str, &str)]| -> Files {
        list.iter()
            .map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec()))
            .collect()
    };
    for (name, text) in [("f", "f1"), ("g", "g1"), ("h", "h1")] {
        fs::write(path(name), text).unwrap();
    }
    let mut history = History::default();
    history.checkpoint(&rig, &files(&[("f", "f1"), ("g", "g1"), ("h", "h1")]));
    let (f, g, mut h) = (
        read_write(&path("f")),
        read_write(&path("g")),
        append(&path("h")),
    );
    f.write_all_at(b"f2", 0).unwrap();
    fs::rename(path("f"), path("moved")).unwrap();
    history.checkpoint(&rig, &files(&[("moved", "f2"), ("g", "g1"), ("h", "h1")]));
    f.write_all_at(b"f3", 0).unwrap();
    // Replaced by a rename; the handle refers to the old file.
    fs::write(path("new"), "new").unwrap();
    fs::rename(path("new"), path("g")).unwrap();
    g.write_all_at(b"g2 nobody sees", 0).unwrap();
    history.checkpoint(&rig, &files(&[("moved", "f3"), ("g", "new"), ("h", "h1")]));
    g.write_all_at(b"g3 nobody sees", 0).unwrap();
    fs::remove_file(path("h")).unwrap();
    h.write_all(b"unseen").unwrap();
    history.checkpoint(&rig, &files(&[("moved", "f3"), ("g", "new")]));
    h.write_all(b"unseen").unwrap();
    f.write_all_at(b"f4", 0).unwrap();
    fs::write(path("h"), "another").unwrap();
    history.checkpoint(
        &rig,
        &files(&[("moved", "f4"), ("g", "new"), ("h", "another")]),
    );
    let mut kept = [0; 14];
    g.read_exact_at(&mut kept, 0).unwrap();
    assert_eq!(&kept, b"g3 nobody sees");
    drop((f, g, h));
    let (first, then) = history.0[0].clone();
    rig.mount.restore(first);
    assert_eq!(shown(&self::files(rig.path())), shown(&then));
}

/// A file opened for writing without a write is not dirty, even at a checkpoint.
fn an_open_that_writes_nothing(v: Variant) {
    let rig = v.start();
    fs::write(rig.path().join("f"), "unchanged").unwrap();
    let expected = Files::from([("f".to_owned(), b"unchanged".to_vec())]);
    let mut history = History::default();
    history.checkpoint(&rig, &expected);
    let handles = [
        append(&rig.path().join("f")),
        read_write(&rig.path().join("f")),
    ];
    assert_eq!(rig.mount.dirty(), [] as [&str; 0]);
    history.checkpoint(&rig, &expected);
    drop(handles);
    history.checkpoint(&rig, &expected);
    let info = rig.mount.checkpoint_json(&[]);
    assert_eq!(
        (&info["dirty"], &info["open_files"]),
        (&0.into(), &0.into()),
        "{info}"
    );
}

/// The capture of a file with a dirty end contains that end as a copy, which shares no extent with
/// the file; it compares equal nevertheless.
fn a_log_that_is_opened_and_left_alone(v: Variant) {
    let rig = v.start();
    let sizes = [60_000, 70_000, 500_000];
    let paths = sizes.map(|size| rig.path().join(format!("log{size}")));
    sizes
        .iter()
        .zip(&paths)
        .for_each(|(size, path)| fs::write(path, vec![b'x'; *size]).unwrap());
    for sync_after in [false, true] {
        rustix::fs::syncfs(File::open(rig.path()).unwrap()).unwrap();
        paths
            .iter()
            .for_each(|path| append(path).write_all(b"a line\n").unwrap());
        // A checkpoint writes back a file that is not closed yet.
        rig.mount.all_is_closed();
        rig.mount.checkpoint();
        let handles: Vec<File> = paths.iter().map(|path| read_write(path)).collect();
        if sync_after {
            handles.iter().for_each(|file| file.sync_all().unwrap());
        }
        drop(handles);
        rig.mount.all_is_closed();
        assert_eq!(rig.mount.dirty(), [] as [&str; 0], "synced: {sync_after}");
        let info = rig.mount.checkpoint_json(&[]);
        assert_eq!(
            (&info["dirty"], &info["open_files"]),
            (&0.into(), &0.into()),
            "synced: {sync_after}, {info}"
        );
    }
}

/// A remaining reader does not make a closed file count as open for writing.
fn a_reader_that_stays(v: Variant) {
    let rig = v.start();
    let mut expected = Files::from([("f".to_owned(), b"first".to_vec())]);
    fs::write(rig.path().join("f"), "first").unwrap();
    let mut history = History::default();
    history.checkpoint(&rig, &expected);
    let writer = read_write(&rig.path().join("f"));
    let reader = File::open(rig.path().join("f")).unwrap();
    writer.write_all_at(b"other", 0).unwrap();
    drop(writer);
    expected.insert("f".to_owned(), b"other".to_vec());
    history.checkpoint(&rig, &expected);
    wait_until("the writer is gone", || {
        same(rig.mount.checkpoint_json(&[])["open_files"].clone(), 0)
    });
    let mut read = [0; 5];
    reader.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"other");
    history.checkpoint(&rig, &expected);
}

/// Logs opened for each line, as with `echo >> log`: the capture copies the dirty end, and clones
/// the rest.
fn logs_that_are_opened_for_each_line(v: Variant) {
    let rig = v.start();
    let mut expected = Files::new();
    // Sizes around that of the copied end, and its blocks.
    for size in [
        0, 100, 4096, 16_383, 16_384, 16_385, 20_480, 20_481, 65_536, 300_001,
    ] {
        expected.insert(
            format!("log{size}"),
            (0..size).map(|at| (at * 7 % 251) as u8).collect(),
        );
    }
    expected
        .iter()
        .for_each(|(name, bytes)| fs::write(rig.path().join(name), bytes).unwrap());
    let mut history = History::default();
    for round in 0..6_usize {
        if round % 2 == 0 {
            rustix::fs::syncfs(File::open(rig.path()).unwrap()).unwrap();
        }
        history.checkpoint(&rig, &expected);
        for (name, bytes) in &mut expected {
            let line = format!("round {round} of {name}\n").repeat([1, 1, 300, 2000][round % 4]);
            append(&rig.path().join(name))
                .write_all(line.as_bytes())
                .unwrap();
            bytes.extend(line.as_bytes());
            // A write elsewhere than at the end.
            if round == 3 && bytes.len() > 20_000 {
                read_write(&rig.path().join(name))
                    .write_all_at(b"changed", 10)
                    .unwrap();
                bytes[10..17].copy_from_slice(b"changed");
            }
        }
    }
    history.checkpoint(&rig, &expected);
    let (first, then) = history.0[1].clone();
    rig.mount.restore(first);
    assert_eq!(shown(&files(rig.path())), shown(&then));
}

for_each_variant! { reflink =>
    a_log_that_is_opened_and_left_alone,
    logs_that_are_opened_for_each_line,
    a_reader_that_stays,
    several_handles_and_names,
    names_that_go_while_the_file_is_open,
    an_open_that_writes_nothing,
}
for_each_variant! { reflink => logs }
