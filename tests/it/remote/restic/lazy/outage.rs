//! Servers that disappear, return, and stall.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::super::kinds::{Kind, Server};
use super::RemoteMount;
use crate::common::command::{fails, run_limited, sh, succeeds};
use crate::common::timing_retries;
use crate::common::wait::{WAIT, seen, wait_until};
use crate::common::{MountOpts, Rig, Variant, for_each_variant, tool};
use crate::remote::restic::User;

const PASS: u8 = 0;
/// Data is not forwarded.
const STALL: u8 = 1;
/// Connections are closed.
const CUT: u8 = 2;

/// A proxy that counts requests and whose behavior can be switched.
struct SwitchableProxy {
    port: u16,
    how: Arc<AtomicU8>,
    requests: Arc<AtomicU64>,
}

impl SwitchableProxy {
    fn start(port: u16) -> SwitchableProxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let own = listener.local_addr().expect("its address").port();
        let (how, requests) = (Arc::<AtomicU8>::default(), Arc::<AtomicU64>::default());
        let (doing, counted) = (Arc::clone(&how), Arc::clone(&requests));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (how, requests) = (Arc::clone(&doing), Arc::clone(&counted));
                thread::spawn(move || one(&client, port, &how, &requests));
            }
        });
        SwitchableProxy {
            port: own,
            how,
            requests,
        }
    }

    fn does(&self, how: u8) {
        self.how.store(how, Ordering::SeqCst);
    }

    fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }
}

fn one(client: &TcpStream, port: u16, how: &AtomicU8, requests: &AtomicU64) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else {
        return;
    };
    let pass = |mut from: &TcpStream, mut to: &TcpStream, counts: bool| {
        let mut buffer = vec![0; 64 << 10];
        let _ = from.set_read_timeout(Some(Duration::from_millis(50)));
        loop {
            let read = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(_) if how.load(Ordering::SeqCst) == CUT => break,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
                Err(_) => break,
            };
            while how.load(Ordering::SeqCst) == STALL {
                thread::sleep(Duration::from_millis(20));
            }
            if counts && buffer.starts_with(b"GET ") {
                requests.fetch_add(1, Ordering::SeqCst);
            }
            if how.load(Ordering::SeqCst) == CUT || to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    };
    thread::scope(|scope| {
        scope.spawn(|| pass(&server, client, false));
        pass(client, &server, true);
    });
}

/// Pushes a tree of small and incompressible files to a bucket behind such a proxy.
fn behind(v: Variant, server: &Server) -> (Rig, User, SwitchableProxy) {
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        sh(dir, "for d in a b c d; do mkdir $d; for n in 1 2; do head -c 3000000 /dev/urandom > $d/$n; done; echo $d > $d/small; done");
    });
    rig.mount.checkpoint();
    let between = SwitchableProxy::start(server.port);
    let user = User::in_bucket(between.port);
    user.push(&rig, &[]);
    (rig, user, between)
}

/// Returns the errno of a failed read, and its duration.
fn fails_to_read(path: &Path) -> (i32, Duration) {
    let began = Instant::now();
    let error = fs::read(path).expect_err("it is not available");
    (error.raw_os_error().unwrap_or(0), began.elapsed())
}

for_each_variant! { xfs => a_server_that_goes_and_comes_back }

fn a_server_that_goes_and_comes_back(v: Variant) {
    let Some(server) = Server::start(Kind::Moto) else {
        return;
    };
    let (rig, user, between) = behind(v, &server);
    let mut lazy = RemoteMount::mount(v, &user, &rig, &["--no-fetch"]);
    let path = lazy.mount.path().to_owned();
    let before = between.requests();
    sh(&path, "find . -printf '%s' > /dev/null; ls -lR > /dev/null");
    assert_eq!(between.requests(), before, "a listing sends no requests");
    let same = |name: &str| {
        assert_eq!(
            fs::read(path.join(name)).expect("read"),
            fs::read(rig.path().join(name)).expect("read"),
            "{name}"
        );
    };
    same("a/1");
    same("a/small");
    between.does(CUT);
    let (errno, took) = fails_to_read(&path.join("c/1"));
    assert!(errno == libc::EIO && took < WAIT, "{errno} after {took:?}");
    // Reads fail immediately once the server is known to be unreachable.
    wait_until("a read fails at once", || {
        let (_, took) = fails_to_read(&path.join("d/1"));
        seen(took < Duration::from_secs(2), took)
    });
    let said = lazy.warnings();
    assert!(said.contains("the remote home does not answer"), "{said}");
    same("a/1");
    let said = lazy.mount.run(&["doctor"]).stdout;
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(said.contains("opening what is not here fails"), "{said}");
    let copy = path.with_file_name("copy");
    let copied = lazy
        .mount
        .run(&["export", "1", copy.to_str().expect("UTF-8")]);
    assert!(!copied.status.success(), "a copy is complete or fails");
    assert_eq!(sh(&path, "ls").lines().count(), 4);
    assert!(
        fs::remove_file(path.join("d/2")).is_err(),
        "content that cannot be captured is not removed"
    );
    assert!(path.join("d/2").exists());
    fs::write(path.join("new"), "written").expect("new files need no remote");
    lazy.mount.checkpoint();
    // A new worker and a new mount both use the fetched content.
    lazy.mount.replace_worker();
    same("a/1");
    lazy.mount.kill();
    lazy.mount.remount();
    same("a/small");
    assert_eq!(fails_to_read(&path.join("c/2")).0, libc::EIO);
    between.does(PASS);
    wait_until("the next open works", || fs::read(path.join("c/1")).is_ok());
    same("c/1");
    same("d/2");
    let said = lazy.warnings();
    assert!(!said.contains("does not answer"), "{said}");
}

for_each_variant! { xfs => a_server_that_says_nothing }

fn a_server_that_says_nothing(v: Variant) {
    timing_retries::retried(|| nothing_is_said(v));
}

fn nothing_is_said(v: Variant) {
    let Some(server) = Server::start(Kind::Moto) else {
        return;
    };
    let (rig, user, between) = behind(v, &server);
    let mut lazy = RemoteMount::impatient(v, &user, &rig, &["--no-fetch"]);
    let path = lazy.mount.path().to_owned();
    fs::read(path.join("a/1")).expect("read");
    between.does(STALL);
    let waiting: Vec<_> = ["b/1", "b/2", "c/1"]
        .map(|name| path.join(name))
        .into_iter()
        .map(|path| thread::spawn(move || fails_to_read(&path)))
        .collect();
    thread::sleep(Duration::from_millis(500));
    // Other operations do not block.
    let began = Instant::now();
    fs::read(path.join("a/1")).expect("local content can be read");
    fs::write(path.join("a/new"), "1").expect("written");
    fs::remove_file(path.join("a/1")).expect("local content is captured and removed");
    lazy.mount.checkpoint();
    sh(&path, "ls -lR > /dev/null");
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    for reader in waiting {
        let (errno, took) = reader.join().expect("no panic");
        assert!(errno == libc::EIO && took < WAIT, "{errno} after {took:?}");
    }
    assert!(
        lazy.warnings().contains("nothing has come for 2 s"),
        "{}",
        lazy.warnings()
    );
    let began = Instant::now();
    lazy.mount.umount();
    assert!(began.elapsed() < WAIT, "{:?}", began.elapsed());
    lazy.mount.remount();
    assert_eq!(fs::read(path.join("a/new")).expect("read"), b"1");
    between.does(PASS);
    wait_until("the next open works", || fs::read(path.join("b/1")).is_ok());
}

for_each_variant! { xfs => one_of_its_crates_is_built }

/// A build fetches only the files it reads, plus a few megabytes of readahead. A build interrupted
/// by the loss of the server succeeds after its return, without a remount.
fn one_of_its_crates_is_built(v: Variant) {
    let Some(server) = Server::start(Kind::Moto) else {
        return;
    };
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        sh(
            dir,
            r#"for name in one two; do
                mkdir -p $name/src $name/docs
                printf '[package]\nname = "%s"\nedition = "2024"\n[workspace]\n' $name > $name/Cargo.toml
                printf 'mod part;\nfn main() { println!("{} {}", part::NAME, part::DATA.len()); }\n' > $name/src/main.rs
                printf 'pub const NAME: &str = "%s";\n' $name > $name/src/part.rs
                printf 'pub static DATA: &[u8] = include_bytes!("data");\n' >> $name/src/part.rs
                head -c 12000000 /dev/urandom > $name/src/data
                for page in $(seq 200); do echo $page > $name/docs/$page.md; done
            done
            printf 'three: main.c\n\tcc -o three main.c\n' > Makefile
            printf '#include <stdio.h>\nint main(void) { puts("three"); return 0; }\n' > main.c"#,
        );
    });
    rig.mount.checkpoint();
    let between = SwitchableProxy::start(server.port);
    let user = User::in_bucket(between.port);
    user.push(&rig, &[]);
    let mut lazy = RemoteMount::mount(v, &user, &rig, &["--no-fetch"]);
    let path = lazy.mount.path().to_owned();
    let build = |name: &str| {
        let mut build = tool("cargo", &["build", "--offline", "-q"]);
        build.current_dir(path.join(name));
        build.env_remove("CARGO_TARGET_DIR");
        build
    };
    let runs = |name: &str| sh(&path.join(name), &format!("target/debug/{name}"));
    succeeds(&mut build("one"), 120);
    assert_eq!(runs("one").trim(), "one 12000000");
    assert!(lazy.files_here() < 10, "{}", lazy.origin());
    between.does(CUT);
    sh(&path, "touch one/src/main.rs");
    succeeds(&mut build("one"), 120);
    let said = fails(&mut build("two"), 120);
    assert!(said.contains("os error 5"), "{said}");
    lazy.mount.kill();
    lazy.mount.remount();
    between.does(PASS);
    wait_until("the build is done", || {
        run_limited(&mut build("two"), 120).status.success()
    });
    assert_eq!(runs("two").trim(), "two 12000000");
    assert_eq!(sh(&path, "make -s && ./three").trim(), "three");
    assert!(lazy.files_here() < 20, "{}", lazy.origin());
}
