//! Power cuts, method A: the disk image is copied at one instant during the workload of `story`,
//! and the copy is mounted.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use super::crash_workload::{self, CrashWorkload};
use super::disk::{ImageDisk, ImageHost};
use super::load::{CrashLoad, DurablePromises};
use super::recovery_checks::{self, RecoveryCounts};
use super::usual_seed;
use crate::common::command::TOOL_SECONDS;
use crate::common::random::{count, seed};
use crate::common::{Mount, MountOpts, Variant, for_each_variant, succeeds, tool};

/// Cuts per variant.
const CUTS: u64 = 2;
const CUTS_LONG: u64 = 100;
/// Cuts per workload.
const CUTS_ROUND: usize = 10;
/// Upper bound of the time between two cuts.
const APART: Duration = Duration::from_secs(60);
/// In every other workload tripwire marks are made all the time and freed by gc early, and short
/// segments are packed. Both may write data to disk whose loss the other workloads test.
const TRIPWIRES: [&str; 2] = ["2/100ms", "off"];
const MARKS_KEPT: &str = "1s";

struct CutImage {
    image: PathBuf,
    promised: DurablePromises,
    /// The last step before the cut.
    after: String,
}

/// Directory for unmodified copies of images whose recovery failed (`CKPTFS_KEEP=DIR`).
struct ImageArchive(PathBuf);

impl ImageArchive {
    fn from_environment() -> Option<ImageArchive> {
        std::env::var_os("CKPTFS_KEEP").map(|dir| ImageArchive(dir.into()))
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
        ImageArchive::copy(image, &kept);
        kept
    }

    fn after(&self, kept: &Path, name: &str) -> PathBuf {
        let name: String = name
            .chars()
            .filter(|letter| letter.is_ascii_alphanumeric() || *letter == '-')
            .collect();
        let to = self.0.join(name).with_extension("img");
        ImageArchive::copy(kept, &to);
        to
    }
}

/// Copies the disk on request, up to `cuts` times.
struct DiskCutter<'a> {
    host: &'a ImageHost,
    disk: &'a ImageDisk,
    load: &'a CrashLoad,
    cuts: usize,
    frozen: Mutex<Vec<CutImage>>,
}

impl DiskCutter<'_> {
    /// Returns `false` after the last cut.
    fn freeze(&self, after: &str) -> bool {
        let mut frozen = self.frozen.lock().unwrap();
        if frozen.len() >= self.cuts {
            return false;
        }
        let image = self.host.file(&format!("cut-{}.img", frozen.len()));
        let mut promised = self.load.promised();
        self.disk.freeze(&image);
        // A checkpoint whose deletion has begun since may be absent.
        let later = self.load.promised();
        promised
            .checkpoints
            .retain(|id| later.checkpoints.contains(id));
        frozen.push(CutImage {
            image,
            promised,
            after: after.to_owned(),
        });
        frozen.len() < self.cuts
    }
}

fn power_cuts(v: Variant) {
    let seed = seed(&format!("power cuts on {v:?}"), usual_seed());
    let cuts = count("CKPTFS_CUTS", CUTS, CUTS_LONG);
    let (mut found, mut wrong, mut made) = (RecoveryCounts::default(), Vec::new(), 0);
    for (round, done) in (0..cuts).step_by(CUTS_ROUND).enumerate() {
        let cuts = (cuts - done).min(CUTS_ROUND as u64) as usize;
        let seed = seed.wrapping_add(round as u64);
        let (more, problems, checkpoints) = round_of_cuts(v, seed, cuts);
        found += more;
        made += checkpoints;
        wrong.extend(
            problems
                .into_iter()
                .map(|problem| format!("CKPTFS_SEED={seed}: {problem}")),
        );
    }
    println!("{v:?}: {cuts} cuts, {made} checkpoints; {found:?}");
    assert!(
        found.exact > 0 || !wrong.is_empty(),
        "{v:?}: nothing was compared: {found:?}"
    );
    assert!(
        wrong.is_empty(),
        "{} findings in {cuts} cuts:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Performs the cuts of one workload. Returns the counts, the problems, and the number of
/// checkpoints made.
fn round_of_cuts(v: Variant, seed: u64, cuts: usize) -> (RecoveryCounts, Vec<String>, usize) {
    let host = ImageHost::new();
    let image = host.format(v.fs, "disk.img");
    let disk = host.mount(v.fs, &image);
    let dir = disk.path().join("project");
    std::fs::create_dir(&dir).unwrap();
    crash_workload::prepare(&dir);
    let (mut opts, is_busy) = (MountOpts::new(v.io), seed.is_multiple_of(2));
    if is_busy {
        opts = opts.packing();
    }
    let tripwire = TRIPWIRES[usize::from(!is_busy)];
    opts.env.push(("CKPTFS_TRIPWIRE".into(), tripwire.into()));
    opts.limit += APART * cuts as u32;
    let mut mount = Mount::start(&dir, &opts);
    mount.ok(&["config", "set", "tripwire.keep", MARKS_KEPT]);
    let load = CrashLoad::default();
    let freezer = DiskCutter {
        host: &host,
        disk: &disk,
        load: &load,
        cuts,
        frozen: Mutex::default(),
    };
    CrashWorkload::new(&load, &mount, &|after: &str| freezer.freeze(after), seed).run();
    let (frozen, known) = (freezer.frozen.into_inner().unwrap(), load.known());
    let mut wrong = load.wrong();
    mount.adopt();
    drop(mount);
    drop(disk);
    let (mut found, keep) = (RecoveryCounts::default(), ImageArchive::from_environment());
    for (number, cut) in frozen.iter().enumerate() {
        let kept = keep.as_ref().map(|keep| keep.before(&cut.image));
        match recovery_checks::look(&host, v.fs, &cut.image, &opts, &cut.promised, &known) {
            Ok(more) => found += more,
            Err(problem) => {
                let kept = kept
                    .zip(keep.as_ref())
                    .map(|(image, keep)| keep.after(&image, &format!("{v:?}-{seed}-{number}")));
                let after = &cut.after;
                let said = format!("cut {number}, {after} (kept: {kept:?}): {problem}");
                println!("{said}");
                wrong.push(said);
            }
        }
    }
    println!("{v:?}, CKPTFS_SEED={seed}: {cuts} cuts; {found:?}");
    (found, wrong, known.len())
}

for_each_variant! { reflink => power_cuts }
