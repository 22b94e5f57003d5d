//! The engines alone: the basis of the other tests works without our driver and leaves nothing
//! behind.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::wait::{same, wait_until};
use crate::common::{Fs, Image, process, stdout_of, tool};
use crate::engine::rig::{Rig, remove_cgroups};
use crate::engine::{on_an_engine, on_podman};

fn an_engine_runs_here() {
    let others = Image::new(Fs::Tmpfs, 1 << 20);
    let rig = Rig::docker();
    // The rig has no copies of other mounts, which would keep them busy.
    assert!(
        !rig.sh("cat /proc/self/mountinfo")
            .contains(&*others.path().to_string_lossy())
    );
    assert_eq!(rig.sh("dr bb:local echo hello").trim(), "hello");
    let said = rig.sh("docker volume create vol >/dev/null; dr -v vol:/data bb:local sh -c 'echo kept >/data/file'; dr -u 1000 -v vol:/data bb:local cat /data/file");
    assert_eq!(said, "kept\n");
}

fn podman_runs_here() {
    let rig = Rig::podman_alone();
    assert_eq!(rig.sh("pm bb:local echo hello").trim(), "hello");
}

/// Set for the test process that is killed.
const VICTIM: &str = "CKPTFS_ENGINE_VICTIM";

/// Prints the location of its rig, and waits to be killed.
fn be_the_victim() {
    let rig = Rig::docker();
    rig.sh("dk_long stays; docker exec stays true");
    // Not `println!`, which the test runner captures.
    use std::io::Write;
    writeln!(
        std::io::stderr(),
        "\nrig {} {}",
        rig.init(),
        rig.dir().display()
    )
    .expect("a process listens");
    std::thread::sleep(Duration::from_secs(600));
}

/// Engine, containers and disk end with a killed test process.
fn nothing_outlives_a_killed_test() {
    if std::env::var_os(VICTIM).is_some() {
        be_the_victim();
    }
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args([
            "--exact",
            "engine::engines::nothing_outlives_a_killed_test::docker",
            "--nocapture",
        ])
        .env(VICTIM, "1");
    let mut victim = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let lines = BufReader::new(victim.stderr.take().expect("stderr is piped"))
        .lines()
        .map_while(Result::ok);
    let said = lines
        .filter_map(|line| line.strip_prefix("rig ").map(str::to_owned))
        .next()
        .expect("it prints the path of its rig");
    let (init, dir) = said.split_once(' ').expect("two words");
    let init: u32 = init.parse().expect("a number");
    let start = process::start_of(init).expect("its rig is alive");
    let disk = Path::new(dir).join("disk.img");
    let loops = || stdout_of(tool("losetup", &["-j"]).arg(&disk), 60);
    assert!(loops().contains("disk.img"));
    let pid = victim.id();
    // Control groups do not end with the namespaces.
    let groups = || {
        let list = format!(
            "ls -d /sys/fs/cgroup/ckptfs-test-{pid}-* /sys/fs/cgroup/*/ckptfs-test-{pid}-* 2>/dev/null; true"
        );
        stdout_of(&mut tool("sh", &["-c", &list]), 60)
    };
    assert_ne!(groups(), "");
    victim.kill().expect("the child can be killed");
    victim.wait().expect("the child can be waited for");
    assert!(
        process::wait_dead(init, start, Duration::from_secs(60)),
        "the rig of a dead test is still alive"
    );
    wait_until("the loop device is free", || same(loops(), ""));
    // The next rig removes them.
    wait_until("the control groups can be removed", || {
        remove_cgroups("");
        same(groups(), "")
    });
}

on_an_engine! { an_engine_runs_here, nothing_outlives_a_killed_test }
on_podman! { podman_runs_here }
