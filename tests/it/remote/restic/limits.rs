//! Servers and repositories that send too much: memory, work and disk space are limited, and a
//! mount survives.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use serde_json::json;

use super::hostile::forge;
use super::kinds::{Kind, Server};
use super::lazy::RemoteMount;
use super::{SECONDS, User};
use crate::common::command::{fails, run_limited};
use crate::common::tree::names;
use crate::common::wait::wait_until;
use crate::common::{MountOpts, Variant, for_each_variant, tool};

/// More memory than any of these operations needs.
const MEMORY: u64 = 1500 << 20;

/// Checks that a verb is rejected with a hint. With more than [`MEMORY`] it would die.
fn is_refused(command: &Command, says: &str) {
    let mut limited = tool("prlimit", &[&format!("--data={MEMORY}"), "--"]);
    limited.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited.current_dir(command.get_current_dir().expect("set"));
    let said = fails(&mut limited, SECONDS);
    let is_sentence = said.starts_with("Error: ") && said.contains("Hint: ");
    assert!(is_sentence && said.contains(says), "{says}: {said}");
}

fn key_file(n: u64, r: u64, p: u64) -> String {
    let (data, salt) = ("A".repeat(160), "c3Nz".repeat(21));
    json!({"kdf": "scrypt", "N": n, "r": r, "p": p, "data": data, "salt": salt}).to_string()
}

fn put_key(user: &User, number: usize, text: &str) {
    let keys = user.repository().join("keys");
    fs::write(keys.join(format!("{number:064x}")), text).expect("written");
}

/// Failed before: aborted on an allocation of 2 TiB, used 4 GiB, or did not end.
#[test]
fn a_key_file_that_asks_for_much_is_refused() {
    let user = User::new();
    let keys = user.repository().join("keys");
    let own = names(&keys).remove(0);
    let list = || user.command(user.dir.path(), &["remote", "log", "home", "--all"]);
    for (n, r, p, says) in [
        (1 << 31, 8, 1, "asks for 2097153 MiB of memory"),
        (1 << 22, 8, 1, "asks for 4097 MiB of memory"),
        (2, 1 << 29, 1, "MiB of memory"),
        (1 << 15, 8, 1 << 12, "asks for more work"),
        (0, 8, 1, "has parameters"),
    ] {
        fs::rename(keys.join(&own), user.dir.path().join("key")).expect("moved");
        put_key(&user, 1, &key_file(n, r, p));
        is_refused(&list(), says);
        // It does not prevent the password from opening the valid key.
        fs::rename(user.dir.path().join("key"), keys.join(&own)).expect("moved");
        let ran = run_limited(&mut list(), SECONDS);
        assert!(ran.status.success(), "{ran:?}");
    }
    // Limits on the work of all keys together, and on their number.
    (1..=64).for_each(|number| put_key(&user, number, &key_file(1 << 17, 8, 2)));
    is_refused(&list(), "a key file is one of more than 64");
    fs::remove_file(keys.join(format!("{:064x}", 64))).expect("removed");
    is_refused(&list(), "ask for more work");
    let large = fs::File::create(keys.join(&own)).expect("made");
    large.set_len(3 << 30).expect("a hole");
    is_refused(&list(), "a key file has more than 65536 bytes");
}

for_each_variant! { xfs => a_mount_goes_on_whatever_the_keys_are }

/// Failed before: the next open killed each new worker.
fn a_mount_goes_on_whatever_the_keys_are(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        for name in ["here", "away"] {
            fs::write(dir.join(name), name.repeat(1000)).expect("written");
        }
    });
    rig.mount.checkpoint();
    let user = User::new();
    user.push(&rig, &[]);
    let lazy = RemoteMount::impatient(v, &user, &rig, &["--no-fetch"]);
    let path = lazy.mount.path().to_owned();
    let keys = user.repository().join("keys");
    let own = keys.join(names(&keys).remove(0));
    let kept = fs::read(&own).expect("a key");
    let pid = daemon(&lazy);
    for (n, r, p) in [(1 << 31, 8, 1), (1 << 22, 8, 1), (1 << 15, 8, 1 << 20)] {
        fs::set_permissions(&own, fs::Permissions::from_mode(0o600)).expect("ours");
        fs::write(&own, key_file(n, r, p)).expect("written");
        assert!(fs::read(path.join("away")).is_err());
        assert_eq!(daemon(&lazy), pid, "the daemon has exited");
    }
    assert!(lazy.warnings().contains("asks for"), "{}", lazy.warnings());
    assert!(peak(pid) < 700 << 10, "{} KiB", peak(pid));
    fs::write(&own, kept).expect("written");
    wait_until("it can be read", || fs::read(path.join("away")).is_ok());
}

/// Returns the process id of the worker.
fn daemon(lazy: &RemoteMount) -> u64 {
    let pid = &lazy.mount.status_json()["daemon"]["pid"];
    pid.as_u64().expect("a number")
}

/// Returns the peak resident memory of a process in KiB.
fn peak(pid: u64) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number
        .and_then(|number| number.parse().ok())
        .expect("a number")
}

/// Failed before: 100 KiB decompressed to 3 GiB.
#[test]
fn what_is_decompressed_has_limits() {
    for kind in ["tree", "index", "snapshot", "config", "blob"] {
        let user = User::new();
        // The compressed size must not exceed the 64 KiB limit of a configuration.
        let gib = if kind == "config" { 1 } else { 3 };
        let told = json!([{"bomb": kind, "gib": gib, "tree": [{"name": "f", "text": "f"}]}]);
        if forge(&user, &told).is_none() {
            return;
        }
        let into = user.dir.path().join("into");
        let pull = ["pull", "home", "--into", into.to_str().expect("UTF-8")];
        let says = match kind {
            "tree" => "a directory that takes more than 536870912 bytes of memory",
            "index" => "a file of the index has more than 67108864 bytes, decompressed",
            "snapshot" => "a snapshot has more than 4194304 bytes, decompressed",
            "config" => {
                "the configuration of the repository has more than 1048576 bytes, decompressed"
            }
            _ => "another length than the index says",
        };
        is_refused(&user.command(user.dir.path(), &pull), says);
        if kind == "index" {
            let from = ["mount", "--from", "home", into.to_str().expect("UTF-8")];
            is_refused(&user.command(user.dir.path(), &from), says);
        }
    }
}

for_each_variant! { xfs => a_mount_takes_no_more_than_a_file_has }

/// Failed before: one read of a one-byte file allocated gigabytes.
fn a_mount_takes_no_more_than_a_file_has(v: Variant) {
    let rig = v.start();
    let user = User::new();
    let told = json!([{"bomb": "blob", "gib": 3, "tree": [{"name": "f", "text": "f"}]}]);
    if forge(&user, &told).is_none() {
        return;
    }
    let lazy = RemoteMount::mount(v, &user, &rig, &["--no-fetch"]);
    let pid = daemon(&lazy);
    assert!(fs::read(lazy.mount.path().join("f")).is_err());
    assert_eq!(daemon(&lazy), pid);
    assert!(peak(pid) < 700 << 10, "{} KiB", peak(pid));
    assert!(
        lazy.warnings().contains("another length"),
        "{}",
        lazy.warnings()
    );
}

/// Failed before: 27 directories filled the disk.
#[test]
fn a_snapshot_has_a_limit_of_entries() {
    let user = User::new();
    let told = json!([{"levels": 24}, {"levels": 3}]);
    let Some(snapshots) = forge(&user, &told) else {
        return;
    };
    let into = user.dir.path().join("into");
    let target = into.to_str().expect("UTF-8");
    let from = format!("home:{}", snapshots[0]);
    let says = "has more than 16777216 entries";
    let pull = ["pull", "home", &snapshots[0], "--into", target];
    is_refused(&user.command(user.dir.path(), &pull), says);
    let mount = ["mount", "--from", &from, target];
    let elsewhere = user.dir.path().join("mounted");
    let mount = [
        mount[0],
        mount[1],
        mount[2],
        elsewhere.to_str().expect("UTF-8"),
    ];
    is_refused(&user.command(user.dir.path(), &mount), says);
    for dir in [&into, &elsewhere] {
        assert!(names(dir).iter().all(|name| name == ".ckptfs"), "{dir:?}");
    }
    // A smaller snapshot of the same kind is pulled in full.
    let whole = user.dir.path().join("whole");
    let pull = [
        "pull",
        "home",
        &snapshots[1],
        "--into",
        whole.to_str().expect("UTF-8"),
    ];
    let pulled = user.json(user.dir.path(), &pull);
    assert_eq!(pulled["made"], 2 + 4 + 8 + 8, "{pulled}");
}

/// Serves HTTP requests with `answer`, and returns the port.
fn serve(
    answer: impl Fn(&str, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static,
) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            thread::spawn(move || {
                let mut lines = BufReader::new(client.try_clone().expect("a socket")).lines();
                while let Some(Ok(request)) = lines.next() {
                    while lines
                        .next()
                        .is_some_and(|line| line.is_ok_and(|line| !line.is_empty()))
                    {
                    }
                    if answer(&request, &mut client).is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

fn send(to: &mut TcpStream, headers: &str, body: &str) -> std::io::Result<()> {
    let length = body.len();
    write!(
        to,
        "HTTP/1.1 200 OK\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    )
}

/// Failed before: 4 GiB of an object were buffered in memory.
#[test]
fn what_a_server_sends_has_a_limit() {
    let sent = Arc::new(AtomicU64::new(0));
    for (endless, says) in [
        ("GET /keys/ab", "has more than 65536 bytes"),
        ("GET /keys/ ", "has more than 8320 bytes"),
    ] {
        let counted = Arc::clone(&sent);
        let port = serve(move |request, to| {
            if request.starts_with(endless) {
                write!(
                    to,
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
                    1_u64 << 40
                )?;
                let chunk = [b' '; 64 << 10];
                loop {
                    to.write_all(&chunk)?;
                    counted.fetch_add(chunk.len() as u64, Ordering::SeqCst);
                }
            }
            let list = json!([{"name": "ab".repeat(32), "size": 300}]).to_string();
            send(
                to,
                "",
                if request.starts_with("GET /keys/ ") {
                    &list
                } else {
                    ""
                },
            )
        });
        let user = User::new();
        user.force(&format!("rest:http://127.0.0.1:{port}/"));
        is_refused(
            &user.command(user.dir.path(), &["remote", "log", "home", "--all"]),
            says,
        );
    }
    // Includes bytes in socket buffers.
    let sent = sent.load(Ordering::SeqCst);
    assert!(sent < 64 << 20, "{sent}");
}

/// Failed before: pages were requested without end.
#[test]
fn a_list_of_a_bucket_has_an_end() {
    for objects in [0_u64, 40] {
        let pages = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&pages);
        let port = serve(move |request, to| {
            let dated = "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nETag: \"x\"\r\n";
            if !request.contains("list-type=2") {
                return send(to, dated, "");
            }
            let page = counted.fetch_add(1, Ordering::SeqCst);
            let contents: String = (0..objects)
                .map(|n| format!(
                    "<Contents><Key>some/project/keys/{:064x}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
                     <ETag>\"x\"</ETag><Size>300</Size></Contents>",
                    page * objects + n
                ))
                .collect();
            let list = format!(
                "<?xml version=\"1.0\"?><ListBucketResult><Name>bucket</Name><KeyCount>{objects}</KeyCount>\
                 <IsTruncated>true</IsTruncated><NextContinuationToken>t{page}</NextContinuationToken>{contents}</ListBucketResult>"
            );
            send(to, "Content-Type: application/xml\r\n", &list)
        });
        let user = User::new();
        user.force(&super::bucket(port));
        let list = user.command(user.dir.path(), &["remote", "log", "home", "--all"]);
        is_refused(&list, "there are more than 64, or there is no end");
        let pages = pages.load(Ordering::SeqCst);
        assert!(pages < 20, "{pages}");
    }
}

for_each_variant! { xfs => what_is_kept_here_is_for_its_owner_alone }

/// Failed before: other users could read the cache of a repository.
fn what_is_kept_here_is_for_its_owner_alone(v: Variant) {
    let Some(server) = Server::start(Kind::Rest) else {
        return;
    };
    let user = User::of(&server);
    let cache = user.dir.path().join("cache/ckptfs");
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        fs::write(dir.join("f"), "f").expect("written");
    });
    rig.mount.checkpoint();
    user.push(&rig, &[]);
    assert!(are_private(&cache) > 3);
    // A cache that an older version left open becomes private.
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o755)).expect("opened");
    assert_eq!(user.log(&rig), [1]);
    are_private(&cache);
}

/// Checks that only the owner can access `at`, and returns the number of files in it.
fn are_private(at: &Path) -> usize {
    let mode = fs::metadata(at).expect("there").permissions().mode() & 0o777;
    if !at.is_dir() {
        assert_eq!(mode, 0o600, "{at:?}");
        return 1;
    }
    assert_eq!(mode, 0o700, "{at:?}");
    names(at)
        .iter()
        .map(|name| are_private(&at.join(name)))
        .sum()
}
