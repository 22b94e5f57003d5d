//! Power cuts, recipe A: the disk image is copied at one instant while everybody works, and what is
//! in the copy is mounted.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::after::{self, Found};
use super::disk::{Disk, Host};
use super::load::{Load, Promised, WORKERS};
use super::usual_seed;
use crate::common::command::TOOL_SECONDS;
use crate::common::mount::wait_until;
use crate::common::random::{Random, count, seed};
use crate::common::{Mount, MountOpts, Variant, for_each_variant, succeeds, tool};

/// Cuts of one variant.
const CUTS: u64 = 2;
const CUTS_LONG: u64 = 25;
/// Between two cuts, on average.
const APART: Duration = Duration::from_millis(400);

struct Cut {
    image: PathBuf,
    promised: Promised,
}

/// Where images whose recovery went wrong are kept as they were before it: `CKPTFS_KEEP=DIR`.
struct Keep(PathBuf);

impl Keep {
    fn from_environment() -> Option<Keep> {
        std::env::var_os("CKPTFS_KEEP").map(|dir| Keep(dir.into()))
    }

    fn copy(from: &Path, to: &Path) {
        succeeds(
            tool("cp", &["--reflink=auto", "--sparse=always"])
                .arg(from)
                .arg(to),
            TOOL_SECONDS,
        );
    }

    fn before(&self, image: &Path) -> PathBuf {
        let kept = image.with_extension("kept");
        Keep::copy(image, &kept);
        kept
    }

    fn after(&self, kept: &Path, name: &str) -> PathBuf {
        let name: String = name
            .chars()
            .filter(|letter| letter.is_ascii_alphanumeric() || *letter == '-')
            .collect();
        let to = self.0.join(name).with_extension("img");
        Keep::copy(kept, &to);
        to
    }
}

fn power_cuts(v: Variant) {
    let seed = seed(&format!("power cuts on {v:?}"), usual_seed());
    let cuts = count("CKPTFS_CUTS", CUTS, CUTS_LONG);
    let host = Host::new();
    let image = host.format(v.fs, "disk.img");
    let disk = host.mount(v.fs, &image);
    let dir = disk.path().join("project");
    std::fs::create_dir(&dir).unwrap();
    Load::prepare(&dir, WORKERS);
    let mut opts = MountOpts::new(v.io).packing();
    opts.limit += APART * 4 * cuts as u32;
    let mount = Mount::start(&dir, &opts);
    let load = Load::default();
    let frozen = frozen(&host, &disk, &mount, &load, seed, cuts);
    let known = load.known();
    drop(mount);
    drop(disk);
    let mut found = Found::default();
    let mut wrong = Vec::new();
    let keep = Keep::from_environment();
    for cut in &frozen {
        let kept = keep.as_ref().map(|keep| keep.before(&cut.image));
        match after::look(&host, v.fs, &cut.image, &opts, &cut.promised, &known) {
            Ok(more) => found += more,
            Err(problem) => {
                let kept = kept
                    .zip(keep.as_ref())
                    .map(|(image, keep)| keep.after(&image, &format!("{v:?}-{seed}")));
                wrong.push(format!(
                    "{} (kept: {kept:?}): {problem}",
                    cut.image.display()
                ));
            }
        }
    }
    println!(
        "{v:?}: {} cuts, {} checkpoints; {found:?}",
        frozen.len(),
        known.len()
    );
    assert!(
        frozen.is_empty() || found.exact > 0 || !wrong.is_empty(),
        "{v:?}: nothing was compared: {found:?}"
    );
    assert!(
        wrong.is_empty(),
        "{} of {} cuts (CKPTFS_SEED={seed}):\n{}",
        wrong.len(),
        frozen.len(),
        wrong.join("\n")
    );
}

/// Freezes the disk so many times while somebody works on it.
fn frozen(host: &Host, disk: &Disk, mount: &Mount, load: &Load, seed: u64, cuts: u64) -> Vec<Cut> {
    let (mut frozen, mut random) = (Vec::new(), Random::new(seed));
    thread::scope(|scope| {
        let worker = scope.spawn(|| load.run(mount, seed, APART * cuts as u32 * 2));
        wait_until("a checkpoint is promised", 60, || {
            !load.promised().checkpoints.is_empty() || worker.is_finished()
        });
        for number in 0..cuts {
            thread::sleep(Duration::from_millis(
                random.below(2 * APART.as_millis() as u64),
            ));
            if worker.is_finished() {
                break;
            }
            let (mut promised, image) = (load.promised(), host.file(&format!("cut-{number}.img")));
            disk.freeze(&image);
            // What somebody began to delete meanwhile may be gone.
            let after = load.promised();
            promised
                .checkpoints
                .retain(|id| after.checkpoints.contains(id));
            frozen.push(Cut { image, promised });
        }
        load.stop();
        worker.join().expect("the load works");
    });
    frozen
}

for_each_variant! { two => power_cuts }
