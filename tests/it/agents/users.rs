//! An agent that runs as another user than the daemon.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::support::{AGENT, Session, get, letters, nowhere};
use crate::common::command::{copy_program, has, sh};
use crate::common::process::start_of;
use crate::common::wait::wait_until;
use crate::common::{MountOpts, Variant, for_each_variant, skip};

for_each_variant! { xfs =>
    another_user_s_prompts_are_checkpoints_and_root_rewinds_them,
    another_user_s_names_steer_no_rewind,
}

/// An unused user ID.
const USER: &str = "61235";

fn another_user_s_prompts_are_checkpoints_and_root_rewinds_them(v: Variant) {
    if !has("setpriv") {
        return skip("setpriv is not installed");
    }
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        sh(
            dir,
            "mkdir src .claude; echo 1 > src/a; echo 1 > root-s; chmod -R a+rwX .; chmod a+rwx .",
        );
    });
    // Copies of the program and the agent that all users may execute.
    let (_dir, shared) = nowhere();
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o755)).expect("chmod");
    let program = shared.join("ckptfs");
    copy_program(Path::new(env!("CARGO_BIN_EXE_ckptfs")), &program);
    let script = shared.join("agent.py");
    std::fs::copy(AGENT, &script).expect("a copy");
    sh(&shared, "chmod a+rx ckptfs agent.py");
    let settings = rig.path().join(".claude/settings.json");
    std::fs::write(settings, hooks_of(&program)).expect("settings");
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid",
        USER,
        "--regid",
        USER,
        "--clear-groups",
        "/usr/bin/python3",
    ]);
    command
        .env("HOME", &shared)
        .env("TMPDIR", "/tmp")
        .env_remove("XDG_RUNTIME_DIR");
    let mut alice = Session::with(command, &script, rig.path(), "alice");
    alice.prompt("Clean up");
    alice.write("src/new", "by alice\n");
    // A user without access to the daemon receives no report, and is not blocked.
    assert_eq!(alice.bash("rm src/a"), None);
    alice.stop();
    sh(rig.path(), "echo 2 > root-s");
    let made = rig.mount.log_json();
    assert_eq!(
        (
            made.as_array().map(Vec::len),
            made[0]["reason"]["kind"].as_str()
        ),
        (Some(1), Some("directory"))
    );
    assert_eq!(made[0]["by"]["uid"].to_string(), USER);
    rig.mount.ok(&["rewind", "--session", "alice"]);
    assert_eq!(
        (
            get(&rig, "src/a").as_deref(),
            get(&rig, "src/new"),
            get(&rig, "root-s").as_deref()
        ),
        (Some("1\n"), None, Some("2\n"))
    );
    // Where mkdir(2) is not permitted the hook reports it, and the agent continues.
    sh(rig.path(), "chmod go-w .");
    let said = alice.prompt_refused("Once more");
    assert!(
        said.contains(".snapshots") && said.contains("ermission"),
        "{said}"
    );
}

/// A shell that executes commands.
struct Worker {
    child: Child,
    dir: PathBuf,
}

impl Worker {
    fn start(dir: &Path) -> Worker {
        let mut sh = Command::new("sh");
        let child = sh.current_dir(dir).stdin(Stdio::piped()).spawn();
        Worker {
            child: child.expect("sh starts"),
            dir: dir.to_owned(),
        }
    }

    fn name(&self) -> String {
        let start = start_of(self.child.id()).expect("it is alive");
        format!("{}@{start}", self.child.id())
    }

    /// Makes a file in this process.
    fn makes(&mut self, file: &str) {
        let stdin = self.child.stdin.as_mut().expect("stdin");
        writeln!(stdin, "echo made > {file}.new; mv {file}.new {file}").expect("stdin is open");
        let path = self.dir.join(file);
        wait_until("the file exists", || path.exists());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Another user names checkpoints after root's session and root's processes: root's rewind neither
/// treats them as its session's nor undoes the changes of those processes.
fn another_user_s_names_steer_no_rewind(v: Variant) {
    if !has("setpriv") {
        return skip("setpriv is not installed");
    }
    let rig = v.start_with(MountOpts::new(v.io), |dir| drop(sh(dir, "chmod 1777 .")));
    let (mut mine, mut other) = (Worker::start(rig.path()), Worker::start(rig.path()));
    let note = "Mine\n\nsession: mine\nprompt: p1\nprocess: ";
    let prompt = rig
        .mount
        .ok(&["checkpoint", "-m", &format!("{note}{}", mine.name())]);
    let forge = |session: &str, process: &str| {
        let name = format!("prompt.{session}.{process}.p1");
        let ids = ["--reuid", USER, "--regid", USER, "--clear-groups"];
        let mut command = Command::new("setpriv");
        let made = command
            .args(ids)
            .arg("mkdir")
            .arg(rig.path().join(".snapshots").join(name));
        assert!(made.status().expect("mkdir runs").success());
    };
    forge("mine", &other.name());
    forge("theirs", &other.name());
    forge("tricky", &format!("{},{}", mine.name(), other.name()));
    mine.makes("by-mine");
    other.makes("by-other");
    let planned = |arguments: &[&str]| {
        let planned = rig.mount.json(&[&["rewind", "-n"], arguments].concat());
        (
            planned["prompt"]["checkpoint"].to_string(),
            letters(&planned),
        )
    };
    let own = (prompt.trim().to_owned(), vec!["D by-mine".to_owned()]);
    for arguments in [
        &["--session", "mine"] as &[&str],
        &["--session", "mine", "-1"],
        &["-1"],
        &["p1"],
        &[prompt.trim()],
    ] {
        assert_eq!(planned(arguments), own, "{arguments:?}");
    }
    // By its name or number, the prompt is the other user's, who changed nothing.
    let log = rig.mount.log_json();
    for made in log.as_array().expect("checkpoints").iter().take(3) {
        let number = made["id"].to_string();
        let ran = rig.mount.run(&["rewind", "-n", &number, "--json"]);
        let out = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert!(!out.contains("by-"), "{number}: {out}");
    }
    assert_eq!(planned(&["--session", "theirs"]).1, Vec::<String>::new());
    // The list names their owner.
    let listed = rig.mount.run(&["rewind"]);
    let out = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert_eq!(out.matches(&format!("of user {USER}")).count(), 3, "{out}");
}

/// Returns settings with hooks that call this program.
fn hooks_of(program: &Path) -> String {
    let command = format!("{} agent hook --agent claude-code", program.display());
    let hook = json!({ "type": "command", "command": command, "timeout": 60 });
    let events = ["UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop"];
    let hooks: serde_json::Map<String, Value> = events
        .iter()
        .map(|event| ((*event).to_owned(), json!([{ "hooks": [hook] }])))
        .collect();
    json!({ "hooks": hooks }).to_string()
}
