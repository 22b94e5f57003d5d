//! Runs `ckptfs import` and compares its results.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

use crate::common::command::{run_limited, tool};
use crate::common::tree::{assert_same, tree};
use crate::common::{Image, Mount, MountOpts, Variant};

const CKPTFS: &str = env!("CARGO_BIN_EXE_ckptfs");
/// Time limit for an import on a slow machine.
pub const SECONDS: u64 = 120;

/// Longer than a tick of the clock for inode timestamps, at most 10 ms (CONFIG_HZ).
const TICK: std::time::Duration = std::time::Duration::from_millis(20);

/// A directory on an image of the variant, with `project` in it.
pub struct ImportRig {
    pub io: crate::common::Io,
    pub image: Image,
}

impl ImportRig {
    pub fn new(v: Variant) -> ImportRig {
        let place = ImportRig {
            io: v.io,
            image: Image::of(v.fs),
        };
        std::fs::create_dir(place.project()).expect("mkdir");
        place
    }

    /// The source.
    pub fn project(&self) -> PathBuf {
        self.image.path().join("project")
    }

    /// The destination.
    pub fn tree(&self) -> PathBuf {
        self.image.path().join("tree")
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = tool(CKPTFS, &["import", "--json"]);
        command.args(arguments).current_dir(self.image.path());
        command
    }

    /// Imports after a tick of the kernel's clock, because an import does not trust inodes changed
    /// within the tick in which it begins.
    pub fn run(&self, arguments: &[&str]) -> Output {
        std::thread::sleep(TICK);
        run_limited(&mut self.command(arguments), SECONDS)
    }

    /// Imports and returns the report.
    #[track_caller]
    pub fn import(&self, arguments: &[&str]) -> Value {
        let output = self.run(arguments);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        serde_json::from_slice(&output.stdout).expect("json")
    }

    /// Runs `import project --into tree`; returns the report of its only checkpoint.
    #[track_caller]
    pub fn bring(&self) -> Value {
        self.import(&["project", "--into", "tree"])["checkpoints"][0].clone()
    }

    pub fn mount(&self) -> Mount {
        Mount::start(&self.tree(), &MountOpts::new(self.io))
    }

    /// Like [`ImportRig::mount`], after a killed import that may have left the tree mounted.
    pub fn adopted(&self) -> Mount {
        // A daemon that a killed import was starting may still appear, or keep the store locked
        // until it exits.
        crate::common::wait_until("the store is free", || {
            let _ = run_limited(tool(CKPTFS, &["umount"]).arg(self.tree()), SECONDS);
            run_limited(tool(CKPTFS, &["mount"]).arg(self.tree()), SECONDS)
                .status
                .success()
        });
        crate::common::wait_until("the tree is unmounted", || {
            run_limited(tool(CKPTFS, &["umount"]).arg(self.tree()), SECONDS)
                .status
                .success()
        });
        self.mount()
    }

    /// Asserts that the tree equals the project.
    #[track_caller]
    pub fn assert_equal(&self) {
        assert_same(&tree(&self.tree()), &tree(&self.project()));
    }
}

/// A seeded random number generator (xorshift64).
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}
