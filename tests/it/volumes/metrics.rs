//! `GET /metrics` on the driver's socket.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::common::process::until_stopped;
use crate::common::prometheus::samples;
use crate::common::wait::wait_until;
use crate::volumes::support::{Rig, unavailable};

fn get(rig: &Rig) -> Option<Vec<Value>> {
    let said = rig.exchange(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let (head, body) = said.split_once("\r\n\r\n").expect("an answer");
    assert!(head.starts_with("HTTP/1.1 200 "), "{said}");
    let kind = "content-type: text/plain; version=0.0.4";
    assert!(head.to_lowercase().contains(kind), "{head}");
    samples(body)
}

/// Returns the value of a metric, for a volume or the whole driver.
fn value(all: &[Value], name: &str, volume: Option<&str>) -> Option<f64> {
    let is_it = |one: &&Value| one[0] == name && one[2]["volume"].as_str() == volume;
    let mut found = all.iter().filter(is_it);
    let value = found.next()?[3].as_f64();
    assert!(found.next().is_none(), "{name} {volume:?} occurs twice");
    value
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid");
    kill_process(pid, signal).expect("the daemon can be signalled");
}

#[test]
fn the_numbers_of_each_volume_that_is_mounted_are_read_by_a_parser() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    for name in ["a", "b", "idle"] {
        rig.create(name, json!({}));
    }
    let (a, _) = (rig.mount("a", "1"), rig.mount("b", "1"));
    std::fs::write(a.join("f"), "x").expect("write");
    rig.ok(&["--volume", "a", "checkpoint"]);
    let Some(all) = get(&rig) else { return };
    assert_eq!(value(&all, "ckptfs_volumes", None), Some(3.0));
    let up = |all: &[Value], name| value(all, "ckptfs_volume_up", Some(name));
    assert_eq!(
        (up(&all, "a"), up(&all, "b"), up(&all, "idle")),
        (Some(1.0), Some(1.0), None)
    );
    let checkpoints = |name| value(&all, "ckptfs_checkpoints", Some(name));
    assert_eq!(
        (checkpoints("a"), checkpoints("b"), checkpoints("idle")),
        (Some(1.0), Some(0.0), None)
    );
    let at = a.to_str().expect("text");
    let of_a = all
        .iter()
        .filter(|one| one[2]["volume"] == "a" && one[0] != "ckptfs_volume_up");
    assert!(of_a.clone().count() > 10 && of_a.clone().all(|one| one[2]["mount"] == at));
    // Other requests in this form are rejected.
    for (request, status) in [
        ("GET /", 405),
        ("GET /VolumeDriver.List", 405),
        ("POST /metrics", 404),
        ("PUT /metrics", 405),
    ] {
        let said = rig.exchange(
            format!("{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes(),
        );
        assert!(
            said.starts_with(&format!("HTTP/1.1 {status} ")),
            "{request}: {said}"
        );
    }
}

/// A collector's request must not leave a thread waiting for the daemon.
#[test]
fn a_daemon_that_hangs_is_told_as_down_and_holds_up_no_other() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    for name in ["a", "b"] {
        rig.create(name, json!({}));
        rig.mount(name, "1");
    }
    let (daemon, _) = rig.daemons("a");
    signal(daemon, Signal::STOP);
    until_stopped(daemon);
    let threads =
        || std::fs::read_dir(format!("/proc/{}/task", rig.driver_pid())).map_or(0, Iterator::count);
    let mut seen = Vec::new();
    for _ in 0..3 {
        let all = get(&rig);
        seen.push(all.map(|all| {
            let up = |name| value(&all, "ckptfs_volume_up", Some(name));
            (
                up("a"),
                up("b"),
                value(&all, "ckptfs_checkpoints", Some("a")),
                value(&all, "ckptfs_checkpoints", Some("b")),
            )
        }));
    }
    let during = threads();
    signal(daemon, Signal::CONT);
    for told in seen.into_iter().flatten() {
        assert_eq!(told, (Some(0.0), Some(1.0), None, Some(0.0)));
    }
    wait_until("no process waits for it", || {
        let now = threads();
        crate::common::seen(now < during, now)
    });
    wait_until("it serves again", || {
        get(&rig).is_none_or(|all| value(&all, "ckptfs_volume_up", Some("a")) == Some(1.0))
    });
}
