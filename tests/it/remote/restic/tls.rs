//! Servers with trusted and with untrusted certificates.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::Instant;

use super::kinds::{Kind, Server};
use super::{SECONDS, User, pulled};
use crate::common::command::{fails, sh, succeeds};
use crate::common::tree::{assert_same, tree};
use crate::common::wait::{WAIT, wait_until};
use crate::common::{Rig, Variant, for_each_variant, scratch, tool};

/// Creates an authority, `ca.pem`, and returns a certificate from it for these names, with its key.
pub fn certificate(dir: &Path, names: &str) -> (PathBuf, PathBuf) {
    certificate_for(dir, names, 2)
}

/// Like [`certificate`], valid for `days` days.
fn certificate_for(dir: &Path, names: &str, days: i32) -> (PathBuf, PathBuf) {
    let script = format!(
        "new() {{ openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout $1.key \"${{@:2}}\" 2>&1; }}
         new ca -x509 -subj /CN=ca-of-the-test -days 2 -out ca.pem
         new server -subj /CN=server -addext 'subjectAltName={names}' -out server.csr
         openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days {days} -copy_extensions copy -out server.pem 2>&1"
    );
    sh(dir, &script);
    (dir.join("server.pem"), dir.join("server.key"))
}

for_each_variant! { xfs => a_certificate_that_is_known_and_one_that_is_not }

fn a_certificate_that_is_known_and_one_that_is_not(v: Variant) {
    let rig = v.start();
    rig.mount.checkpoint();
    let expected = tree(rig.path());
    let dir = scratch();
    let (certificate, key) = certificate(dir.path(), "IP:127.0.0.1");
    let authority = dir.path().join("ca.pem").display().to_string();
    for kind in [Kind::S3, Kind::Rest] {
        let Some(server) = Server::with(kind, Some((&certificate, &key))) else {
            return;
        };
        let url = server.url_at(server.port);
        assert!(url.contains(":https://"), "{url}");
        let mut user = User::new();
        user.variables = server.variables(server.port);
        let add = ["remote", "add", "home", &url, "--force"];
        let said = fails(&mut user.command(rig.path(), &add), 60);
        eprintln!("{kind:?}: {said}");
        assert!(
            said.contains("the server's certificate is not to be trusted"),
            "{said}"
        );
        assert!(said.contains("SSL_CERT_FILE"), "{said}");
        // A certificate from a trusted authority must match the address.
        let to_name = url.replace("127.0.0.1", "localhost");
        let add_name = ["remote", "add", "home", &to_name, "--force"];
        let known = ("SSL_CERT_FILE".to_owned(), authority.clone());
        user.variables.push(known);
        let mut by_name = user.command(rig.path(), &add_name);
        let said = fails(by_name.env("NO_PROXY", "localhost"), 60);
        assert!(said.contains("certificate is not to be trusted"), "{said}");
        succeeds(&mut user.command(rig.path(), &add), SECONDS);
        assert_eq!(user.push(&rig, &[]).len(), 1);
        assert_eq!(user.log(&rig), [1]);
        let into = dir.path().join(format!("{kind:?}"));
        user.pull(&rig, "1", &into);
        assert_same(&pulled(&into), &expected);
    }
}

/// Serves `first` on the first byte received, then `more` repeatedly. Returns the port.
fn sends(first: &'static [u8], more: &'static [u8]) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("its address").port();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            thread::spawn(move || {
                let _ = client.read(&mut [0]);
                let mut sent = client.write_all(first);
                while sent.is_ok() && !more.is_empty() {
                    sent = client.write_all(more);
                }
                thread::sleep(WAIT);
            });
        }
    });
    port
}

/// openssl(1) with this certificate and key: it completes handshakes but sends no data.
struct TlsServer {
    process: Child,
    port: u16,
}

impl TlsServer {
    fn start((certificate, key): &(PathBuf, PathBuf)) -> TlsServer {
        let free = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = free.local_addr().expect("its number").port();
        drop(free);
        let mut server = tool("openssl", &["s_server", "-quiet", "-cert"]);
        server.arg(certificate).arg("-key").arg(key);
        server.args(["-accept", &port.to_string()]);
        let server = server.stdin(Stdio::piped()).stdout(Stdio::null());
        let process = server.stderr(Stdio::null()).spawn().expect("openssl runs");
        let speaker = TlsServer { process, port };
        wait_until("openssl listens", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        speaker
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Idle timeout in seconds.
const IDLE: &str = "3";

/// Checks that each verb that contacts a server fails in time, with cause and hint. Where the verbs
/// wait for a timeout, two are enough.
fn is_refused(user: &User, rig: &Rig, url: &str, expected: [&str; 2]) {
    let (idle, first) = match expected[0].contains(IDLE) {
        true => (IDLE, 3),
        false => ("30", 0),
    };
    user.force(url);
    let into = user.dir.path().join("into").display().to_string();
    let lazy = user.dir.path().join("lazy").display().to_string();
    let verbs = [
        &["remote", "add", "other", url][..],
        &["push", "home"],
        &["remote", "log", "home"],
        &["pull", "home", "--into", &into],
        &["mount", "--from", "home:latest", &lazy],
    ];
    for verb in &verbs[first..] {
        let mut command = user.command(rig.path(), verb);
        let began = Instant::now();
        let said = fails(command.env("CKPTFS_REMOTE_TIMEOUT", idle), SECONDS);
        for part in expected {
            assert!(said.contains(part), "{verb:?}: {said}");
        }
        assert!(began.elapsed() < WAIT, "{verb:?}: {:?}", began.elapsed());
    }
}

for_each_variant! { xfs => what_is_wrong_with_tls_is_reported_with_what_helps }

/// Failed before: for a certificate that had expired or had another name, the hint was to trust its
/// authority. A reply that is not TLS was requested six times, with the hint to run the command
/// again.
fn what_is_wrong_with_tls_is_reported_with_what_helps(v: Variant) {
    let rig = v.start();
    rig.mount.checkpoint();
    let mut user = User::new();
    let dir = scratch();
    for (names, days, expected) in [
        ("IP:127.0.0.1", -1, ["Expired", "check the clock"]),
        (
            "DNS:elsewhere.example",
            2,
            ["elsewhere.example", "use a name"],
        ),
    ] {
        let speaker = TlsServer::start(&certificate_for(dir.path(), names, days));
        let authority = dir.path().join("ca.pem").display().to_string();
        user.variables = vec![("SSL_CERT_FILE".to_owned(), authority)];
        let url = format!("rest:https://127.0.0.1:{}/", speaker.port);
        is_refused(&user, &rig, &url, expected);
    }
    let no_tls = ["does not speak TLS", "check the host and the port"];
    let stalls = [" 3 s", "Hint: "];
    for (first, more, expected) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], &b""[..], no_tls),
        (&[0x5a; 5000], b"", no_tls),
        // A message of 16 MiB begins, followed by empty records.
        (b"\x16\x03\x03\0\x04\x02\xff\xff\xff", &[0; 16384], no_tls),
        (b"", b"\x15\x03\x03\0\x02\x01\x5a", no_tls),
        // The handshake begins and stalls.
        (b"", b"", stalls),
        (b"\x16\x03\x03\x40\0\x02\0\x3f\xf0", b"", stalls),
    ] {
        let url = format!("rest:https://127.0.0.1:{}/", sends(first, more));
        is_refused(&user, &rig, &url, expected);
    }
}
