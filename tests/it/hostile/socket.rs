//! Clients that violate or flood the control protocol: the mount and the other clients are served.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use super::support::{noise, put, sh};
use crate::common::{Fs, Io, MountOpts, Rig, Variant, run_limited, skip, tool};
use ckptfs_daemon::CONNECTIONS_MAX;

/// Memory limit of the daemon under any input: four long messages with their parsed form, and 64
/// short ones.
const RSS_BYTES_MAX: u64 = 700 << 20;

struct Socket {
    store: OwnedFd,
}

impl Socket {
    fn of(mount: &Path) -> Socket {
        Socket {
            store: rustix::fs::open(
                mount.join(".ckptfs"),
                OFlags::PATH | OFlags::DIRECTORY,
                Mode::empty(),
            )
            .expect("the store"),
        }
    }

    /// Connects; retries while the listener's queue is full.
    fn connect(&self) -> UnixStream {
        let path = format!("/proc/self/fd/{}/control.sock", self.store.as_raw_fd());
        let began = Instant::now();
        loop {
            match UnixStream::connect(&path) {
                Ok(stream) => {
                    stream
                        .set_read_timeout(Some(Duration::from_secs(60)))
                        .expect("a timeout");
                    return stream;
                }
                Err(error) => assert!(began.elapsed() < Duration::from_secs(60), "{error}"),
            }
        }
    }

    /// Sends bytes, and returns the first line of the answer, which is empty if the connection was
    /// closed.
    fn say(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = BufReader::new(stream)
            .take(1 << 20)
            .read_until(b'\n', &mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }
}

/// Runs a test on a mount with a constant workload, which must never stop.
fn with_mount(test: impl FnOnce(&Rig, &Socket)) {
    let v = Variant {
        fs: Fs::Xfs,
        io: Io::Daemon,
    };
    if let Some(reason) = v.unavailable() {
        return skip(&reason);
    }
    let rig = v.start();
    let (stop, writes) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let path = rig.path().join("work");
            while !stop.load(Ordering::Relaxed) {
                put(&path, "work goes on");
                assert_eq!(fs::read_to_string(&path).expect("read"), "work goes on");
                writes.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(1));
            }
        });
        let _stop = Stop(&stop);
        test(&rig, &Socket::of(rig.path()));
        rig.mount.ok(&["log"]);
        let before = writes.load(Ordering::Relaxed);
        crate::common::wait_until("work in the mount continues", || {
            writes.load(Ordering::Relaxed) > before + 2
        });
    });
    let rss = rig.mount.stats()["rss_bytes"].as_u64().expect("rss_bytes");
    eprintln!("the daemon has {} MiB", rss >> 20);
    assert!(rss < RSS_BYTES_MAX, "{rss}");
    let log = fs::read_to_string(rig.path().join(".ckptfs/daemon.log")).expect("the log");
    assert!(!log.contains("panicked"), "{log}");
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn nonsense_is_answered_or_ended_and_nothing_more() {
    with_mount(|rig, socket| {
        let deep = |open: &str, count: usize| {
            format!("{{\"version\":2,\"request\":{}\n", open.repeat(count)).into_bytes()
        };
        let text = |state: &str| {
            format!("{{\"version\":2,\"request\":{{\"show\":{{\"state\":{state}}}}}}}\n")
                .into_bytes()
        };
        let paths = |path: &str, count: usize| {
            let list = vec![path; count].join(",");
            format!("{{\"version\":2,\"request\":{{\"restore\":{{\"to\":\"1\",\"dry_run\":true,\"paths\":[{list}]}}}}}}\n").into_bytes()
        };
        rig.mount.checkpoint();
        let long = "x".repeat(15 << 20);
        let messages: Vec<Vec<u8>> = vec![
            b"\n".to_vec(),
            b"\0\0\0\0\n".to_vec(),
            noise(4096, 1),
            [noise(4096, 2), b"\n".to_vec()].concat(),
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
            b"{\"version\":2,\"request\":{\"status\":null}".to_vec(),
            b"{\"version\":-1,\"request\":{\"status\":null}}\n".to_vec(),
            b"{\"version\":1e999,\"request\":{\"status\":null}}\n".to_vec(),
            deep("[", 100_000),
            deep("{\"checkpoint\":", 100_000),
            text(&format!("\"{long}\"")),
            text(&format!("\"{}\"", "\\u0001".repeat(2 << 20))),
            text("\"\\ud800\""),
            format!("{{\"version\":2,\"request\":\"{long}\"}}\n").into_bytes(),
            paths("\"no/such/path\"", 500_000),
            paths("{\"base64\":\"Ly4uLy4uL2V0Yw==\"}", 1000),
            paths("\"../../etc/passwd\"", 1),
            paths(&format!("\"{}\"", "a/".repeat(30_000)), 3),
            vec![b' '; 17 << 20],
        ];
        for message in &messages {
            let answer = socket.say(message);
            let begin = String::from_utf8_lossy(&message[..message.len().min(60)]).into_owned();
            assert!(
                answer.is_empty() || answer.contains("\"error\""),
                "{begin:?}: {answer}"
            );
            assert!(
                answer.len() < 200_000,
                "{begin:?} is answered with {} bytes",
                answer.len()
            );
        }
        for tag in ["a/b", "..", &"t".repeat(300)] {
            assert_eq!(
                rig.mount.run(&["checkpoint", "--tag", tag]).status.code(),
                Some(1)
            );
        }
        assert_eq!(
            rig.mount
                .run(&["checkpoint", "-m", &"n".repeat(4097)])
                .status
                .code(),
            Some(1)
        );
        assert_eq!(
            rig.mount.log_json().as_array().map(Vec::len),
            Some(1),
            "nothing was done"
        );
    });
}

/// Failed before: 64 clients with incomplete messages blocked all others until they exited.
#[test]
fn half_a_message_and_silence_keep_nobody_out() {
    with_mount(|rig, socket| {
        let halves: Vec<UnixStream> = (0..CONNECTIONS_MAX)
            .map(|_| {
                let mut stream = socket.connect();
                stream.write_all(b"{\"version\":2,\"requ").expect("send");
                stream
            })
            .collect();
        crate::common::wait_until("another client is served", || {
            rig.mount.run(&["log"]).status.success()
        });
        let mut answer = String::new();
        BufReader::new(&halves[0])
            .read_line(&mut answer)
            .expect("an answer");
        assert!(answer.contains("was still incomplete after"), "{answer}");
    });
}

/// Failed before: so did 64 silent connections.
#[test]
fn silent_connections_give_way() {
    with_mount(|rig, socket| {
        let mut silent: Vec<UnixStream> = (0..CONNECTIONS_MAX).map(|_| socket.connect()).collect();
        // Earlier connections may still be open.
        while rig.mount.run(&["log"]).status.success() {
            silent.push(socket.connect());
        }
        crate::common::wait_until("another client is served", || {
            rig.mount.run(&["log"]).status.success()
        });
        for _ in 0..CONNECTIONS_MAX {
            rig.mount.ok(&["log"]);
        }
        let ended = silent.iter().filter(|stream| {
            stream.set_nonblocking(true).expect("non-blocking");
            matches!((&mut &**stream).read(&mut [0]), Ok(0))
        });
        assert!(ended.count() >= 1, "an idle connection was closed");
    });
}

#[test]
fn ten_thousand_messages_and_ten_thousand_connections() {
    with_mount(|rig, socket| {
        let mut stream = BufReader::new(socket.connect());
        let mut answer = String::new();
        for number in 0..10_000 {
            let message: &[u8] = if number % 2 == 0 {
                b"{\"version\":2,\"request\":{\"log\":null}}\n"
            } else {
                b"nonsense\n"
            };
            stream.get_mut().write_all(message).expect("send");
            answer.clear();
            stream.read_line(&mut answer).expect("an answer");
            assert_eq!(answer.contains("\"ok\""), number % 2 == 0, "{answer}");
        }
        // All at once; the answers are read only at the end.
        let mut stream = socket.connect();
        let sender = stream.try_clone().expect("clone");
        let sent = thread::spawn(move || {
            (0..10_000).try_for_each(|_| {
                (&sender).write_all(b"{\"version\":2,\"request\":{\"log\":null}}\n")
            })
        });
        let mut count = 0;
        let mut buffer = vec![0; 1 << 16];
        while count < 10_000 {
            let read = stream.read(&mut buffer).expect("answers");
            assert!(read > 0);
            count += buffer[..read].iter().filter(|byte| **byte == b'\n').count();
        }
        sent.join().expect("thread").expect("sent");
        let began = Instant::now();
        for _ in 0..100 {
            let many: Vec<UnixStream> = (0..100).map(|_| socket.connect()).collect();
            drop(many);
        }
        eprintln!("10,000 connections in {:?}", began.elapsed());
        // Some of the connections may end only after a first answer.
        let mut stats = None;
        crate::common::wait_until("the CLI is served", || {
            let output = rig.mount.run(&["status", "-v", "--json"]);
            stats = output.status.success().then_some(output.stdout);
            stats.is_some()
        });
        let stats: serde_json::Value =
            serde_json::from_slice(&stats.expect("an answer")).expect("json");
        let threads = stats["stats"]["threads"].as_u64().expect("threads");
        assert!(
            threads < 2 * CONNECTIONS_MAX as u64 + 40,
            "{threads} threads"
        );
    });
}

/// The socket checks the credentials of its peer, so the modes of the directories above it grant no
/// access.
#[test]
fn another_user_is_refused_by_the_socket_itself() {
    let v = Variant {
        fs: Fs::Xfs,
        io: Io::Daemon,
    };
    if let Some(reason) = v.unavailable() {
        return skip(&reason);
    }
    let image = crate::common::Image::of(v.fs);
    let (backing, point) = (image.dir("project"), image.dir("mnt"));
    let mount = crate::common::Mount::start(
        &backing,
        &MountOpts {
            mountpoint: Some(point),
            ..MountOpts::new(v.io)
        },
    );
    let ask = |as_user: bool| {
        let mut command = if as_user {
            tool(
                "setpriv",
                &[
                    "--reuid=65534",
                    "--regid=65534",
                    "--clear-groups",
                    env!("CARGO_BIN_EXE_ckptfs"),
                ],
            )
        } else {
            tool(env!("CARGO_BIN_EXE_ckptfs"), &[] as &[&str])
        };
        run_limited(
            command
                .arg("-C")
                .arg(&backing)
                .args(["checkpoint"])
                .current_dir("/"),
            60,
        )
    };
    let refused = |why: &str| {
        let output = ask(true);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(1) && said.contains(why),
            "{said}"
        );
    };
    refused("belongs to another user");
    sh(
        &backing,
        "chmod 755 . .ckptfs; chmod 666 .ckptfs/control.sock",
    );
    refused("controlled by user 0 and by root only");
    assert_eq!(mount.log_json(), serde_json::json!([]), "nothing was done");
    assert!(ask(false).status.success(), "root is served");
}
