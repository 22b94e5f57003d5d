//! Servers of repositories on the loopback interface, one for each kind of address.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::{BUCKET_USER, bucket};
use crate::common::command::{stdout_of, succeeds};
use crate::common::wait::wait_until;
use crate::common::{scratch, skip, tool};

/// Password of the servers with authentication.
pub const SECRET: &str = "secret-of-the-test";

/// The directory where `tests/tools.sh` installs third-party programs.
fn tools() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/python/bin")
}

/// Kinds of servers that an address can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// S3 in memory: the Python package moto.
    Moto,
    /// S3, by rclone.
    S3,
    /// The protocol of restic's REST server, by rclone.
    Rest,
    /// An SFTP server, accessed through rclone.
    Sftp,
}

impl Kind {
    /// Environment variables with the server's credentials.
    fn own_variables(self) -> Vec<(&'static str, String)> {
        match self {
            Kind::Moto => Vec::new(),
            Kind::S3 => {
                let [(_, id), (_, key), _] = BUCKET_USER;
                // A comma-separated list of such pairs.
                vec![("RCLONE_AUTH_KEY", format!("\"{id},{key}\""))]
            }
            Kind::Rest | Kind::Sftp => vec![
                ("RCLONE_USER", "user".to_owned()),
                ("RCLONE_PASS", SECRET.to_owned()),
            ],
        }
    }
}

/// A server. Dropping it kills it.
pub struct Server {
    server: Child,
    pub port: u16,
    kind: Kind,
    dir: TempDir,
    is_tls: bool,
}

impl Server {
    /// Starts a server. If it is not installed, reports the test as skipped and returns `None`.
    pub fn start(kind: Kind) -> Option<Server> {
        Server::with(kind, None)
    }

    /// Like [`Server::start`]; `tls` contains a certificate and its key.
    pub fn with(kind: Kind, tls: Option<(&Path, &Path)>) -> Option<Server> {
        let program = tools().join(match kind {
            Kind::Moto => "moto_server",
            _ => "rclone",
        });
        if !program.exists() {
            skip(&format!(
                "{} is not installed: tests/tools.sh could not install it",
                program.display()
            ));
            return None;
        }
        let dir = scratch();
        fs::create_dir(dir.path().join("bucket")).expect("mkdir");
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = free.local_addr().expect("its number").port();
        drop(free);
        let mut command = Command::new(program);
        let address = format!("127.0.0.1:{port}");
        match kind {
            Kind::Moto => command.args(["-H", "127.0.0.1", "-p", &port.to_string()]),
            Kind::S3 => command.args(["serve", "s3", "--addr", &address]),
            Kind::Rest => command.args(["serve", "restic", "--addr", &address]),
            Kind::Sftp => command.args(["serve", "sftp", "--addr", &address]),
        };
        if kind != Kind::Moto {
            command.arg(dir.path());
        }
        if let Some((certificate, key)) = tls {
            command.arg("--cert").arg(certificate).arg("--key").arg(key);
        }
        command.envs(kind.own_variables());
        let log = fs::File::create(dir.path().join("log")).expect("a log");
        let server = command
            .env("RCLONE_CONFIG", dir.path().join("none"))
            .env("RCLONE_CACHE_DIR", dir.path().join("cache"))
            .env("HOME", dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("it starts");
        let server = Server {
            server,
            port,
            kind,
            dir,
            is_tls: tls.is_some(),
        };
        wait_until("the server answers", || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
        });
        if kind == Kind::Moto {
            let bucket = format!("http://{address}/bucket");
            succeeds(
                &mut tool("curl", &["-sS", "--noproxy", "*", "-X", "PUT", &bucket]),
                60,
            );
        }
        Some(server)
    }

    pub fn pid(&self) -> u32 {
        self.server.id()
    }

    /// Returns the address of a repository on the server, as reached at `port`.
    pub fn url_at(&self, port: u16) -> String {
        let tls = if self.is_tls { "s" } else { "" };
        match self.kind {
            Kind::Moto | Kind::S3 => bucket(port).replace("http:", &format!("http{tls}:")),
            Kind::Rest => format!("rest:http{tls}://127.0.0.1:{port}/some/project"),
            Kind::Sftp => "rclone:far:some/project".to_owned(),
        }
    }

    /// Returns the address in restic's syntax.
    pub fn restic_url(&self) -> String {
        let url = self.url_at(self.port);
        match self.kind {
            Kind::Rest => url.replace("://", &format!("://user:{SECRET}@")),
            _ => url,
        }
    }

    /// Returns the environment variables of a client that connects to `port`.
    pub fn variables(&self, port: u16) -> Vec<(String, String)> {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut all = vec![("PATH".to_owned(), format!("{}:{path}", tools().display()))];
        let mut set = |name: &str, value: &str| all.push((name.to_owned(), value.to_owned()));
        match self.kind {
            Kind::Moto | Kind::S3 => {
                BUCKET_USER
                    .iter()
                    .for_each(|(name, value)| set(name, value));
            }
            Kind::Rest => {
                set("RESTIC_REST_USERNAME", "user");
                set("RESTIC_REST_PASSWORD", SECRET);
            }
            Kind::Sftp => {
                let rclone = tools().join("rclone");
                let mut obscure = tool(rclone.to_str().expect("UTF-8"), &["obscure", SECRET]);
                let obscured = stdout_of(&mut obscure, 60);
                let none = self.dir.path().join("none");
                set("RCLONE_CONFIG", &none.display().to_string());
                set("RCLONE_CONFIG_FAR_TYPE", "sftp");
                set("RCLONE_CONFIG_FAR_HOST", "127.0.0.1");
                set("RCLONE_CONFIG_FAR_PORT", &port.to_string());
                set("RCLONE_CONFIG_FAR_USER", "user");
                set("RCLONE_CONFIG_FAR_PASS", obscured.trim());
            }
        }
        all
    }

    /// Returns the directory of the repository, or `None` if it is in memory.
    pub fn kept_in(&self) -> Option<PathBuf> {
        let dir = self.dir.path();
        match self.kind {
            Kind::Moto => None,
            Kind::S3 => Some(dir.join("bucket/some/project")),
            Kind::Rest | Kind::Sftp => Some(dir.join("some/project")),
        }
    }

    /// Returns the bytes of content stored by moto.
    pub fn kept(&self) -> u64 {
        let list = format!(
            "http://127.0.0.1:{}/bucket?list-type=2&prefix=some/project/data",
            self.port
        );
        let listed = stdout_of(&mut tool("curl", &["-sS", "--noproxy", "*", &list]), 60);
        let sizes = listed.split("<Size>").skip(1);
        sizes
            .filter_map(|rest| rest.split('<').next()?.parse::<u64>().ok())
            .sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
