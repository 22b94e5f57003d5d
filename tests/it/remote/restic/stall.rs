//! Operations on a stalled server time out; those on a slow one do not.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::kinds::{Kind, Server};
use super::{SECONDS, User, mark, pulled};
use crate::common::command::{fails, sh, succeeds};
use crate::common::tree::{assert_same, tree};
use crate::common::wait::WAIT;
use crate::common::{MountOpts, Rig, Variant, for_each_variant, tool};
use crate::remote::proxy::{ForwardedBytes, Proxy};

/// Idle timeout in seconds.
const IDLE: &str = "3";
/// Limit for the error, including one retry and the preceding steps.
const TOLD: Duration = WAIT;
const SIZE: u64 = 24_000_000;

fn large(v: Variant) -> Rig {
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        let script = "for n in $(seq 24); do head -c 1000000 /dev/urandom > $n; done";
        sh(dir, script);
    });
    rig.mount.checkpoint();
    rig
}

fn signal(pid: u32, name: &str) {
    succeeds(&mut tool("kill", &[name, &pid.to_string()]), 60);
}

/// Directs the user to the server through a proxy.
fn behind(user: &mut User, server: &Server, proxy: &Proxy) {
    user.variables = server.variables(proxy.port);
    user.url = server.url_at(proxy.port);
}

/// Checks that a verb fails in time and reports the stall.
fn is_told(command: &mut Command, what: &str) {
    let began = Instant::now();
    let said = fails(command.env("CKPTFS_REMOTE_TIMEOUT", IDLE), SECONDS);
    let took = began.elapsed();
    eprintln!("{what}: after {took:?}: {said}");
    let told = [
        "nothing has moved for 3 s",
        // A short reply has a timeout of its own, equally long.
        "the answer is not whole after 3 s",
        "rclone: it does not reach the remote within 6 s",
    ];
    assert!(
        told.iter().any(|told| said.contains(told)),
        "{what}: {said}"
    );
    assert!(said.contains("Hint: "), "{said}");
    assert!(took < TOLD, "{what}: {took:?}");
}

for_each_variant! { xfs => a_bucket_that_stalls, a_rest_server_that_stalls, a_server_behind_rclone_that_stalls }

fn a_bucket_that_stalls(v: Variant) {
    stalls(v, Kind::S3);
}

fn a_rest_server_that_stalls(v: Variant) {
    stalls(v, Kind::Rest);
}

fn a_server_behind_rclone_that_stalls(v: Variant) {
    stalls(v, Kind::Sftp);
}

/// The server is stopped during a push and during a pull. Each operation reports it, and succeeds
/// once the server continues.
fn stalls(v: Variant, kind: Kind) {
    let Some(server) = Server::start(kind) else {
        return;
    };
    let rig = large(v);
    let expected = tree(rig.path());
    let mut user = User::of(&server);
    let pid = server.pid();
    // The first chunk past the position stops the server.
    let stops = move |is_time: fn(ForwardedBytes) -> bool| {
        let is_done = AtomicBool::new(false);
        move |passed| {
            if is_time(passed) && !is_done.swap(true, Ordering::Relaxed) {
                signal(pid, "-STOP");
            }
            true
        }
    };
    let proxy = Proxy::start(server.port, stops(|passed| passed.sent > SIZE / 3));
    behind(&mut user, &server, &proxy);
    user.add(&user.url);
    is_told(&mut user.command(rig.path(), &["push", "home"]), "push");
    is_told(
        &mut user.command(rig.path(), &["remote", "log", "home"]),
        "log",
    );
    signal(pid, "-CONT");
    user.push(&rig, &[]);
    let proxy = Proxy::start(server.port, stops(|passed| passed.received > SIZE / 3));
    behind(&mut user, &server, &proxy);
    user.add(&user.url);
    let into = rig.path().parent().expect("the image").join("into");
    let to = into.to_str().expect("UTF-8");
    let pull = ["pull", "home", "--into", to];
    is_told(&mut user.command(rig.path(), &pull), "pull");
    assert!(!into.exists() || mark(&into) == "begun");
    signal(pid, "-CONT");
    user.pull(&rig, "latest", &into);
    assert_same(&pulled(&into), &expected);
}

for_each_variant! { xfs => a_slow_line }

/// A pack takes several times the idle timeout, and is sent once.
fn a_slow_line(v: Variant) {
    const BYTES_PER_SECOND: u64 = 1_500_000;
    for kind in [Kind::S3, Kind::Rest] {
        let Some(server) = Server::start(kind) else {
            return;
        };
        let rig = large(v);
        let mut user = User::of(&server);
        let began = Instant::now();
        let proxy = Proxy::start(server.port, move |passed| {
            // The connections share the bandwidth.
            let due = Duration::from_secs_f64((passed.sent as f64) / (BYTES_PER_SECOND as f64));
            thread::sleep(due.saturating_sub(began.elapsed()));
            true
        });
        behind(&mut user, &server, &proxy);
        user.add(&user.url);
        let mut push = user.command(rig.path(), &["push", "home"]);
        succeeds(push.env("CKPTFS_REMOTE_TIMEOUT", "5"), SECONDS);
        let (sent, took) = (proxy.passed().sent, began.elapsed());
        eprintln!("{kind:?}: {sent} bytes in {took:?}");
        assert!(
            took > Duration::from_secs(SIZE / BYTES_PER_SECOND),
            "{took:?}"
        );
        assert!(sent < SIZE * 102 / 100, "{sent}: the data is sent once");
        assert_eq!(user.log(&rig), [1]);
    }
}
