//! Filesystems on image files, and commands with a time limit.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::command::{try_run_closing, try_run_limited};
use crate::common::mount::mount_table;
use crate::common::wait::WAIT;
use crate::common::{Fs, Image, run_limited, scratch, skip, stdout_of, succeeds, tool};

fn type_of(path: &Path) -> String {
    stdout_of(
        tool("findmnt", &["-n", "-o", "FSTYPE", "--target"]).arg(path),
        60,
    )
    .trim()
    .to_owned()
}

fn comes_and_goes(fs: Fs) {
    if let Some(reason) = fs.unavailable() {
        return skip(&reason);
    }
    let mut image = Image::of(fs);
    let (point, file) = (image.path().to_owned(), image.file().map(Path::to_owned));
    assert_eq!(type_of(&point), fs.name());
    fs::write(image.dir("project").join("a"), "kept").unwrap();
    let reflink = tool("cp", &["--reflink=always", "project/a", "project/b"])
        .current_dir(&point)
        .output()
        .unwrap();
    assert_eq!(
        reflink.status.success(),
        fs.has_reflink(),
        "{}",
        String::from_utf8_lossy(&reflink.stderr)
    );
    if file.is_some() {
        image.unmount();
        assert!(!point.join("project").exists());
        image.mount_with("noatime");
        assert_eq!(fs::read(point.join("project/a")).unwrap(), b"kept");
    }
    drop(image);
    let table = mount_table("self");
    assert!(!table.contains(point.to_str().unwrap()), "still mounted");
    assert!(
        !point.parent().unwrap().exists(),
        "the directory of the image still exists"
    );
    if let Some(file) = file {
        let loops = stdout_of(
            &mut tool(
                "losetup",
                &["--list", "--noheadings", "--output", "BACK-FILE"],
            ),
            60,
        );
        assert!(
            !loops.contains(file.to_str().unwrap()),
            "the loop device is still attached"
        );
    }
}

#[test]
fn an_xfs_comes_and_goes() {
    comes_and_goes(Fs::Xfs);
}

#[test]
fn a_btrfs_comes_and_goes() {
    comes_and_goes(Fs::Btrfs);
}

#[test]
fn an_ext4_comes_and_goes() {
    comes_and_goes(Fs::Ext4);
}

#[test]
fn a_tmpfs_comes_and_goes() {
    comes_and_goes(Fs::Tmpfs);
}

#[test]
fn several_images_at_once_do_not_take_each_others_loop_device() {
    if let Some(reason) = Fs::Ext4.unavailable() {
        return skip(&reason);
    }
    let images: Vec<Image> = std::thread::scope(|scope| {
        let makers: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| Image::new(Fs::Ext4, 64 << 20)))
            .collect();
        makers
            .into_iter()
            .map(|maker| maker.join().unwrap())
            .collect()
    });
    for (number, image) in images.iter().enumerate() {
        fs::write(image.path().join("number"), number.to_string()).unwrap();
    }
    for (number, image) in images.iter().enumerate() {
        assert_eq!(
            fs::read_to_string(image.path().join("number")).unwrap(),
            number.to_string()
        );
    }
}

#[test]
fn a_small_tmpfs_gets_full() {
    if let Some(reason) = Fs::Tmpfs.unavailable() {
        return skip(&reason);
    }
    let image = Image::new(Fs::Tmpfs, 1 << 20);
    let error = fs::write(image.path().join("big"), vec![1; 2 << 20]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
}

#[test]
fn a_command_that_hangs_is_ended() {
    let started = Instant::now();
    let problem = try_run_limited(&mut tool("sleep", &["300"]), 1).unwrap_err();
    assert!(problem.contains("did not end within 1 s"), "{problem}");
    assert!(started.elapsed() < WAIT);
}

#[test]
fn a_command_that_leaves_its_stdout_open_is_found_out() {
    let mut leaves = tool("sh", &["-c", "sleep 20 & exit 0"]);
    let problem = try_run_closing(&mut leaves, 60, Duration::from_secs(2)).unwrap_err();
    assert!(problem.contains("keeps its stdout open"), "{problem}");
}

#[test]
fn output_larger_than_a_pipe_arrives_whole() {
    let output = run_limited(&mut tool("head", &["-c", "3000000", "/dev/zero"]), 60);
    assert_eq!(output.stdout.len(), 3_000_000);
}

/// The script removes the leftovers of a killed test process: mounts, loop devices, daemons and
/// files.
#[test]
fn leftovers_of_a_dead_process_are_removed() {
    if let Some(reason) = Fs::Ext4.unavailable() {
        return skip(&reason);
    }
    let base = scratch();
    let run = base.path().join("ckptfs-test-of-a-dead-one");
    fs::create_dir_all(run.join("mnt")).unwrap();
    fs::File::create(run.join("disk.img"))
        .unwrap()
        .set_len(32 << 20)
        .unwrap();
    succeeds(
        tool("mkfs.ext4", &["-q", "-F"]).arg(run.join("disk.img")),
        60,
    );
    succeeds(
        tool("mount", &["-o", "loop"])
            .arg(run.join("disk.img"))
            .arg(run.join("mnt")),
        60,
    );
    let mut daemon = tool("sleep", &["300"]).spawn().unwrap();
    let start = crate::common::process::start_of(daemon.id()).unwrap();
    fs::write(
        run.join("daemons"),
        format!("{} {start}\n{} 1\n", daemon.id(), std::process::id()),
    )
    .unwrap();
    // Our process id with another start time stands for a reused id: that process must survive.
    fs::write(run.join("owner"), format!("{} 1\n", std::process::id())).unwrap();
    let script = crate::common::run_dir::script("cleanup.sh");
    succeeds(
        tool("bash", &[script.as_os_str(), "--dead".as_ref()]).env("CKPTFS_TEST_DIR", base.path()),
        60,
    );
    assert!(!run.exists());
    assert!(crate::common::process::wait_dead(daemon.id(), start, WAIT));
    daemon.wait().unwrap();
}
