//! Files that a process can write to past the mount, through a mapping or descriptor that outlived
//! a daemon and its holder, or that predates the mount. No request precedes such a write, and with
//! a dirty page no time changes. Each view still shows the content at its checkpoint.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::{Rig, Variant, for_each_variant, stdout_of, succeeds, tool};
use crate::cut::map::SharedMapping;

/// Bytes of each file.
const LEN: usize = 8192;

/// A mapping through the mount maps the backing file only in a passthrough mount.
mod a_mapping_outlives_daemon_and_holder {
    crate::common::for_each_variant! { @test a_mapping_outlives_daemon_and_holder xfs_passthrough Xfs Passthrough }
    crate::common::for_each_variant! { @test a_mapping_outlives_daemon_and_holder btrfs_passthrough Btrfs Passthrough }
}

fn open(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap()
}

fn map(path: &Path) -> SharedMapping {
    SharedMapping::new(open(path), LEN)
}

fn first_word(path: &Path) -> u64 {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

/// Makes a checkpoint between two stores into dirty pages: its view shows the first, permanently.
fn a_view_keeps_what_was_there(rig: &Rig, mapped: &[(&str, &SharedMapping)], value: u64) {
    mapped.iter().for_each(|(_, map)| map.store(0, value));
    let info = rig.mount.checkpoint_json(&[]);
    assert_eq!(info["atomic"], true, "{info}");
    mapped.iter().for_each(|(_, map)| map.store(0, value + 1));
    for (name, _) in mapped {
        let view = rig.view(info["id"].as_u64().unwrap()).join(name);
        assert_eq!(
            first_word(&view),
            value,
            "{name}: the view shows a later store"
        );
        assert_eq!(first_word(&rig.path().join(name)), value + 1, "{name}");
    }
}

/// Failed before: recovery watched only files with a `Data` record. Files made since the last
/// checkpoint have none, and before the first checkpoint no file has one. A view showed stores
/// after its checkpoint, and `verify` found no damage.
fn a_mapping_outlives_daemon_and_holder(v: Variant) {
    let mut rig = v.start_with(crate::common::MountOpts::new(v.io), |dir| {
        fs::create_dir_all(dir.join("a/b")).unwrap();
        fs::write(dir.join("a/b/before"), vec![1; LEN]).unwrap();
    });
    // No checkpoint yet.
    let before = map(&rig.path().join("a/b/before"));
    before.store(0, 10);
    rig.mount.kill();
    rig.mount.remount();
    a_view_keeps_what_was_there(&rig, &[("a/b/before", &before)], 20);
    // Files made since, in an old directory and in a new one.
    fs::create_dir_all(rig.path().join("a/new/er")).unwrap();
    let names = ["born", "a/new/er/born"];
    names
        .iter()
        .for_each(|name| fs::write(rig.path().join(name), vec![2; LEN]).unwrap());
    let [one, other] = names.map(|name| map(&rig.path().join(name)));
    [&one, &other].iter().for_each(|map| map.store(0, 30));
    rig.mount.kill();
    rig.mount.remount();
    let mapped = [
        ("a/b/before", &before),
        ("born", &one),
        ("a/new/er/born", &other),
    ];
    a_view_keeps_what_was_there(&rig, &mapped, 40);
    // Clean pages: the next store changes a time, and views returned EIO.
    rustix::fs::sync();
    a_view_keeps_what_was_there(&rig, &mapped, 50);
    // After the death of a third daemon, with records of all of them.
    rig.mount.kill();
    rig.mount.remount();
    a_view_keeps_what_was_there(&rig, &mapped, 60);
    drop((before, one, other));
    assert_eq!(
        rig.mount.checkpoint_json(&[])["open_files"],
        0,
        "no process maps any of them"
    );
}

for_each_variant! { reflink => a_mapping_was_there_before_the_mount }

/// Failed before: a file mapped before `ckptfs mount` was not hot, so the view followed stores
/// after its checkpoint. The same for a descriptor, for a loop device, which no process has open,
/// and at a mount with existing checkpoints.
fn a_mapping_was_there_before_the_mount(v: Variant) {
    let mut before = Vec::new();
    let mut rig = v.start_with(crate::common::MountOpts::new(v.io), |dir| {
        fs::create_dir_all(dir.join("a/b")).unwrap();
        for name in ["mapped", "a/b/open"] {
            fs::write(dir.join(name), vec![1; LEN]).unwrap();
            before.push(open(&dir.join(name)));
        }
    });
    let held = before.pop().unwrap();
    let mapped = SharedMapping::new(before.pop().unwrap(), LEN);
    // The pages are dirty from here on.
    mapped.store(0, 10);
    held.write_all_at(&10_u64.to_le_bytes(), 0).unwrap();
    let round = |rig: &Rig, value: u64| {
        held.write_all_at(&value.to_le_bytes(), 0).unwrap();
        mapped.store(0, value);
        let info = rig.mount.checkpoint_json(&[]);
        assert_eq!(
            (&info["atomic"], &info["open_files"]),
            (&true.into(), &2.into()),
            "{info}"
        );
        held.write_all_at(&(value + 1).to_le_bytes(), 0).unwrap();
        mapped.store(0, value + 1);
        let id = info["id"].as_u64().unwrap();
        for name in ["mapped", "a/b/open"] {
            assert_eq!(
                first_word(&rig.view(id).join(name)),
                value,
                "{name}: the view shows a later write"
            );
        }
        id
    };
    let first = round(&rig, 20);
    round(&rig, 30);
    // The same with existing checkpoints.
    rig.mount.umount();
    rig.mount.remount();
    round(&rig, 40);
    assert_eq!(first_word(&rig.view(first).join("mapped")), 20);
    drop((mapped, held));
    assert_eq!(rig.mount.checkpoint_json(&[])["open_files"], 0);
}

/// The kernel writes to the file of a loop device; no process has it open.
mod a_loop_device_of_a_file {
    crate::common::for_each_variant! { @test a_loop_device_of_a_file xfs_passthrough Xfs Passthrough }
}

fn a_loop_device_of_a_file(v: Variant) {
    let mut device = None;
    let rig = v.start_with(crate::common::MountOpts::new(v.io), |dir| {
        fs::write(dir.join("disk"), vec![1; 1 << 20]).unwrap();
        device = Some(LoopDevice::of(&dir.join("disk")));
    });
    let device = device.unwrap();
    for value in [20, 30] {
        device.write(value);
        let id = rig.mount.checkpoint();
        device.write(value + 1);
        assert_eq!(
            first_word(&rig.view(id).join("disk")),
            value,
            "the view shows a later write"
        );
    }
}

struct LoopDevice(String);

impl LoopDevice {
    fn of(file: &Path) -> LoopDevice {
        LoopDevice(
            stdout_of(tool("losetup", &["-f", "--show"]).arg(file), 60)
                .trim()
                .to_owned(),
        )
    }

    fn write(&self, value: u64) {
        let device = OpenOptions::new().write(true).open(&self.0).unwrap();
        device.write_all_at(&value.to_le_bytes(), 0).unwrap();
        device.sync_all().unwrap();
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        succeeds(&mut tool("losetup", &["-d", &self.0]), 60);
    }
}

/// Failed before: a daemon that received SIGTERM while a file was mapped ended cleanly, so the next
/// mount did not search for mappings.
mod a_mapping_outlives_a_mount_that_was_taken_away {
    crate::common::for_each_variant! { @test a_mapping_outlives_a_mount_that_was_taken_away xfs_passthrough Xfs Passthrough }
}

fn a_mapping_outlives_a_mount_that_was_taken_away(v: Variant) {
    let mut rig = v.start();
    rig.mount.checkpoint();
    fs::write(rig.path().join("born"), vec![2; LEN]).unwrap();
    let map = map(&rig.path().join("born"));
    map.store(0, 10);
    rig.mount.end_by_signal();
    rig.mount.remount();
    a_view_keeps_what_was_there(&rig, &[("born", &map)], 20);
}
