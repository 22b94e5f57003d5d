//! Remotes, as the operator of a driver configures them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::command::{sh, stdout_of, succeeds};
use super::tree::Tree;
use super::{scratch, tool, tree_of};

const SECONDS: u64 = 60;

/// Credentials for the bucket server, which accepts any.
pub const BUCKET_USER: [(&str, &str); 4] = [
    ("AWS_ACCESS_KEY_ID", "test"),
    ("AWS_SECRET_ACCESS_KEY", "key-of-the-test"),
    ("AWS_REGION", "us-east-1"),
    ("NO_PROXY", "127.0.0.1"),
];

/// Returns the tree of a mounted volume, without the mtime of its root, which the first mount
/// changes by creating the store.
pub fn tree_of_volume(at: &Path) -> Tree {
    let mut tree = tree_of(at);
    if let Some(root) = tree.get_mut(Path::new("")) {
        root.mtime = (0, 0);
    }
    tree
}

/// Makes a tree of a few small files, with links, attributes and times.
pub fn small_tree(at: &Path) {
    sh(
        at,
        "echo one > plain.txt; mkdir -p d/e; head -c 100000 /dev/urandom > d/random; ln d/random linked
        ln -s plain.txt link; setfattr -n user.a -v b d/e; chmod 2751 d; chown 1234:4321 plain.txt
        touch -h -d '2001-02-03 04:05:06.789' link d/e plain.txt; mkfifo fifo; truncate -s 1M sparse
        mknod null c 1 3; echo x > setuid; chmod 6755 setuid; touch \"$(printf 'a\\033b\\377')\"; mkdir empty",
    );
}

/// A remotes file, and a repository in a directory, with the remote name `home`.
pub struct Remotes {
    dir: TempDir,
}

impl Remotes {
    pub fn new() -> Remotes {
        let remotes = Remotes { dir: scratch() };
        remotes.private("password", "correct horse\n");
        let url = remotes.repository().display().to_string();
        remotes.add("home", &url);
        remotes
    }

    /// Adds a remote, and initializes its repository.
    pub fn add(&self, name: &str, url: &str) {
        let password = self.dir.path().join("password").display().to_string();
        let add = ["remote", "add", name, url, "--password-file", &password];
        succeeds(&mut self.command(&add), SECONDS);
    }

    fn private(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("chmod");
        path
    }

    /// Returns the path of the remotes file.
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("remotes.toml")
    }

    /// Sets the URL of a remote, as an edit of the file does.
    pub fn set(&self, name: &str, url: &str) {
        let password = self.dir.path().join("password");
        let before = fs::read_to_string(self.file()).expect("the file");
        let before: String = before
            .split_inclusive("\n\n")
            .filter(|part| !part.starts_with(&format!("[{name}]")))
            .collect();
        let text = format!("[{name}]\nurl = {url:?}\npassword-file = {password:?}\n\n{before}");
        self.private("remotes.toml", &text);
    }

    /// Returns the path of the repository.
    pub fn repository(&self) -> PathBuf {
        self.dir.path().join("repository")
    }

    /// Returns a command of the program with these remotes.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = tool(env!("CARGO_BIN_EXE_ckptfs"), arguments);
        command
            .current_dir("/")
            .env("CKPTFS_REMOTES", self.file())
            .envs(BUCKET_USER);
        command
    }

    /// Returns the snapshots of a remote, newest first.
    pub fn log(&self, name: &str) -> Vec<Value> {
        let mut log = self.command(&["remote", "log", name, "--all", "--json"]);
        serde_json::from_str(&stdout_of(&mut log, SECONDS)).expect("a list")
    }

    /// Renames the repository to simulate an unreachable server, or back.
    pub fn set_away(&self, away: bool) {
        let (here, there) = (self.repository(), self.dir.path().join("away"));
        let (from, to): (&Path, &Path) = if away {
            (&here, &there)
        } else {
            (&there, &here)
        };
        fs::rename(from, to).expect("renamed");
    }
}
