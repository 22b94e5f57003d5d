//! A history with many duplicates, and its externally visible state.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::common::command::check;
use crate::common::space::{free, noise};
use crate::common::tree::Tree;
use crate::common::wait::{seen, wait_until};
use crate::common::{Mount, MountOpts, Rig, Variant, tree_of};
use ckptfs_sys::{self as sys, ExtentMap};

/// Size of the larger files, in bytes.
pub const LARGE: usize = 600_001;

/// Waits until about as many bytes are free as reported, and returns the exact number. It may be
/// larger, because a filesystem also frees other blocks of a removed file.
pub fn came_free(dir: &Path, before: u64, told: u64) -> u64 {
    let mut came = 0;
    wait_until(&format!("{told} bytes are freed"), || {
        came = free(dir).saturating_sub(before);
        seen(came >= told / 10 * 9, came)
    });
    came
}

/// Writes a file in place, so that its previous content is captured as a clone.
pub fn rewrite(path: &Path, bytes: &[u8]) {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
}

/// Mounts with the given sealer mode and makes three checkpoints. Each of three contents is in
/// several files and in several versions of them, some without a name. All files of the last state
/// differ.
pub fn tell(v: Variant, seal: &str) -> Rig {
    let rig = v.start_with(MountOpts::new(v.io).arg(&format!("--seal={seal}")), |_| {});
    let root = rig.path();
    fs::create_dir(root.join("d")).unwrap();
    let names: Vec<PathBuf> = (0..8)
        .map(|name| {
            root.join(if name % 2 == 0 {
                format!("f{name}")
            } else {
                format!("d/f{name}")
            })
        })
        .collect();
    for round in 0..3_u64 {
        for (name, path) in names.iter().enumerate() {
            // Equal in two rounds of three, and in every second file.
            let seed = name as u64 % 2 + 10 * (round / 2);
            let length = if name < 4 { LARGE } else { 7000 };
            rewrite(path, &noise(length, seed + 100 * u64::from(name < 4)));
        }
        rewrite(&root.join("own"), &noise(9000, 1000 + round));
        rewrite(&root.join("empty"), b"");
        rewrite(&root.join("tiny"), b"tiny");
        if round < 2 {
            rewrite(&root.join(format!("goes{round}")), &noise(LARGE, 100));
        }
        rig.mount.checkpoint();
        if round < 2 {
            fs::remove_file(root.join(format!("goes{round}"))).unwrap();
        }
    }
    for (name, path) in names.iter().enumerate() {
        rewrite(path, &noise(100, 2000 + name as u64));
    }
    rig
}

/// Returns the trees of the checkpoints by number, with the live tree as 0.
pub fn trees(mount: &Mount) -> BTreeMap<u64, Tree> {
    let ids = mount.log_json();
    let ids = ids
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["id"].as_u64().unwrap());
    let mut trees: BTreeMap<u64, Tree> = ids.map(|id| (id, tree_of(&mount.view(id)))).collect();
    trees.insert(0, tree_of(mount.path()));
    trees
}

/// Returns the extents and inode number of each object of a store.
pub fn places(root: &Path) -> BTreeMap<String, (Option<ExtentMap>, u64)> {
    let found = crate::common::command::sh(root, "find .ckptfs/layers/ -mindepth 3 -type f | sort");
    found
        .lines()
        .map(|name| (name.to_owned(), place(&root.join(name))))
        .collect()
}

pub fn place(path: &Path) -> (Option<ExtentMap>, u64) {
    let file = File::open(path).unwrap();
    let stat = file.metadata().unwrap();
    (
        sys::extent_map(&file, stat.len()).ok().flatten(),
        stat.ino(),
    )
}

/// The layer of the open epoch, whose captures can be voided, after [`tell`].
pub const OPEN: &str = ".ckptfs/layers/4/";

/// Returns the number of equal objects of closed epochs, after [`tell`], that neither share extents
/// nor are hard links.
pub fn apart(root: &Path) -> usize {
    let mut known: BTreeMap<Vec<u8>, (Option<ExtentMap>, u64)> = BTreeMap::new();
    let mut apart = 0;
    for (name, place) in places(root)
        .into_iter()
        .filter(|(name, _)| !name.starts_with(OPEN))
    {
        let bytes = fs::read(root.join(&name)).unwrap();
        let inline = place.0.as_ref().is_some_and(|map| map.pieces() == 0);
        match known.get(&bytes) {
            Some(one)
                if one.1 == place.1
                    || (place.0.is_some() && one.0 == place.0)
                    || inline
                    || bytes.is_empty() => {}
            Some(_) => apart += 1,
            None => drop(known.insert(bytes, place)),
        }
    }
    apart
}

/// Asserts that the history of a mount is undamaged.
pub fn assert_whole(mount: &Mount) {
    let (status, report) = check(mount.path(), &["verify", "--deep"]);
    assert_eq!(status, 0, "{report}");
}
