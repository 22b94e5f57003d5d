//! Memory of the daemon per inode cached by the kernel.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use crate::common::command::{succeeds, tool};
use crate::common::{Fs, Image, Io, Mount, MountOpts};
use crate::report::{Bound, Report};
use ckptfs_api::{Client, GetStats, Stats};

const DIRS: usize = 250;
const FILES_PER_DIR: usize = 1000;
/// An image large enough for the inodes.
const IMAGE_BYTES: u64 = 4 << 30;
/// The project's bound: bytes per inode, plus a fixed part.
const BYTES_PER_INODE: u64 = 200;
const FIXED_BYTES: u64 = 64 << 20;
/// Time limit for a walk through the mount.
const WALK_SECONDS: u64 = 600;
/// The daemon returns memory within a second; this adds a margin.
const SETTLED: Duration = Duration::from_secs(4);

/// Walks 250,000 files and adds the table.
pub fn measure(fs: Fs, report: &mut Report) {
    let image = Image::new(fs, IMAGE_BYTES);
    let project = image.dir("project");
    fill(&project);
    let opts = MountOpts {
        mountpoint: Some(image.dir("mounted")),
        ..MountOpts::new(Io::Passthrough)
    };
    let mut mount = Mount::start(&project, &opts);
    let stats = || -> Stats {
        let store = File::open(project.join(".ckptfs")).expect("the store exists");
        Client::connect(&store)
            .expect("the daemon listens")
            .ask(GetStats)
            .expect("stats")
    };
    let before = stats();
    succeeds(
        tool("find", &["-printf", "%s"]).current_dir(mount.path()),
        WALK_SECONDS,
    );
    let known = stats();
    assert!(
        known.inodes >= (DIRS * FILES_PER_DIR) as u64,
        "the kernel holds all inodes: {}",
        known.inodes
    );
    fs::write("/proc/sys/vm/drop_caches", "2").expect("root may drop caches");
    std::thread::sleep(SETTLED);
    let forgotten = stats();
    tell(fs, [&before, &known, &forgotten], report);
    let what = format!("memory with {} inodes known", known.inodes);
    let limit = (FIXED_BYTES + BYTES_PER_INODE * known.inodes) as f64 / f64::from(1 << 20);
    let measured = known.rss_bytes as f64 / f64::from(1 << 20);
    report.bound(
        fs.name(),
        &Bound {
            what,
            limit: limit.round(),
            measured,
            unit: "MiB",
        },
    );
    mount.umount();
}

/// Adds the rows: mounted, with all inodes cached, and after FORGET.
fn tell(fs: Fs, [before, known, forgotten]: [&Stats; 3], report: &mut Report) {
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let each = |stats: &Stats| {
        stats
            .rss_bytes
            .saturating_sub(before.rss_bytes)
            .checked_div(stats.inodes.saturating_sub(before.inodes))
    };
    for (when, stats) in [
        ("mounted", before),
        ("all looked up", known),
        ("forgotten", forgotten),
    ] {
        let each = each(stats)
            .filter(|_| when == "all looked up")
            .map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
        let row = vec![
            fs.name().to_owned(),
            when.to_owned(),
            stats.inodes.to_string(),
            mib(stats.rss_bytes),
            each,
        ];
        let head = [
            "filesystem",
            "when",
            "inodes known",
            "resident MiB",
            "bytes per inode",
        ];
        report.row(
            "memory",
            "Memory of the daemon with 250,000 files",
            &head,
            row,
        );
    }
}

fn fill(project: &Path) {
    for dir in 0..DIRS {
        let dir = project.join(format!("directory-{dir:03}"));
        fs::create_dir(&dir).expect("a directory");
        (0..FILES_PER_DIR).for_each(|file| {
            drop(File::create(dir.join(format!("file-{file:05}.txt"))).expect("a file"))
        });
    }
}
