//! A process that waits for a slow disk does not block others.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::freeze::BystanderWorkload;
use crate::common::{Fs, Image, Io, Rig, Variant, for_each_variant, skip, timing_retries};

/// Throttle files of the block layer (cgroup version 1).
const LIMITS: &str = "/sys/fs/cgroup/blkio/blkio.throttle";
const BYTES_PER_S: u64 = 1 << 20;
/// Dirty bytes, which take two seconds to write.
const DIRTY_BYTES: usize = 2 << 20;

/// A device that is throttled until this is dropped.
struct ThrottledDevice {
    device: String,
}

impl ThrottledDevice {
    fn unavailable() -> Option<String> {
        let limit = format!("{LIMITS}.write_bps_device");
        (!Path::new(&limit).exists())
            .then(|| format!("{limit} (cgroup version 1) is not available to slow a disk down"))
    }

    fn new(point: &Path) -> ThrottledDevice {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
        let source = mounts
            .lines()
            .find(|line| line.split(' ').nth(4) == point.to_str())
            .and_then(|line| line.split(" - ").nth(1)?.split(' ').nth(1));
        let name = source
            .and_then(|source| source.strip_prefix("/dev/"))
            .expect("a loop device");
        let device = fs::read_to_string(format!("/sys/class/block/{name}/dev"))
            .expect("its number")
            .trim()
            .to_owned();
        let slow = ThrottledDevice { device };
        slow.limit(BYTES_PER_S);
        slow
    }

    fn limit(&self, bytes_per_s: u64) {
        for way in ["read", "write"] {
            fs::write(
                format!("{LIMITS}.{way}_bps_device"),
                format!("{} {bytes_per_s}", self.device),
            )
            .expect("a limit is set");
        }
    }
}

impl Drop for ThrottledDevice {
    fn drop(&mut self) {
        // Zero removes the limit.
        self.limit(0);
    }
}

fn make_dirty(path: &Path) -> File {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .expect("open");
    let noise: Vec<u8> = (0..DIRTY_BYTES as u64)
        .map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect();
    file.write_all_at(&noise, 0).expect("write");
    file
}

/// Asserts that `work` waits for the disk, and that no other process does.
fn nobody_waits_for(rig: &Rig, what: &str, work: impl FnOnce()) {
    let took = nobody_waits_beside(rig, what, work);
    assert!(
        took > Duration::from_secs(1),
        "{what} did not wait for the disk: {took:?}"
    );
}

/// Asserts that no other process waits for the disk while `work` runs. Returns the time that `work`
/// took.
fn nobody_waits_beside(rig: &Rig, what: &str, work: impl FnOnce()) -> Duration {
    let _ = fs::remove_dir_all(rig.path().join("others"));
    let other = BystanderWorkload::start(rig.path());
    let slow = ThrottledDevice::new(rig.image.path());
    let began = Instant::now();
    work();
    let took = began.elapsed();
    drop(slow);
    let waited = other.longest_wait();
    assert!(
        waited < (took / 4).max(Duration::from_millis(250)),
        "{what} took {took:?}, and another user waited {waited:?} for one call"
    );
    took
}

fn nobody_waits_for_a_slow_disk(v: Variant) {
    if let Some(reason) = ThrottledDevice::unavailable() {
        return skip(&reason);
    }
    timing_retries::retried(|| slow_disk(v));
}

fn slow_disk(v: Variant) {
    let rig = v.start();
    let file = rig.path().join("data");
    drop(make_dirty(&file));
    rig.mount.ok(&["checkpoint", "--sync"]);
    if v.io == Io::Passthrough {
        drop(make_dirty(&file));
        rig.mount.checkpoint();
        nobody_waits_for(&rig, "the open of a dirty file", || {
            drop(OpenOptions::new().write(true).open(&file).expect("open"))
        });
        drop(make_dirty(&file));
        rig.mount.checkpoint();
        nobody_waits_for(&rig, "truncation of a dirty file", || {
            drop(File::create(&file).expect("open"))
        });
        let open = make_dirty(&file);
        nobody_waits_for(&rig, "a checkpoint with a dirty file open", || {
            rig.mount.checkpoint();
        });
        drop(open);
    }
    drop(make_dirty(&file));
    rig.mount.checkpoint();
    nobody_waits_for(&rig, "the first write to a dirty file", || {
        drop(make_dirty(&file))
    });
    nobody_waits_for(&rig, "a checkpoint that is synced", || {
        drop(rig.mount.ok(&["checkpoint", "--sync"]))
    });
    drop(make_dirty(&file));
    nobody_waits_for(&rig, "fsync", || {
        make_dirty(&file).sync_all().expect("fsync")
    });
    // This is not the slow disk.
    let elsewhere = Image::new(Fs::Tmpfs, 64 << 20);
    nobody_waits_beside(&rig, "an export", || {
        drop(rig.mount.ok(&[
            "export",
            "1",
            elsewhere.path().join("e").to_str().expect("a path"),
        ]))
    });
    drop(make_dirty(&file));
    nobody_waits_beside(&rig, "a restore", || {
        rig.mount.ok(&["restore", "1", "data"]);
        File::open(&file).expect("open").sync_all().expect("fsync");
    });
    nobody_waits_beside(&rig, "gc and a deep verification", || {
        rig.mount.ok(&["gc", "--keep-last", "1"]);
        rig.mount.ok(&["verify", "--deep"]);
    });
}

for_each_variant! { xfs => nobody_waits_for_a_slow_disk }
