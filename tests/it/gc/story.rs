//! A history in which it is hard to determine which checkpoint needs which version.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::space::noise;
use crate::common::tree::Tree;
use crate::common::{Mount, tree_of};

/// Runs one round of work with files of `unit` bytes: rewrites a file, overwrites part of one,
/// makes one, changes and removes files of earlier rounds, and renames a directory.
pub fn work(root: &Path, round: u64, unit: usize) {
    fs::write(root.join("whole"), noise(unit, round)).unwrap();
    let part = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(root.join("part"))
        .unwrap();
    if round == 0 {
        part.write_all_at(&noise(unit * 4, 100), 0).unwrap();
    } else {
        part.write_all_at(&noise(unit / 4, 200 + round), (round % 7) * unit as u64 / 2)
            .unwrap();
    }
    part.sync_all().unwrap();
    fs::write(
        root.join(format!("new{round}")),
        noise(unit / 2, 300 + round),
    )
    .unwrap();
    let earlier = |back: u64| {
        round
            .checked_sub(back)
            .map(|round| root.join(format!("new{round}")))
    };
    if let Some(changed) = earlier(2) {
        fs::write(changed, noise(unit / 2, 400 + round)).unwrap();
    }
    if let Some(removed) = earlier(4) {
        fs::remove_file(removed).unwrap();
    }
    fs::create_dir(root.join(format!("dir{round}"))).unwrap();
    fs::write(
        root.join(format!("dir{round}/small")),
        format!("small {round}\n"),
    )
    .unwrap();
    if round > 0 {
        fs::rename(
            root.join(format!("dir{}", round - 1)),
            root.join(format!("was{}", round - 1)),
        )
        .unwrap();
        fs::write(root.join(format!("was{}/small", round - 1)), "changed\n").unwrap();
    }
}

/// Runs `count` rounds, with a checkpoint after each.
pub fn rounds(mount: &Mount, count: u64, unit: usize) {
    for round in 0..count {
        work(mount.path(), round, unit);
        assert_eq!(mount.checkpoint(), round + 1);
    }
    work(mount.path(), count, unit);
}

/// Returns the trees of the kept checkpoints, by number.
pub fn views(mount: &Mount) -> BTreeMap<u64, Tree> {
    ids(mount)
        .into_iter()
        .map(|id| (id, tree_of(&mount.view(id))))
        .collect()
}

/// Returns the kept checkpoints, oldest first.
pub fn ids(mount: &Mount) -> Vec<u64> {
    mount
        .log_json()
        .as_array()
        .unwrap()
        .iter()
        .rev()
        .map(|one| one["id"].as_u64().unwrap())
        .collect()
}

/// Returns the objects in the store of `root`, mounted or not.
pub fn objects(root: &Path) -> Vec<String> {
    let found = crate::common::command::sh(
        root,
        "find .ckptfs/layers/ -mindepth 3 2>/dev/null | sort || true",
    );
    found.lines().map(str::to_owned).collect()
}
