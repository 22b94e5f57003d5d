//! An agent under another user than the daemon's.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::support::{AGENT, Session, get, nowhere};
use crate::common::command::{copy_program, has, sh};
use crate::common::{MountOpts, Variant, for_each_variant, skip};

for_each_variant! { xfs => another_user_s_prompts_are_checkpoints_and_root_rewinds_them }

/// Nobody else's on this machine.
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
    // The program and the agent, where everybody may run them.
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
    // Who may not ask the daemon is not told what changed, and not hindered.
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
    // Where mkdir(2) is not allowed it says so, and the agent goes on.
    sh(rig.path(), "chmod go-w .");
    let said = alice.prompt_refused("Once more");
    assert!(
        said.contains(".snapshots") && said.contains("ermission"),
        "{said}"
    );
}

/// Settings whose hooks call this program.
fn hooks_of(program: &Path) -> String {
    let command = format!("{} agent hook --agent claude-code", program.display());
    let hook = json!({ "type": "command", "command": command, "timeout": 20 });
    let events = ["UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop"];
    let hooks: serde_json::Map<String, Value> = events
        .iter()
        .map(|event| ((*event).to_owned(), json!([{ "hooks": [hook] }])))
        .collect();
    json!({ "hooks": hooks }).to_string()
}
