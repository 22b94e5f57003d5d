//! Writers with names of their own, and what the program says of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::strace::Strace;
use crate::common::{Rig, Variant, run_limited, scratch};

/// Seconds for what a writer does.
pub const SECONDS: u64 = 60;

/// A mounted tree, and programs called `alice`, `bob` and so on, each of which is a Perl: what a
/// script does it does in one process.
pub struct Stage {
    // In the order in which they must be dropped.
    pub rig: Rig,
    bin: TempDir,
    _numbers: Numbers,
}

/// Process numbers are the whole machine's: a test that has one given away again has no other
/// beside it, whose processes would get used ones too.
static NUMBERS: RwLock<()> = RwLock::new(());

enum Numbers {
    AsTheyCome {
        _guard: RwLockReadGuard<'static, ()>,
    },
    Chosen {
        _guard: RwLockWriteGuard<'static, ()>,
    },
}

/// Path -> names of those who changed it; "others" where there were too many, nobody where that is
/// not known.
pub type Told = BTreeMap<String, BTreeSet<String>>;

pub fn told(of: &[(&str, &[&str])]) -> Told {
    of.iter()
        .map(|(path, names)| {
            (
                (*path).to_owned(),
                names.iter().map(|name| (*name).to_owned()).collect(),
            )
        })
        .collect()
}

/// `status --by process --json` and the like.
pub fn as_told(all: &Value) -> Told {
    let name = |at: &Value| {
        all["processes"][at.as_u64().expect("a place") as usize]["name"]
            .as_str()
            .expect("a name")
            .to_owned()
    };
    let one = |change: &Value| {
        let mut names: BTreeSet<String> = change["by"]
            .as_array()
            .expect("a list")
            .iter()
            .map(name)
            .collect();
        if change["others"] == true {
            names.insert("others".to_owned());
        }
        (change["path"].as_str().expect("a path").to_owned(), names)
    };
    all["changes"]
        .as_array()
        .expect("changes")
        .iter()
        .map(one)
        .collect()
}

impl Stage {
    pub fn start(variant: Variant, fill: impl FnOnce(&Path)) -> Stage {
        Stage::of(variant.start_with(crate::common::MountOpts::new(variant.io), fill))
    }

    pub fn of(rig: Rig) -> Stage {
        Stage {
            rig,
            bin: scratch(),
            _numbers: Numbers::AsTheyCome {
                _guard: NUMBERS.read().unwrap_or_else(PoisonError::into_inner),
            },
        }
    }

    /// As [`Stage::start`], with no other stage beside it: for a test that chooses process numbers.
    pub fn start_alone(variant: Variant, fill: impl FnOnce(&Path)) -> Stage {
        let numbers = Numbers::Chosen {
            _guard: NUMBERS.write().unwrap_or_else(PoisonError::into_inner),
        };
        Stage {
            rig: variant.start_with(crate::common::MountOpts::new(variant.io), fill),
            bin: scratch(),
            _numbers: numbers,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.rig.path().join(name)
    }

    pub fn get(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub fn has(&self, name: &str) -> bool {
        self.path(name).symlink_metadata().is_ok()
    }

    /// A Perl under this name, in the tree.
    pub fn program(&self, name: &str) -> Command {
        let link = self.bin.path().join(name);
        if !link.exists() {
            symlink("/usr/bin/perl", &link).expect("a link");
        }
        let mut command = Command::new(link);
        command
            .current_dir(self.rig.path())
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::null());
        command
    }

    /// One process of this name does what the script says.
    #[track_caller]
    pub fn does(&self, name: &str, script: &str) {
        let mut command = self.program(name);
        command.args(["-we", &format!("use strict; use Fcntl; {PUT} {script}")]);
        let output = run_limited(&mut command, SECONDS);
        assert!(
            output.status.success(),
            "{name}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// A process of this name that goes on; it reads scripts line by line, and answers each with a
    /// line.
    pub fn begins(&self, name: &str) -> Actor {
        let mut command = self.program(name);
        let script = format!(
            "use strict; use Fcntl; our ($h, %h); {PUT} $| = 1; while (<STDIN>) {{ eval $_; print $@ || \"done\\n\"; }}"
        );
        let mut child = command
            .args(["-we", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("perl starts");
        let (stdin, stdout) = (
            child.stdin.take().expect("stdin"),
            BufReader::new(child.stdout.take().expect("stdout")),
        );
        Actor {
            child,
            stdin: Some(stdin),
            stdout,
        }
    }

    /// `status --by process`.
    pub fn told(&self) -> Told {
        as_told(&self.rig.mount.json(&["status", "--by", "process"]))
    }

    /// Runs a verb, during which the daemon is killed at the `nth` of these calls; mounts again.
    pub fn killed_at(&mut self, calls: &str, nth: u32, verb: &[&str]) {
        // Nobody is to take over.
        self.rig.mount.kill_holder();
        let log = self.bin.path().join("strace.log");
        let strace = Strace::kills(self.rig.mount.pid(), calls, nth, &log);
        let _ = self.rig.mount.run(verb);
        drop(strace);
        self.rig.mount.kill();
        self.rig.mount.remount();
    }

    /// `restore --only-by`.
    pub fn take_back(&self, arguments: &[&str]) -> Value {
        self.rig
            .mount
            .json(&[&["restore", "--only-by"], arguments].concat())
    }
}

/// `put(path, text)` writes a file anew, `add` appends to it.
const PUT: &str = "sub out { my ($how, $to, $text) = @_; open(my $f, $how, $to) or die \"$to: $!\\n\"; print $f $text; close($f) or die \"$to: $!\\n\"; } \
                   sub put { out('>', @_) } sub add { out('>>', @_) }";

/// See [`Stage::begins`].
pub struct Actor {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Actor {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// It does what the script says.
    #[track_caller]
    pub fn does(&mut self, script: &str) {
        let stdin = self.stdin.as_mut().expect("it goes on");
        writeln!(stdin, "{script}").expect("it listens");
        let mut said = String::new();
        self.stdout.read_line(&mut said).expect("it answers");
        assert_eq!(said, "done\n", "{script}");
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The paths of a list of changes, with the letter.
pub fn letters(changes: &Value) -> Vec<String> {
    let line = |change: &Value| {
        format!(
            "{} {}",
            change["change"].as_str().expect("a letter"),
            change["path"].as_str().expect("a path")
        )
    };
    changes
        .as_array()
        .expect("changes")
        .iter()
        .map(line)
        .collect()
}

/// The paths that a restore left because others changed them too.
pub fn shared(restored: &Value) -> Vec<String> {
    restored["shared"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| one["path"].as_str().expect("a path").to_owned())
        .collect()
}
