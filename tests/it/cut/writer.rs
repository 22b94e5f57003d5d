//! Writers that store i into file A, then into file B, in a loop, in every way available to a
//! program.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::cut::map::SharedMapping;

/// Bytes of a file that is written in place.
const FILE_LEN: usize = 16 * 1024;
/// Bytes of one write: more than a page, so that a torn write is visible.
const BLOCK_LEN: usize = 8 * 1024;
/// The offset of the write, in bytes.
const BLOCK_START: usize = 1024;
/// The offsets of stores into a mapped file, in bytes: two pages.
const CELLS: [usize; 2] = [8, 8 * 1024];

/// Bytes checked at the end of a log.
const LOG_END: u64 = 64 * 1024;

/// How one file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMethod {
    /// pwrite(2) of a block with i everywhere.
    Pwrite,
    /// Stores into two pages of a shared mapping, one before and one after those of the other file.
    Mmap,
    /// A record with i, appended (`O_APPEND`).
    Append,
}

enum Target {
    Pwrite(File),
    Mmap(SharedMapping),
    Append(File),
}

impl Target {
    fn open(path: &Path, way: WriteMethod) -> Target {
        if way != WriteMethod::Append {
            fs::write(path, vec![0; FILE_LEN]).unwrap();
        }
        let mut options = OpenOptions::new();
        match way {
            WriteMethod::Pwrite => Target::Pwrite(options.write(true).open(path).unwrap()),
            WriteMethod::Mmap => Target::Mmap(SharedMapping::new(
                options.read(true).write(true).open(path).unwrap(),
                FILE_LEN,
            )),
            WriteMethod::Append => {
                Target::Append(options.append(true).create(true).open(path).unwrap())
            }
        }
    }

    /// `step` 0 is the first half of a round for this file, 1 the second.
    fn put(&mut self, step: usize, value: u64) {
        match self {
            Target::Mmap(map) => map.store(CELLS[step], value),
            Target::Pwrite(file) if step == 0 => {
                let block = value.to_le_bytes().repeat(BLOCK_LEN / 8);
                file.write_all_at(&block, BLOCK_START as u64).unwrap();
            }
            Target::Append(file) if step == 0 => file.write_all(&value.to_le_bytes()).unwrap(),
            Target::Pwrite(_) | Target::Append(_) => {}
        }
    }
}

/// State shared between the writer's thread and the test.
#[derive(Default)]
struct Progress {
    /// The round that has begun.
    begun: AtomicU64,
    /// The round that is complete.
    done: AtomicU64,
    stop: AtomicBool,
}

/// A running writer.
pub struct Writer {
    ways: [WriteMethod; 2],
    progress: Arc<Progress>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Creates the files `a` and `b` in `dir` and starts writing, with `pause` after each round.
    pub fn start(dir: &Path, ways: [WriteMethod; 2], pause: Duration) -> Writer {
        let mut targets = [
            Target::open(&path(dir, 0), ways[0]),
            Target::open(&path(dir, 1), ways[1]),
        ];
        let progress = Arc::new(Progress::default());
        let mine = Arc::clone(&progress);
        let work = move || {
            let mut round = 0;
            while !mine.stop.load(Ordering::SeqCst) {
                round += 1;
                mine.begun.store(round, Ordering::SeqCst);
                for step in 0..CELLS.len() {
                    targets
                        .iter_mut()
                        .for_each(|target| target.put(step, round));
                }
                mine.done.store(round, Ordering::SeqCst);
                if !pause.is_zero() {
                    thread::sleep(pause);
                }
            }
        };
        Writer {
            ways,
            progress,
            thread: Some(thread::spawn(work)),
        }
    }

    /// Returns the last complete round.
    pub fn done(&self) -> u64 {
        self.progress.done.load(Ordering::SeqCst)
    }

    /// Returns the last round that has begun.
    pub fn begun(&self) -> u64 {
        self.progress.begun.load(Ordering::SeqCst)
    }

    /// Ends the writer; panics if it failed.
    pub fn stop(mut self) {
        self.progress.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the writer wrote");
        }
    }

    pub fn ways(&self) -> [WriteMethod; 2] {
        self.ways
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.progress.stop.store(true, Ordering::SeqCst);
    }
}

fn path(dir: &Path, index: usize) -> PathBuf {
    dir.join(["a", "b"][index])
}

/// Returns the values of the two files in a tree, in the order in which a round stores them.
pub fn shown(dir: &Path, ways: [WriteMethod; 2]) -> Vec<u64> {
    let files = [0, 1].map(|index| shown_of(&path(dir, index), ways[index]));
    (0..CELLS.len())
        .flat_map(|step| files.iter().filter_map(move |file| file.get(step).copied()))
        .collect()
}

/// Reads a file, checks its own consistency, and returns the value of each step.
fn shown_of(path: &Path, way: WriteMethod) -> Vec<u64> {
    let name = path.display();
    let (bytes, skipped) = read_end(
        path,
        if way == WriteMethod::Append {
            LOG_END
        } else {
            FILE_LEN as u64
        },
    );
    let words: Vec<u64> = bytes
        .chunks(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("whole words")))
        .collect();
    match way {
        WriteMethod::Append => {
            let wrong = words
                .iter()
                .enumerate()
                .find(|(index, word)| **word != skipped / 8 + *index as u64 + 1);
            assert_eq!(
                wrong, None,
                "{name} contains the records 1, 2, 3 ... and nothing else"
            );
            vec![skipped / 8 + words.len() as u64]
        }
        WriteMethod::Mmap => CELLS.iter().map(|cell| words[cell / 8]).collect(),
        WriteMethod::Pwrite => {
            assert_eq!(bytes.len(), FILE_LEN, "{name}");
            let block = &words[BLOCK_START / 8..(BLOCK_START + BLOCK_LEN) / 8];
            assert!(
                block.iter().all(|word| *word == block[0]),
                "{name} contains a partial write"
            );
            vec![block[0]]
        }
    }
}

/// Returns up to `most` bytes at the end of a file, and the number of bytes before them.
fn read_end(path: &Path, most: u64) -> (Vec<u8>, u64) {
    let read = || -> io::Result<(Vec<u8>, u64)> {
        let mut file = File::open(path)?;
        let skipped = file
            .metadata()?
            .len()
            .saturating_sub(most)
            .next_multiple_of(8);
        file.seek(SeekFrom::Start(skipped))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok((bytes, skipped))
    };
    read().unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
