//! Interrupted pushes: the tag has its old value or the pushed one, the checkpoint does not change,
//! and the next push succeeds.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::super::proxy::{ForwardedBytes, Proxy};
use super::images::{assert_is, pull, push};
use super::server::{Server, missing};
use crate::common::command::{TOOL_SECONDS, wait_limited};
use crate::common::random::Random;
use crate::common::tree::{Tree, tree};
use crate::common::{Rig, Variant, fails, for_each_variant, process, scratch};
use crate::export::support::copy_at;

/// More than one chunk of an upload.
const LARGE_BYTES: usize = 18 << 20;
/// Byte counts at which a push is interrupted: in the first request, in the first chunk, in the
/// second, near the end.
const MOMENTS: [u64; 4] = [700, 3 << 20, 17 << 20, LARGE_BYTES as u64 + 1500];

/// Returns an address in the registry behind a proxy.
fn place(proxy: &Proxy, rest: &str) -> String {
    format!("oci://127.0.0.1:{}/{rest}", proxy.port)
}

/// Pushes a small checkpoint and makes a large one that is not pushed.
fn prepared(rig: &Rig, server: &Server) -> (Tree, Tree) {
    fs::write(rig.path().join("small"), "small").expect("written");
    rig.mount.checkpoint();
    let first = tree(rig.path());
    push(rig, &server.place("project"), "1");
    let mut random = Random::new(7);
    let large: Vec<u8> = (0..LARGE_BYTES / 8)
        .flat_map(|_| random.next().to_le_bytes())
        .collect();
    fs::write(rig.path().join("large"), large).expect("written");
    rig.mount.checkpoint();
    (first, tree(rig.path()))
}

/// Checks that the tag is complete, and returns whether it is the first or the second checkpoint.
#[track_caller]
fn whole(server: &Server, dir: &Path, trees: &(Tree, Tree)) -> u64 {
    let _ = fs::remove_dir_all(dir);
    let pulled = pull(&server.place("project"), dir, &[]);
    let checkpoint = pulled["checkpoint"].as_u64().expect("a checkpoint");
    assert_is(
        &copy_at(dir),
        if checkpoint == 1 { &trees.0 } else { &trees.1 },
        true,
    );
    checkpoint
}

/// A connection that is cut once is retried; one that is always cut fails the push.
fn a_connection_that_is_cut(v: Variant) {
    if missing() {
        return;
    }
    let rig = v.start();
    let dir = scratch();
    let server = Server::start(dir.path());
    let trees = prepared(&rig, &server);
    for moment in MOMENTS {
        let cut = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&cut);
        let proxy = Proxy::start(server.port, move |ForwardedBytes { sent, .. }| {
            sent < moment || count.fetch_add(1, Ordering::Relaxed) > 0
        });
        let pushed = push(&rig, &place(&proxy, "project:again"), "2");
        assert_eq!(pushed["pushed"], 2, "{pushed}");
        let pulled = dir.path().join("again");
        let _ = fs::remove_dir_all(&pulled);
        pull(&server.place("project:again"), &pulled, &[]);
        assert_is(&copy_at(&pulled), &trees.1, true);
        // Removes the tag, manifest and large layer, so that the next push sends them again.
        let blobs = server
            .blobs()
            .join("docker/registry/v2/repositories/project");
        fs::remove_dir_all(blobs.join("_manifests/tags/again")).expect("removed");
        let layer = pushed["digest"]
            .as_str()
            .expect("a digest")
            .replace(':', "/");
        let _ = fs::remove_dir_all(blobs.join("_manifests/revisions").join(layer));
        forget_large(&blobs);
    }
    let proxy = Proxy::start(server.port, |passed| passed.sent < MOMENTS[1]);
    let said = fails(
        &mut rig.mount.command(&["push", &place(&proxy, "project"), "2"]),
        TOOL_SECONDS,
    );
    assert!(
        said.contains("cut") && said.contains("run it again"),
        "{said}"
    );
    assert_eq!(whole(&server, &dir.path().join("pulled"), &trees), 1);
    push(&rig, &server.place("project"), "2");
    assert_eq!(whole(&server, &dir.path().join("pulled"), &trees), 2);
    rig.mount.ok(&["verify", "--deep"]);
}

/// Removes the links of all layers except those of the first push.
fn forget_large(repository: &Path) {
    let layers = repository.join("_layers/sha256");
    let data = repository.join("../../blobs/sha256");
    for entry in fs::read_dir(&layers).expect("layers").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let blob = data.join(&name[..2]).join(&name).join("data");
        if fs::metadata(&blob).is_ok_and(|blob| blob.len() > 1 << 20) {
            fs::remove_dir_all(entry.path()).expect("removed");
        }
    }
}

/// The registry is killed during a push, and restarted.
fn a_registry_that_is_killed(v: Variant) {
    if missing() {
        return;
    }
    let rig = v.start();
    let dir = scratch();
    let mut server = Server::start(dir.path());
    let trees = prepared(&rig, &server);
    let pid = server.pid();
    let proxy = Proxy::start(server.port, move |ForwardedBytes { sent, .. }| {
        if sent > MOMENTS[2] {
            process::kill(pid);
        }
        sent <= MOMENTS[2]
    });
    let said = fails(
        &mut rig.mount.command(&["push", &place(&proxy, "project"), "2"]),
        TOOL_SECONDS,
    );
    assert!(said.contains("run it again"), "{said}");
    let said = fails(
        &mut rig.mount.command(&["push", &server.place("project"), "2"]),
        TOOL_SECONDS,
    );
    assert!(said.contains("no connection"), "{said}");
    server.kill();
    server.again();
    assert_eq!(whole(&server, &dir.path().join("pulled"), &trees), 1);
    push(&rig, &server.place("project"), "2");
    assert_eq!(whole(&server, &dir.path().join("pulled"), &trees), 2);
    rig.mount.ok(&["verify", "--deep"]);
}

/// The pushing process is killed at several positions.
fn a_push_that_is_killed(v: Variant) {
    if missing() {
        return;
    }
    let rig = v.start();
    let dir = scratch();
    let server = Server::start(dir.path());
    let trees = prepared(&rig, &server);
    for moment in MOMENTS {
        let pid = Arc::new(AtomicU64::new(0));
        let whom = Arc::clone(&pid);
        let proxy = Proxy::start(server.port, move |ForwardedBytes { sent, .. }| {
            if sent >= moment {
                // The position may be reached before the pid is stored.
                while whom.load(Ordering::Acquire) == 0 {
                    std::thread::yield_now();
                }
                process::kill(u32::try_from(whom.load(Ordering::Acquire)).expect("a number"));
            }
            true
        });
        let mut command = rig.mount.command(&["push", &place(&proxy, "project"), "2"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut child = child.expect("it starts");
        pid.store(child.id().into(), Ordering::Release);
        let ended = wait_limited(&mut child, Duration::from_secs(TOOL_SECONDS));
        assert!(
            ended.is_some_and(|status| !status.success()),
            "{moment}: {ended:?}"
        );
        assert_eq!(
            whole(&server, &dir.path().join("pulled"), &trees),
            1,
            "{moment}"
        );
    }
    push(&rig, &server.place("project"), "2");
    assert_eq!(whole(&server, &dir.path().join("pulled"), &trees), 2);
    rig.mount.ok(&["verify", "--deep"]);
}

/// A killed pull never leaves an incomplete tree marked as whole, and the next pull completes it.
fn a_pull_that_is_killed(v: Variant) {
    if missing() {
        return;
    }
    let rig = v.start();
    let dir = scratch();
    let server = Server::start(dir.path());
    let trees = prepared(&rig, &server);
    push(&rig, &server.place("project"), "2");
    let into = dir.path().join("pulled");
    let place = server.place("project");
    for pause in [0, 60, 200, 350] {
        let _ = fs::remove_dir_all(&into);
        let mut command =
            super::server::ckptfs(&["pull", &place, "--into", into.to_str().expect("a path")]);
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        std::thread::sleep(Duration::from_millis(pause));
        process::kill(child.id());
        let status = wait_limited(&mut child, Duration::from_secs(TOOL_SECONDS)).expect("it ends");
        let mut mark = [0; 200];
        let mark = rustix::fs::getxattr(&into, "user.ckptfs.export", &mut mark[..])
            .map(|length| mark[..length].to_vec());
        let says_whole = mark.is_ok_and(|mark| mark.ends_with(b"whole"));
        assert!(
            !says_whole || copy_at(&into).len() == trees.1.len(),
            "{pause}: {status:?}"
        );
        pull(&place, &into, &[]);
        assert_is(&copy_at(&into), &trees.1, true);
    }
}

for_each_variant! { xfs => a_connection_that_is_cut, a_registry_that_is_killed, a_push_that_is_killed, a_pull_that_is_killed }
