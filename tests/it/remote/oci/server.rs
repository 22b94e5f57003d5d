//! A registry on the loopback interface, with its blobs in the directory of the test.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::common::command::{TOOL_SECONDS, succeeds};
use crate::common::wait::wait_until;
use crate::common::{has, skip, tool};

/// A running registry. Dropping it kills it.
pub struct Server {
    child: Option<Child>,
    pub port: u16,
    dir: PathBuf,
    password: bool,
    /// Its certificate and key.
    tls: Option<(PathBuf, PathBuf)>,
}

/// `user` with the password `secret`, in the format of htpasswd.
const HTPASSWD: &str = "user:$2b$04$ho5KIYsh5JOU9LsBJ4LZXu7Am.F2FJGWQHvvcFAhz.Lq/q488Ooeq\n";

/// Returns whether a program is missing, and reports the test as skipped.
pub fn missing() -> bool {
    let lacks = ["docker-registry", "skopeo", "umoci"]
        .into_iter()
        .find(|program| !has(program));
    if let Some(program) = lacks {
        skip(&format!("{program} is not installed (make deps)"));
    }
    lacks.is_some()
}

/// Returns an unused port.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    listener.local_addr().expect("its address").port()
}

impl Server {
    /// Starts a registry without authentication, with its data below `dir`.
    pub fn start(dir: &Path) -> Server {
        Server::with(dir, false)
    }

    /// Starts a registry with optional password authentication.
    pub fn with(dir: &Path, password: bool) -> Server {
        Server::new(dir, password, None)
    }

    /// Starts a registry with TLS, given a certificate and its key.
    pub fn with_tls(dir: &Path, certificate: (PathBuf, PathBuf)) -> Server {
        Server::new(dir, false, Some(certificate))
    }

    fn new(dir: &Path, password: bool, tls: Option<(PathBuf, PathBuf)>) -> Server {
        let dir = dir.join("registry");
        fs::create_dir_all(dir.join("blobs")).expect("mkdir");
        let mut server = Server {
            child: None,
            port: free_port(),
            dir,
            password,
            tls,
        };
        server.again();
        server
    }

    /// Starts or restarts it on the same port.
    pub fn again(&mut self) {
        let config = self.dir.join("config.yml");
        let tls = self.tls.as_ref().map(|(certificate, key)| {
            let (certificate, key) = (certificate.display(), key.display());
            format!(", tls: {{certificate: {certificate}, key: {key}}}")
        });
        let tls = tls.unwrap_or_default();
        let mut text = format!(
            "version: 0.1\nlog: {{level: warn}}\nstorage: {{filesystem: {{rootdirectory: {}}}, delete: {{enabled: true}}}}\n\
             http: {{addr: '127.0.0.1:{}'{tls}}}\n",
            self.dir.join("blobs").display(),
            self.port
        );
        if self.password {
            let file = self.dir.join("htpasswd");
            fs::write(&file, HTPASSWD).expect("written");
            text += &format!(
                "auth: {{htpasswd: {{realm: test, path: {}}}}}\n",
                file.display()
            );
        }
        fs::write(&config, text).expect("written");
        let log = File::create(self.dir.join("log")).expect("a log");
        let child = tool("docker-registry", &["serve"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn();
        self.child = Some(child.expect("docker-registry starts"));
        wait_until("the registry answers", || {
            TcpStream::connect(("127.0.0.1", self.port))
        });
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Kills it, as in a crash.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("killed");
            child.wait().expect("ended");
        }
    }

    /// Returns an address in the registry.
    pub fn place(&self, rest: &str) -> String {
        format!("oci://127.0.0.1:{}/{rest}", self.port)
    }

    pub fn blobs(&self) -> PathBuf {
        self.dir.join("blobs")
    }

    /// Returns the manifest of a tag, by skopeo, or `None` if it does not exist.
    pub fn inspect(&self, image: &str) -> Option<Value> {
        let from = format!("docker://127.0.0.1:{}/{image}", self.port);
        let mut skopeo = tool("skopeo", &["inspect", "--tls-verify=false", "--raw", &from]);
        let output = skopeo.output().expect("skopeo runs");
        output
            .status
            .success()
            .then(|| serde_json::from_slice(&output.stdout).expect("a manifest"))
    }

    /// Copies an image with skopeo, unpacks it with umoci, and returns the path of its tree.
    pub fn unpacked(&self, image: &str, dir: &Path) -> PathBuf {
        fs::create_dir(dir).expect("mkdir");
        let layout = dir.join("layout");
        let from = format!("docker://127.0.0.1:{}/{image}", self.port);
        let to = format!("oci:{}:x", layout.display());
        let copy = [
            "copy",
            "--quiet",
            "--insecure-policy",
            "--src-tls-verify=false",
            &from,
            &to,
        ];
        succeeds(&mut tool("skopeo", &copy), TOOL_SECONDS);
        let bundle = dir.join("bundle");
        let mut umoci = tool("umoci", &["unpack", "--image"]);
        umoci.arg(format!("{}:x", layout.display())).arg(&bundle);
        succeeds(&mut umoci, TOOL_SECONDS);
        bundle.join("rootfs")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns a command of the binary, without a mount.
pub fn ckptfs(arguments: &[&str]) -> Command {
    let mut command = tool(env!("CARGO_BIN_EXE_ckptfs"), arguments);
    without_logins(&mut command);
    command
}

/// Hides the registry credentials of the user who runs the tests.
pub fn without_logins(command: &mut Command) -> &mut Command {
    command
        .env("HOME", "/nonexistent")
        .env_remove("XDG_RUNTIME_DIR")
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("DOCKER_CONFIG")
        .env_remove("REGISTRY_AUTH_FILE")
}
