//! The engine, the driver, or a filesystem's daemon dies. Containers continue, no data is lost, and
//! no volume stays in use.

use crate::engine::on_an_engine;
use crate::engine::rig::Rig;

/// Checks that the volume can be removed afterwards: no stale user remains.
fn is_removable(rig: &Rig, containers: &str, volume: &str) {
    rig.sh(&format!(
        "[ -z \"{containers}\" ] || docker rm -f {containers} >/dev/null; docker volume rm {volume}; is_unmounted {volume}; [ -z \"$(docker volume ls -q)\" ]"
    ));
}

fn the_engine_is_stopped_and_started() {
    let rig = Rig::with_driver();
    rig.sh("docker volume create -d ckptfs vol1; dk_counter writer /data/log -v vol1:/data --restart always; dk_long other -v vol1:/other; dk_stop; is_unmounted vol1");
    rig.sh("dk_start; until_true 60 docker exec writer true; docker exec writer sh -c '[ -s /data/log ]'; docker start other >/dev/null; docker exec other ls /other/log");
    is_removable(&rig, "writer other", "vol1");
}

fn the_engine_is_killed_and_started() {
    let rig = Rig::with_driver();
    rig.sh("docker volume create -d ckptfs vol1; dk_long again -v vol1:/data --restart always; dk_long once -v vol1:/data; docker exec once sh -c 'echo kept >/data/file'");
    // No unmount is sent for these. Containers that restart mount with the same id; the ids of the
    // others are never released.
    rig.sh(
        "dk_kill; dk_start; until_true 60 docker exec again true; docker exec again cat /data/file",
    );
    is_removable(&rig, "again once", "vol1");
}

fn containers_outlive_an_engine_with_live_restore() {
    let rig = Rig::new();
    rig.sh("vol_start; dk_start --live-restore; dk_image; docker volume create -d ckptfs vol1; dk_counter writer /data/log -v vol1:/data");
    for end in ["dk_stop", "dk_kill"] {
        // Reads the container's file through its mount, because no engine runs.
        rig.sh(&format!(
            "log=$(mounted vol1)/log; {end}
            lines() {{ wc -l <\"$log\"; }}; more() {{ [ $(lines) -gt $1 ]; }}
            until_true 60 more $(lines); [ \"$(ckptfs checkpoint --volume vol1)\" -gt 0 ]
            dk_start --live-restore; still_counts writer /data/log"
        ));
    }
    is_removable(&rig, "writer", "vol1");
}

fn the_driver_is_killed() {
    let rig = Rig::with_driver();
    rig.sh("docker volume create -d ckptfs vol1; dk_counter writer /data/log -v vol1:/data; vol_kill; still_counts writer /data/log");
    assert_eq!(
        rig.sh(
            "docker exec writer mkdir /data/.snapshots/meanwhile; ckptfs checkpoint --volume vol1"
        ),
        "2\n"
    );
    rig.sh("vol_start; still_counts writer /data/log; dr -v vol1:/data bb:local sh -c '[ -s /data/.snapshots/meanwhile/log ]'");
    // A missed end: the container's unmount finds no driver, and waits for one to return.
    rig.sh("vol_kill; docker rm -f writer >/dev/null & job=$!; vol_start; wait $job; until_true 60 is_unmounted vol1");
    is_removable(&rig, "$(docker ps -aq)", "vol1");
}

fn a_container_waits_for_a_driver_that_comes_back() {
    let rig = Rig::with_driver();
    rig.sh("docker volume create -d ckptfs vol1; vol_kill");
    assert_eq!(rig.sh("dr -v vol1:/data bb:local echo served >$W/out & job=$!; vol_start; wait $job; cat $W/out"), "served\n");
    is_removable(&rig, "$(docker ps -aq)", "vol1");
}

fn the_daemon_is_killed_while_a_container_writes() {
    let rig = Rig::with_driver();
    rig.sh("docker volume create -d ckptfs vol1; dk_counter writer /data/log -v vol1:/data");
    for _ in 0..3 {
        // A daemon that dies soon after its start counts as unable to run; this one has served
        // requests.
        rig.sh("pid() { ckptfs -C $(mounted vol1) status --json | grep -o '\"pid\":[0-9]*' | head -n1 | cut -d: -f2; }
            still_counts writer /data/log; before=$(pid); sleep 0.3; kill -KILL $before
            still_counts writer /data/log; [ $(pid) != $before ]; ckptfs checkpoint --volume vol1");
    }
    assert_eq!(
        rig.sh("ckptfs log --volume vol1 --json | grep -o '\"id\":[0-9]*' | wc -l"),
        "3\n"
    );
    is_removable(&rig, "writer", "vol1");
}

/// Kills driver, engine and daemons at once, like a power cut except for the disk.
fn all_of_it_is_killed() {
    let rig = Rig::with_driver();
    rig.sh("docker volume create -d ckptfs vol1; dk_counter writer /data/log -v vol1:/data --restart always; ckptfs checkpoint --volume vol1");
    let counted: u64 = rig
        .sh("counted writer /data/log")
        .trim()
        .parse()
        .expect("a number");
    rig.sh("shims=$(pidof containerd-shim-runc-v2); dk_kill; vol_kill; kill -KILL $shims
        # A holder whose worker dies first may have begun another by the time it is killed itself.
        none_left() { ! pids=$(pidof ckptfs) || { kill -KILL $pids; false; }; }; until_true 60 none_left
        vol_start; dk_start; until_true 60 docker exec writer true");
    let found: u64 = rig
        .sh("docker exec writer sort -n /data/log | tail -n 1")
        .trim()
        .parse()
        .expect("a number");
    assert!(found >= counted, "{found} of {counted}");
    assert_eq!(rig.sh("ckptfs checkpoint --volume vol1"), "2\n");
    is_removable(&rig, "writer", "vol1");
}

/// Failed before: no unmount released the volume of the container that died with the engine, so the
/// next container found its data.
fn an_ephemeral_volume_is_fresh_after_the_engine_was_killed() {
    let rig = Rig::with_driver();
    rig.sh("docker volume create -d ckptfs base; dr -v base:/data bb:local sh -c 'echo base >/data/file'
        docker volume create -d ckptfs -o from=base -o ephemeral=true trial
        dk_long one -v trial:/data; docker exec one sh -c 'echo dirty >/data/file'
        dk_kill; dk_start; docker rm -f one >/dev/null");
    assert_eq!(
        rig.sh("dr -v trial:/data bb:local cat /data/file; until_true 60 is_unmounted trial"),
        "base\n"
    );
}

on_an_engine! {
    the_engine_is_stopped_and_started,
    the_engine_is_killed_and_started,
    an_ephemeral_volume_is_fresh_after_the_engine_was_killed,
    containers_outlive_an_engine_with_live_restore,
    the_driver_is_killed,
    a_container_waits_for_a_driver_that_comes_back,
    the_daemon_is_killed_while_a_container_writes,
    all_of_it_is_killed,
}
