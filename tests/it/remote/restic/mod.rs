//! Repositories in restic's format, as read by restic.

mod auto;
mod faults;
mod hostile;
pub mod kinds;
mod lazy;
mod limits;
mod pull_branch;
mod roundtrip;
mod rustic;
mod servers;
mod stall;
mod system;
pub mod tls;
mod upkeep;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::common::command::{stdout_of, succeeds};
use crate::common::tree::Tree;
use crate::common::{Rig, scratch, tool, tree_of};

/// Seconds for one push or pull of a small tree.
const SECONDS: u64 = 120;
const PASSWORD: &str = "correct horse";

/// A user with a single remote, `home`.
struct User {
    dir: TempDir,
    url: String,
    /// The address in restic's syntax.
    restic: String,
    /// Environment variables for the server.
    variables: Vec<(String, String)>,
}

/// Credentials for the bucket server, which accepts any.
const BUCKET_USER: [(&str, &str); 3] = [
    ("AWS_ACCESS_KEY_ID", "test"),
    ("AWS_SECRET_ACCESS_KEY", "key-of-the-test"),
    ("AWS_REGION", "us-east-1"),
];

/// Returns the address of a repository in the bucket of the server on `port`.
fn bucket(port: u16) -> String {
    format!("s3:http://127.0.0.1:{port}/bucket/some/project")
}

impl User {
    /// With a repository in a directory.
    fn new() -> User {
        let dir = scratch();
        let url = dir.path().join("repository").display().to_string();
        User::with(dir, url.clone(), url, Vec::new())
    }

    fn with(dir: TempDir, url: String, restic: String, variables: Vec<(String, String)>) -> User {
        let user = User {
            dir,
            url,
            restic,
            variables,
        };
        user.add(&user.url);
        user
    }

    /// With a repository on a server.
    fn of(server: &kinds::Server) -> User {
        let (url, restic) = (server.url_at(server.port), server.restic_url());
        User::with(scratch(), url, restic, server.variables(server.port))
    }

    /// With a repository in the bucket of the server on `port`.
    fn in_bucket(port: u16) -> User {
        User::with(scratch(), bucket(port), bucket(port), Vec::new())
    }

    fn add(&self, url: &str) {
        let mut add = self.command(self.dir.path(), &["remote", "add", "home", url, "--force"]);
        succeeds(&mut add, SECONDS);
    }

    /// Changes the address of the remote without a check.
    fn force(&self, url: &str) {
        let config = self.dir.path().join("config/ckptfs/remotes.toml");
        let text = fs::read_to_string(&config).expect("the remotes");
        let line = |line: &str| match line.starts_with("url") {
            true => format!("url = \"{url}\"\n"),
            false => format!("{line}\n"),
        };
        fs::write(&config, text.lines().map(line).collect::<String>()).expect("written");
    }

    fn repository(&self) -> PathBuf {
        self.dir.path().join("repository")
    }

    fn command(&self, dir: &Path, arguments: &[&str]) -> Command {
        let mut command = tool(env!("CARGO_BIN_EXE_ckptfs"), arguments);
        command
            .current_dir(dir)
            .env("XDG_CONFIG_HOME", self.dir.path().join("config"))
            .env("XDG_CACHE_HOME", self.dir.path().join("cache"))
            .env("CKPTFS_REMOTE_PASSWORD", PASSWORD)
            .env("NO_PROXY", "127.0.0.1")
            .envs(BUCKET_USER)
            .envs(self.variables.iter().cloned());
        command
    }

    fn json(&self, dir: &Path, arguments: &[&str]) -> Value {
        let mut command = self.command(dir, arguments);
        command.arg("--json");
        serde_json::from_str(&stdout_of(&mut command, SECONDS)).expect("JSON")
    }

    /// Pushes, and returns the output for each checkpoint.
    fn push(&self, rig: &Rig, arguments: &[&str]) -> Vec<Value> {
        let all = [&["push", "home"], arguments].concat();
        let answer = self.json(rig.path(), &all);
        answer["pushed"].as_array().expect("a list").clone()
    }

    /// Returns the checkpoints in the repository, newest first.
    fn log(&self, rig: &Rig) -> Vec<u64> {
        let listed = self.json(rig.path(), &["remote", "log", "home"]);
        let listed = listed.as_array().expect("a list");
        listed
            .iter()
            .filter_map(|one| one["checkpoint"].as_u64())
            .collect()
    }

    fn pull(&self, rig: &Rig, id: &str, into: &Path) -> Value {
        let into = into.to_str().expect("UTF-8");
        self.json(rig.path(), &["pull", "home", id, "--into", into])
    }

    /// Returns a restic command on the repository.
    fn restic(&self, arguments: &[&str]) -> Command {
        let mut command = tool("restic", arguments);
        command
            .env("RESTIC_REPOSITORY", &self.restic)
            .env("RESTIC_PASSWORD", PASSWORD)
            .env("NO_PROXY", "127.0.0.1")
            .envs(self.variables.iter().cloned())
            .env("XDG_CACHE_HOME", self.dir.path().join("cache"));
        command
    }

    /// restic reads all data and finds no error.
    fn check(&self) {
        succeeds(&mut self.restic(&["check", "--read-data"]), SECONDS);
    }
}

/// Returns a pulled tree without its export mark.
fn pulled(dest: &Path) -> Tree {
    let mut tree = tree_of(dest);
    let root = tree.get_mut(Path::new("")).expect("a root");
    root.xattrs.remove(&OsString::from("user.ckptfs.export"));
    tree
}

/// Returns the state in the export mark: `begun` or `whole`.
fn mark(dest: &Path) -> String {
    let mut get = tool("getfattr", &["--only-values", "-n", "user.ckptfs.export"]);
    let mark = stdout_of(get.arg(dest), 60);
    mark.split(' ').next_back().unwrap_or_default().to_owned()
}
