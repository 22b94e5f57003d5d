//! Random histories: the copy of any checkpoint becomes the copy of any other.

use std::fs;
use std::path::Path;

use super::support::{assert_is, copies};
use crate::common::random::seed;
use crate::common::tree::{Tree, tree};
use crate::common::{Rig, Variant, for_each_variant};

/// A seeded random number generator (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn path(&mut self) -> String {
        let depth = 1 + self.below(3);
        (0..depth)
            .map(|_| ["a", "b", "c", "d"][self.below(4) as usize])
            .collect::<Vec<_>>()
            .join("/")
    }
}

/// Makes one random operation, which may fail.
fn operate(root: &Path, random: &mut Random, number: u64) {
    let (one, other) = (root.join(random.path()), root.join(random.path()));
    match random.below(9) {
        0 | 1 => drop(fs::write(&one, number.to_string())),
        2 => drop(fs::create_dir_all(&one)),
        3 => drop(fs::remove_file(&one)),
        4 => drop(fs::remove_dir_all(&one)),
        5 => drop(fs::rename(&one, &other)),
        6 => drop(fs::hard_link(&one, &other)),
        7 => drop(std::os::unix::fs::symlink(number.to_string(), &one)),
        _ => drop(
            fs::OpenOptions::new()
                .append(true)
                .open(&one)
                .and_then(|mut file| std::io::Write::write_all(&mut file, b"+")),
        ),
    }
}

fn checkpoints(rig: &Rig, random: &mut Random) -> Vec<(u64, Tree)> {
    let mut number = 0;
    let mut all = Vec::new();
    for _ in 0..8 {
        for _ in 0..25 {
            number += 1;
            operate(rig.path(), random, number);
        }
        all.push((rig.mount.checkpoint(), tree(rig.path())));
    }
    all
}

fn the_copy_of_any_checkpoint_becomes_that_of_any_other(v: Variant) {
    let rig = v.start();
    let seed = seed(&format!("random histories on {v:?}"), 0x2545_f491_4f6c_dd1d);
    let mut random = Random(seed);
    let all = checkpoints(&rig, &mut random);
    let dest = copies(&rig).join("c");
    for round in 0..16 {
        let (id, expected) = &all[random.below(all.len() as u64) as usize];
        let said = rig
            .mount
            .json(&["export", &id.to_string(), &dest.display().to_string()]);
        assert_eq!(
            (
                said["from"].is_null(),
                said["refused"].as_array().map(Vec::len)
            ),
            (round == 0, Some(0)),
            "{said}"
        );
        assert_is(&dest, expected);
    }
}

for_each_variant! { reflink => the_copy_of_any_checkpoint_becomes_that_of_any_other }
