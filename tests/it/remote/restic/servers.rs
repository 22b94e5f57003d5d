//! Repositories behind a server.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use serde_json::Value;

use super::kinds::{Kind, SECRET, Server};
use super::roundtrip::as_restic_has_it;
use super::{SECONDS, User, bucket, mark, pulled};
use crate::common::command::{fails, has, run_limited, sh, stdout_of, succeeds};
use crate::common::random::{Random, is_long, seed};
use crate::common::tree::{Tree, assert_same, tree};
use crate::common::{MountOpts, Rig, Variant, for_each_variant, sample_tree, skip, tool, tree_of};
use crate::remote::proxy::{ForwardedBytes, Proxy};

for_each_variant! { xfs => a_bucket, a_real_bucket, a_rest_server, a_server_behind_rclone, a_connection_that_is_cut }

fn a_bucket(v: Variant) {
    goes_and_comes(v, Kind::Moto);
}

fn a_real_bucket(v: Variant) {
    goes_and_comes(v, Kind::S3);
}

fn a_rest_server(v: Variant) {
    goes_and_comes(v, Kind::Rest);
}

fn a_server_behind_rclone(v: Variant) {
    goes_and_comes(v, Kind::Sftp);
}

/// Checkpoints are pushed to a server and pulled back, restic reads them, and an unreachable server
/// is reported. No output contains credentials.
fn goes_and_comes(v: Variant, kind: Kind) {
    let Some(server) = Server::start(kind) else {
        return;
    };
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        sample_tree(dir);
        sh(dir, "head -c 3000000 /dev/urandom > random");
    });
    let user = User::of(&server);
    let mut trees = Vec::new();
    for change in [
        "true",
        "echo more >> plain.txt; rm -r links",
        "mv random other; echo 1 > new",
    ] {
        sh(rig.path(), change);
        rig.mount.checkpoint();
        trees.push(tree(rig.path()));
    }
    let sent = user.push(&rig, &[]);
    assert_eq!(sent.len(), 3);
    assert!(
        sent[1]["bytes_sent"].as_u64() < Some(200_000),
        "{}",
        sent[1]
    );
    if let Some(dir) = server.kept_in() {
        // A listing of several pages, mostly of files that are not snapshots.
        let script = "seq -f 'snapshots/0-not-a-snapshot-%g' 1100 | xargs touch";
        sh(&dir, script);
    }
    assert_eq!(user.log(&rig), [3, 2, 1]);
    let into = beside(&rig, "into");
    for (id, expected) in ["1", "2", "3"].into_iter().zip(&trees) {
        user.pull(&rig, id, &into);
        assert_same(&pulled(&into), expected);
    }
    if let Some(dir) = server.kept_in() {
        sh(&dir, "rm snapshots/0-not-a-snapshot-*");
    }
    restic_reads(&user, &rig, &sent[2], &trees[2]);
    // The lost server is reported quickly, and local data is not modified.
    drop(server);
    fs::write(rig.path().join("later"), "").expect("written");
    rig.mount.checkpoint();
    for verb in [
        &["push", "home"][..],
        &["remote", "log", "home"],
        &["pull", "home", "--into", "../other"],
    ] {
        let mut command = user.command(rig.path(), verb);
        let said = fails(command.env("CKPTFS_LOG", "trace"), 60);
        assert!(said.contains("Hint: "), "{said}");
        no_secret_in(&said);
    }
    assert_eq!(mark(&into), "whole");
    assert_same(&pulled(&into), &trees[2]);
}

fn beside(rig: &Rig, name: &str) -> PathBuf {
    rig.path().parent().expect("the image").join(name)
}

#[track_caller]
fn no_secret_in(said: &str) {
    for secret in [SECRET, "key-of-the-test", super::PASSWORD] {
        assert!(!said.contains(secret), "{said}");
    }
}

fn restic_reads(user: &User, rig: &Rig, sent: &Value, expected: &Tree) {
    if !has("restic") {
        return skip("restic is not installed");
    }
    user.check();
    let restored = user.dir.path().join("restored");
    let snapshot = sent["snapshot"].as_str().expect("a number");
    let mut restore = user.restic(&["restore", snapshot, "--target"]);
    succeeds(restore.arg(&restored), SECONDS);
    let root = rig.path().file_name().expect("a name");
    assert_same(&tree_of(&restored.join(root)), &as_restic_has_it(expected));
}

for_each_variant! { xfs => a_key_that_is_wrong, nobody_sees_who_asks }

/// Denied access and missing objects are reported with a hint.
fn a_key_that_is_wrong(v: Variant) {
    let rig = v.start();
    rig.mount.checkpoint();
    for kind in [Kind::S3, Kind::Rest, Kind::Sftp] {
        let Some(server) = Server::start(kind) else {
            return;
        };
        let user = User::of(&server);
        user.push(&rig, &[]);
        let key = match kind {
            Kind::Moto | Kind::S3 => "AWS_SECRET_ACCESS_KEY",
            Kind::Rest => "RESTIC_REST_PASSWORD",
            // As obscured by rclone.
            Kind::Sftp => "RCLONE_CONFIG_FAR_PASS",
        };
        for verb in [
            &["push", "home"][..],
            &["remote", "log", "home"],
            &["remote", "add", "other", &user.url],
        ] {
            let mut command = user.command(rig.path(), verb);
            let wrong = "wrong-of-the-test-AAAAAAAAAAAAAAAAAAAAAAAAAAA";
            let said = fails(command.env(key, wrong), 60);
            eprintln!("{kind:?} {verb:?}: {said}");
            let hint = if kind == Kind::Sftp {
                "rclone lsd"
            } else {
                key
            };
            assert!(said.contains(hint), "{kind:?}: {said}");
            assert!(!said.contains("wrong-of-the-test"), "{said}");
            no_secret_in(&said);
        }
        let mut nobody = user.command(rig.path(), &["remote", "log", "home"]);
        let said = fails(nobody.env_remove(key), 60);
        eprintln!("{kind:?} without credentials: {said}");
        if kind == Kind::S3 {
            assert!(said.contains("AWS_SECRET_ACCESS_KEY"), "{said}");
            let url = user.url.replace("bucket", "no-bucket");
            let mut add = user.command(rig.path(), &["remote", "add", "other", &url]);
            let said = fails(&mut add, 60);
            assert!(said.contains("there is no such bucket"), "{said}");
        }
        if kind == Kind::Sftp {
            // No proxy is used between us and rclone; it would receive the password.
            let mut log = user.command(rig.path(), &["remote", "log", "home"]);
            log.env_remove("NO_PROXY")
                .env("HTTP_PROXY", "http://127.0.0.1:9");
            succeeds(&mut log, SECONDS);
            let mut add = user.command(rig.path(), &["remote", "add", "other", "rclone:none:x"]);
            let said = fails(&mut add, 60);
            assert!(
                said.contains("didn't find section in config file"),
                "{said}"
            );
            let mut add = user.command(rig.path(), &["remote", "log", "home"]);
            let said = fails(add.env("PATH", "/nowhere"), 60);
            assert!(said.contains("must be installed"), "{said}");
        }
    }
}

/// Credentials appear neither in the arguments of child processes nor in a trace log.
fn nobody_sees_who_asks(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        sh(dir, "head -c 20000000 /dev/urandom > random");
    });
    rig.mount.checkpoint();
    for kind in [Kind::S3, Kind::Rest, Kind::Sftp] {
        let Some(server) = Server::start(kind) else {
            return;
        };
        let user = User::of(&server);
        let log = user.dir.path().join("log");
        let mut push = user
            .command(rig.path(), &["push", "home"])
            .env("CKPTFS_LOG", "trace")
            .stderr(fs::File::create(&log).expect("a log"))
            .stdout(Stdio::null())
            .spawn()
            .expect("runs");
        let mut seen = Vec::new();
        while push.try_wait().expect("its state").is_none() {
            let ours = stdout_of(&mut tool("ps", &["-ww", "-eo", "ppid,pid,args"]), 60);
            let id = push.id().to_string();
            let of_push = |line: &&str| line.split_whitespace().take(2).any(|word| word == id);
            seen.extend(ours.lines().filter(of_push).map(str::to_owned));
        }
        assert!(push.wait().expect("ended").success());
        assert!(!seen.is_empty());
        let started = seen.iter().any(|line| line.contains("rclone serve restic"));
        assert_eq!(started, kind == Kind::Sftp, "{seen:?}");
        no_secret_in(&seen.join("\n"));
        let log = fs::read_to_string(&log).expect("a log");
        no_secret_in(&log);
        assert!(
            !log.contains("dXNlcjp") && !log.contains("RCLONE_PASS"),
            "{log}"
        );
        // rclone has ended with the push.
        let left = stdout_of(&mut tool("ps", &["-ww", "-eo", "ppid,pid,args"]), 60);
        let of_push = |line: &&String| {
            let pid = line.split_whitespace().nth(1).unwrap_or_default();
            line.contains("rclone serve restic") && left.contains(&format!(" {pid} rclone"))
        };
        assert_eq!(seen.iter().find(of_push), None);
    }
}

/// A server that cannot answer is not treated as empty: no repository is created over an existing
/// one.
#[test]
fn a_server_that_cannot_answer_is_not_written_to() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let counts = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let counted = Arc::clone(&counts);
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut head = [0; 4096];
            if matches!(client.read(&mut head), Ok(1..)) {
                let is_question = head.starts_with(b"GET ") || head.starts_with(b"HEAD ");
                counted[usize::from(is_question)].fetch_add(1, Ordering::Relaxed);
            }
            let _ = client.write_all(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    let user = User::new();
    for url in [format!("rest:http://127.0.0.1:{port}/"), bucket(port)] {
        let add = ["remote", "add", "other", &url];
        fails(&mut user.command(user.dir.path(), &add), SECONDS);
    }
    let [changes, questions] = [0, 1].map(|index: usize| counts[index].load(Ordering::Relaxed));
    assert!(changes == 0 && questions > 1, "{changes} {questions}");
}

for_each_variant! { xfs => cut_anywhere }

/// A push cut at any position leaves no partial snapshot, and a pull cut at any position is not
/// marked whole. Both can be resumed. `CKPTFS_LONG=1` tests many positions.
fn cut_anywhere(v: Variant) {
    const SIZE: u64 = 6_000_000;
    let Some(server) = Server::start(Kind::S3) else {
        return;
    };
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        sh(
            dir,
            "for n in $(seq 6); do head -c 1000000 /dev/urandom > $n; done",
        );
    });
    rig.mount.checkpoint();
    let expected = tree(rig.path());
    let mut random = Random::new(seed("cut_anywhere", 19));
    let mut user = User::of(&server);
    let into = beside(&rig, "into");
    for round in 0..if is_long() { 40 } else { 3 } {
        let project = format!("project-{round}");
        let at = |port: u16| server.url_at(port).replace("project", &project);
        let (url, to) = (at(server.port), into.to_str().expect("UTF-8"));
        user.add(&url);
        user.url = url;
        for verb in [&["push", "home"][..], &["pull", "home", "--into", to]] {
            let cut_at = random.next() % (SIZE * 11 / 10);
            // Permanent: each retry fails there.
            let proxy = Proxy::start(server.port, move |ForwardedBytes { sent, received }| {
                sent + received < cut_at
            });
            user.force(&at(proxy.port));
            let mut cut = user.command(rig.path(), verb);
            let is_done = run_limited(&mut cut, SECONDS).status.success();
            eprintln!("{} is cut at {cut_at}: done {is_done}", verb[0]);
            user.force(&user.url);
            if verb[0] == "push" {
                assert_eq!(user.log(&rig).len(), usize::from(is_done));
                assert_eq!(user.push(&rig, &[]).len(), usize::from(!is_done));
            } else {
                assert_eq!(into.exists() && mark(&into) == "whole", is_done);
                user.pull(&rig, "1", &into);
                assert_same(&pulled(&into), &expected);
                fs::remove_dir_all(&into).expect("removed");
            }
        }
    }
}

/// Data that reached the server before a push was cut is not sent again; a pull that is cut
/// resumes.
fn a_connection_that_is_cut(v: Variant) {
    const SIZE: u64 = 160_000_000;
    /// Maximum bytes packed at once, which may be in flight when the connection is cut.
    const PACK: u64 = 33 << 20;
    let Some(server) = Server::start(Kind::Moto) else {
        return;
    };
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        let make = "for n in $(seq 16); do head -c 10000000 /dev/urandom > $n; done";
        sh(dir, make);
    });
    rig.mount.checkpoint();
    let expected = tree(rig.path());
    let user = User::in_bucket(server.port);
    let cut_at = SIZE * 2 / 3;
    let proxy = Proxy::start(server.port, move |ForwardedBytes { sent, .. }| {
        sent < cut_at
    });
    user.add(&bucket(proxy.port));
    fails(&mut user.command(rig.path(), &["push", "home"]), SECONDS);
    user.add(&bucket(server.port));
    assert!(user.log(&rig).is_empty());
    let came = server.kept();
    let proxy = Proxy::start(server.port, |_| true);
    user.add(&bucket(proxy.port));
    user.push(&rig, &[]);
    let sent = proxy.passed().sent;
    eprintln!("{came} bytes had arrived, {sent} were sent after that");
    assert!(
        came > PACK && sent + came < SIZE * 105 / 100,
        "{came} {sent}"
    );
    let into = rig.path().parent().expect("the image").join("into");
    for moment in [1, 2, 3] {
        let cut_at = SIZE * moment / 4;
        let proxy = Proxy::start(server.port, move |ForwardedBytes { received, .. }| {
            received < cut_at
        });
        user.add(&bucket(proxy.port));
        let into = into.to_str().expect("UTF-8");
        let mut pull = user.command(rig.path(), &["pull", "home", "--into", into]);
        fails(&mut pull, SECONDS);
        assert!(!Path::new(into).exists() || mark(Path::new(into)) == "begun");
    }
    user.add(&bucket(server.port));
    user.pull(&rig, "1", &into);
    assert_same(&pulled(&into), &expected);
}
