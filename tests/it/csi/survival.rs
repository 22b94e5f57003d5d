//! Pods do not notice when the driver is killed, and the next driver continues its work.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use tonic::transport::Channel;

use crate::common::process;
use crate::common::wait::{seen, wait_until};
use crate::csi::support::{
    PodWriter, Rig, SECONDS, endpoint, from_snapshot, from_volume, runtime, unavailable,
};
use ckptfs_volumes::csi::proto::ProbeRequest;
use ckptfs_volumes::csi::proto::identity_client::IdentityClient;
use ckptfs_volumes::csi::proto::volume_capability::access_mode::Mode;

const WRITER: Mode = Mode::SingleNodeWriter;

#[test]
fn a_driver_that_is_killed_is_not_missed_by_pods() {
    if unavailable() {
        return;
    }
    let mut rig = Rig::start();
    rig.create("v");
    let staging = rig.try_stage("v", WRITER).unwrap();
    // Between stage and publish.
    rig.kill();
    rig.serve();
    let target = rig.try_publish("v", "a", WRITER, false).unwrap();
    assert_eq!((rig.mounts_at(&staging), rig.mounts_at(&target)), (1, 1));
    let pod = PodWriter::start(&target);
    rig.kill();
    pod.writes_on();
    rig.serve();
    pod.writes_on();
    // Repeated calls of the kubelet mount nothing twice.
    rig.try_stage("v", WRITER).unwrap();
    rig.try_publish("v", "a", WRITER, false).unwrap();
    assert_eq!((rig.mounts_at(&staging), rig.mounts_at(&target)), (1, 1));
    let snapshot = rig.snapshot("v", "s");
    rig.create_from("restored", from_snapshot(&snapshot.snapshot_id));
    assert!(
        fs::read_to_string(rig.use_it("restored", "b").join("log"))
            .unwrap()
            .lines()
            .all(|line| line == "line")
    );
    pod.writes_on();
    drop(pod);
    // An orderly exit also leaves staged volumes mounted.
    assert_eq!(rig.end(), 0);
    assert!(!rig.socket.exists() && rig.mounts_at(&target) == 1);
    rig.serve();
    rig.leave("v", "a");
    rig.leave("restored", "b");
    assert!(!rig.is_mounted("v") && !rig.is_mounted("restored"));
}

#[test]
fn a_daemon_that_is_killed_is_replaced_under_the_pod() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v");
    let pod = PodWriter::start(&rig.use_it("v", "a"));
    // A clone is served by the same daemon.
    rig.create_from("c", from_volume("v"));
    let of_clone = PodWriter::start(&rig.use_it("c", "a"));
    let status: Value =
        serde_json::from_str(&rig.ok(&["--volume", "v", "status", "--json"])).unwrap();
    process::kill(u32::try_from(status["daemon"]["pid"].as_u64().unwrap()).unwrap());
    pod.writes_on();
    drop(pod);
    rig.leave("v", "a");
    of_clone.writes_on();
    drop(of_clone);
    rig.leave("c", "a");
    assert!(!rig.is_mounted("v"));
}

#[test]
fn what_died_with_its_holder_is_staged_and_published_anew() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v");
    let target = rig.use_it("v", "a");
    fs::write(target.join("f"), "x").unwrap();
    rig.create_from("c", from_volume("v"));
    let clone = rig.use_it("c", "a");
    // The state after the death of a pod whose driver held the mounts: no process serves them.
    for target in [&clone, &target] {
        let minor = crate::common::mount::minor_of(target).unwrap();
        fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1").unwrap();
    }
    for (name, target) in [("v", &target), ("c", &clone)] {
        crate::common::wait_until("it is dead", || fs::read(target.join("f")).is_err());
        rig.try_stage(name, WRITER).unwrap();
        rig.try_publish(name, "a", WRITER, false).unwrap();
        assert_eq!(fs::read(target.join("f")).unwrap(), b"x");
        assert_eq!(rig.mounts_at(target), 1);
    }
    for name in ["v", "c"] {
        rig.leave(name, "a");
        rig.delete(name).unwrap();
    }
}

#[test]
fn a_snapshot_that_a_killed_driver_made_is_found() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v");
    // The state after a kill between the checkpoint and its record.
    rig.ok(&["--volume", "v", "checkpoint", "-t", "csi.nightly"]);
    let snapshot = rig.snapshot("v", "nightly");
    assert_eq!(snapshot.snapshot_id, "v@1@node-1");
    let log: Vec<Value> =
        serde_json::from_str(&rig.ok(&["--volume", "v", "log", "--json"])).unwrap();
    assert_eq!(log.len(), 1, "no second one is created");
}

/// Returns the names in a directory.
fn names(dir: &Path) -> Vec<String> {
    fs::read_dir(dir)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect()
}

#[test]
fn kills_at_any_moment_leave_nothing_half_done() {
    if unavailable() {
        return;
    }
    let mut rig = Rig::start();
    rig.create("base");
    fs::write(rig.use_it("base", "pod").join("f"), "x").unwrap();
    for round in 0_u64..6 {
        let (name, stop) = (format!("v{round}"), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let socket = rig.socket.clone();
            let (staging, target) = (rig.staging(&name), rig.target(&name, "a"));
            let asked = scope.spawn({
                let (name, stop) = (&name, &stop);
                move || {
                    crate::csi::support::work_through(
                        &socket, name, "base", &staging, &target, stop,
                    )
                }
            });
            // Delays from the start of the first call to the end of the last.
            std::thread::sleep(std::time::Duration::from_millis(40 * round * round));
            rig.kill();
            rig.serve();
            let until = std::time::Instant::now() + std::time::Duration::from_secs(SECONDS);
            while !asked.is_finished() && std::time::Instant::now() < until {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            stop.store(true, Ordering::SeqCst);
            asked.join().unwrap();
        });
        let target = rig.target(&name, "a");
        rig.is_only_at(&name, &["a"]);
        assert_eq!(fs::read(target.join("f")).unwrap(), b"x");
        rig.leave(&name, "a");
        rig.delete_snapshot(&rig.snapshot(&name, &name).snapshot_id)
            .unwrap();
        rig.delete(&name).unwrap();
        assert!(!rig.is_mounted(&name));
    }
    let pool = &rig.root;
    assert_eq!(
        (names(&pool.join("volumes")), names(&pool.join("staging"))),
        (vec!["base".to_owned()], Vec::new())
    );
    rig.create("last");
}

/// Failed before: the driver kept every connection until it had no descriptors left, and then could
/// neither reply nor read the pool.
#[test]
fn half_requests_keep_no_client_away() {
    if unavailable() {
        return;
    }
    let mut rig = Rig::start();
    let runtime = runtime();
    let probe = |client: &mut IdentityClient<Channel>| {
        runtime.block_on(client.probe(ProbeRequest {})).unwrap();
    };
    let connect = || {
        let channel = runtime.block_on(endpoint(&rig.socket).connect());
        IdentityClient::new(channel.unwrap())
    };
    // A sidecar keeps its connection.
    let mut kept = connect();
    probe(&mut kept);
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let mut half = rig.half_requests(&[b"", &PREFACE[..9], PREFACE]);
    probe(&mut connect());
    wait_until("the connections that were idle longest are closed", || {
        let open = half.open();
        seen(open < 256, open)
    });
    probe(&mut kept);
    // Idle connections do not delay the exit of the driver.
    drop((kept, runtime));
    let half = rig.half_requests(&[PREFACE]);
    let began = std::time::Instant::now();
    assert_eq!(rig.end(), 0);
    let took = began.elapsed();
    assert!(
        took < std::time::Duration::from_secs(8),
        "it waited for idle clients: {took:?}"
    );
    drop(half);
}
