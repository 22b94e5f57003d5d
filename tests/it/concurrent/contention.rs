//! A directory in which all workers use the same few names: its state is unpredictable, but every
//! error must be a valid one for the operation.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::concurrent::model::WorkerRng;

/// The directory.
pub const DIR: &str = "fight";
/// The numbers of file and directory names.
const FILES: usize = 6;
const DIRS: usize = 3;
/// Bytes of a file, all of them equal.
const LEN: usize = 3000;

fn check<T>(what: &str, path: &Path, result: io::Result<T>, allowed: &[Errno]) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            let errno = error.raw_os_error().map(Errno::from_raw_os_error);
            assert!(
                errno.is_some_and(|errno| allowed.contains(&errno)),
                "{what} {}: {error}",
                path.display()
            );
            None
        }
    }
}

fn name(rng: &mut WorkerRng, dir: &Path) -> PathBuf {
    let name = format!("n{}", rng.below(FILES));
    // Some names are in directories that are created and removed.
    if rng.below(4) == 0 {
        dir.join(format!("d{}", rng.below(DIRS))).join(name)
    } else {
        dir.join(name)
    }
}

/// Performs one random operation.
pub fn fight(rng: &mut WorkerRng, tree: &Path) {
    let dir = tree.join(DIR);
    let (one, two, sub) = (
        name(rng, &dir),
        name(rng, &dir),
        dir.join(format!("d{}", rng.below(DIRS))),
    );
    // The parent directory may be removed at any time.
    let gone = [Errno::NOENT];
    let taken = [Errno::NOENT, Errno::EXIST];
    match rng.below(12) {
        0 | 1 => {
            if let Some(mut file) = check(
                "create",
                &one,
                OpenOptions::new().write(true).create_new(true).open(&one),
                &taken,
            ) {
                check(
                    "write",
                    &one,
                    file.write_all(&[rng.below(256) as u8; LEN]),
                    &[],
                );
            }
        }
        2 => {
            check("unlink", &one, fs::remove_file(&one), &gone);
        }
        3 | 4 => {
            check("link", &one, fs::hard_link(&one, &two), &taken);
        }
        5 | 6 => {
            check("rename", &one, fs::rename(&one, &two), &gone);
        }
        7 => {
            check(
                "rename, not over",
                &one,
                renameat_with(CWD, &one, CWD, &two, RenameFlags::NOREPLACE).map_err(Into::into),
                &taken,
            );
        }
        8 => {
            check(
                "exchange",
                &one,
                renameat_with(CWD, &one, CWD, &two, RenameFlags::EXCHANGE).map_err(Into::into),
                &gone,
            );
        }
        9 => {
            check("mkdir", &sub, fs::create_dir(&sub), &[Errno::EXIST]);
        }
        10 => {
            check(
                "rmdir",
                &sub,
                fs::remove_dir(&sub),
                &[Errno::NOENT, Errno::NOTEMPTY],
            );
        }
        _ => look(rng, &one, &dir),
    }
}

fn look(rng: &mut WorkerRng, path: &Path, dir: &Path) {
    let gone = [Errno::NOENT];
    if rng.below(2) == 0 {
        let names = check(
            "list",
            dir,
            fs::read_dir(dir).and_then(|entries| entries.collect::<io::Result<Vec<_>>>()),
            &[],
        );
        assert!(
            names.is_some_and(|names| names.len() <= FILES + DIRS),
            "more names than exist in {}",
            dir.display()
        );
        return;
    }
    if let Some(mut file) = check("open", path, File::open(path), &gone) {
        let mut data = Vec::new();
        check("read", path, file.read_to_end(&mut data), &[]);
        let whole =
            data.is_empty() || data.len() == LEN && data.iter().all(|byte| *byte == data[0]);
        assert!(
            whole,
            "{}: only a part of a single write is visible",
            path.display()
        );
    }
}
