//! Writers with names, and their attribution by the commands.

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

/// Time limit for a writer.
pub const SECONDS: u64 = 60;

/// A mounted tree, and programs named `alice`, `bob` and so on, each a link to Perl, which runs a
/// whole script in one process.
pub struct WriterRig {
    // Fields are dropped in this order.
    pub rig: Rig,
    bin: TempDir,
    _numbers: PidReuseLock,
}

/// Process ids are global: a test that forces a reused id runs alone, because processes of other
/// tests would also get reused ids.
static NUMBERS: RwLock<()> = RwLock::new(());

enum PidReuseLock {
    AsTheyCome {
        _guard: RwLockReadGuard<'static, ()>,
    },
    Chosen {
        _guard: RwLockWriteGuard<'static, ()>,
    },
}

/// Names of the writers by path; "others" if there are too many, empty if unknown.
pub type WritersByPath = BTreeMap<String, BTreeSet<String>>;

pub fn told(of: &[(&str, &[&str])]) -> WritersByPath {
    of.iter()
        .map(|(path, names)| {
            (
                (*path).to_owned(),
                names.iter().map(|name| (*name).to_owned()).collect(),
            )
        })
        .collect()
}

/// Parses `status --by process --json` and similar output.
pub fn as_told(all: &Value) -> WritersByPath {
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

impl WriterRig {
    pub fn start(variant: Variant, fill: impl FnOnce(&Path)) -> WriterRig {
        WriterRig::of(variant.start_with(crate::common::MountOpts::new(variant.io), fill))
    }

    pub fn of(rig: Rig) -> WriterRig {
        WriterRig {
            rig,
            bin: scratch(),
            _numbers: PidReuseLock::AsTheyCome {
                _guard: NUMBERS.read().unwrap_or_else(PoisonError::into_inner),
            },
        }
    }

    /// Like [`WriterRig::start`], without a concurrent stage, for a test that chooses process ids.
    pub fn start_alone(variant: Variant, fill: impl FnOnce(&Path)) -> WriterRig {
        let numbers = PidReuseLock::Chosen {
            _guard: NUMBERS.write().unwrap_or_else(PoisonError::into_inner),
        };
        WriterRig {
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

    /// Returns a command that runs Perl under this name in the tree.
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

    /// Runs a script in a new process of this name.
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

    /// Starts a process of this name, which reads scripts line by line and answers each with a
    /// line.
    pub fn begins(&self, name: &str) -> ScriptedWriter {
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
        ScriptedWriter {
            child,
            stdin: Some(stdin),
            stdout,
        }
    }

    /// Returns the result of `status --by process`.
    pub fn told(&self) -> WritersByPath {
        as_told(&self.rig.mount.json(&["status", "--by", "process"]))
    }

    /// Runs a verb, kills the daemon at the `nth` of these calls, and remounts.
    pub fn killed_at(&mut self, calls: &str, nth: u32, verb: &[&str]) {
        // Prevents a takeover.
        self.rig.mount.kill_holder();
        let log = self.bin.path().join("strace.log");
        let strace = Strace::kills(self.rig.mount.pid(), calls, nth, &log);
        let _ = self.rig.mount.run(verb);
        drop(strace);
        self.rig.mount.kill();
        self.rig.mount.remount();
    }

    /// Runs `restore --only-by`.
    pub fn take_back(&self, arguments: &[&str]) -> Value {
        self.rig
            .mount
            .json(&[&["restore", "--only-by"], arguments].concat())
    }
}

/// `put(path, text)` rewrites a file, `add` appends to it.
const PUT: &str = "sub out { my ($how, $to, $text) = @_; open(my $f, $how, $to) or die \"$to: $!\\n\"; print $f $text; close($f) or die \"$to: $!\\n\"; } \
                   sub put { out('>', @_) } sub add { out('>>', @_) }";

/// See [`WriterRig::begins`].
pub struct ScriptedWriter {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl ScriptedWriter {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Runs a script in the process.
    #[track_caller]
    pub fn does(&mut self, script: &str) {
        let stdin = self.stdin.as_mut().expect("stdin is open");
        writeln!(stdin, "{script}").expect("it listens");
        let mut said = String::new();
        self.stdout.read_line(&mut said).expect("it answers");
        assert_eq!(said, "done\n", "{script}");
    }
}

impl Drop for ScriptedWriter {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the letters and paths of a list of changes.
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

/// Returns the paths that a restore skipped because others also changed them.
pub fn shared(restored: &Value) -> Vec<String> {
    restored["shared"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| one["path"].as_str().expect("a path").to_owned())
        .collect()
}
