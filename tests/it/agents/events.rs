//! Every documented event of every agent, and invalid events.

use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use super::support::{ckptfs, hook, hook_of, label, nowhere, payloads, said_in};
use crate::common::command::sh;
use crate::common::{MountOpts, Variant, for_each_variant};

for_each_variant! { xfs =>
    each_documented_event_does_what_it_is_for,
    what_is_no_event_never_blocks_an_agent,
    the_tree_is_that_of_the_file_that_is_touched,
}

/// Asserts that stdout is empty, or valid output for the agent.
#[track_caller]
fn is_known_to(agent: &str, stdout: &[u8]) {
    if stdout.is_empty() {
        return;
    }
    let said: Value = serde_json::from_slice(stdout).expect("JSON");
    let keys: Vec<&String> = said.as_object().expect("an object").keys().collect();
    let wanted = if agent == "cursor" {
        "additional_context"
    } else {
        "hookSpecificOutput"
    };
    assert_eq!(keys, [wanted], "{said}");
}

fn each_documented_event_does_what_it_is_for(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        sh(dir, "mkdir build; echo 1 > build/a; echo 2 > b");
    });
    let count = || rig.mount.log_json().as_array().map_or(0, Vec::len);
    let mut agents = Vec::new();
    for one in payloads() {
        let (agent, what) = (one["agent"].as_str().expect("agent"), one["what"].as_str());
        assert!(
            one["version"].is_string() && one["source"].is_string(),
            "{one}"
        );
        if !agents.contains(&agent.to_owned()) {
            agents.push(agent.to_owned());
        }
        let said = said_in(&one["payload"], rig.path());
        // A change precedes a tool, and a deletion follows one.
        match what {
            Some("before" | "stop") => drop(sh(rig.path(), "mkdir -p build; echo 1 >> build/a")),
            Some("after") => drop(sh(rig.path(), "rm -rf build")),
            _ => {}
        }
        let before = count();
        let ran = hook_of(
            ckptfs(rig.path(), &["agent", "hook", "--agent", agent]),
            &said,
        );
        let err = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!((ran.status.code(), err.as_str()), (Some(0), ""), "{one}");
        is_known_to(agent, &ran.stdout);
        let made = count() - before;
        assert_eq!(
            made,
            usize::from(matches!(what, Some("prompt" | "before" | "stop"))),
            "{one}"
        );
        if made == 1 {
            let newest = &rig.mount.log_json()[0];
            assert_eq!(label(newest, "agent"), Some(agent), "{newest}");
            assert!(label(newest, "session").is_some(), "{newest}");
        }
        if what == Some("prompt") {
            let newest = &rig.mount.log_json()[0];
            assert_eq!(
                newest["note"].as_str().and_then(|note| note.lines().next()),
                Some("Fix the login")
            );
            assert!(label(newest, "prompt").is_some(), "{newest}");
        }
    }
    assert_eq!(
        agents,
        ["claude-code", "codex", "gemini", "cursor", "opencode"]
    );
}

fn what_is_no_event_never_blocks_an_agent(v: Variant) {
    let rig = v.start();
    let outside = nowhere();
    let mut garbage: Vec<Vec<u8>> = ["", "\n", "{", "[]", "null", "no", "\u{0}", "{\"a\":"]
        .iter()
        .map(|text| text.as_bytes().to_vec())
        .collect();
    garbage.push(vec![0xff; 1000]);
    garbage.push(b"{\"hook_event_name\":".repeat(100_000));
    garbage.push(b"[".repeat(1 << 20));
    for said in &garbage {
        let ran = hook(rig.path(), said);
        assert!(
            ran.status.code() == Some(1) && ran.stdout.is_empty(),
            "{ran:?}"
        );
        assert!(!ran.stderr.is_empty());
    }
    // Known events with arbitrary fields.
    let strange = [
        json!({}),
        json!({ "hook_event_name": "Never", "cwd": rig.path() }),
        json!({ "hook_event_name": "PreToolUse", "cwd": "/nowhere/at/all", "tool_input": { "file_path": "\u{0}" } }),
        json!({ "hook_event_name": "PostToolUse", "tool_name": "Bash", "session_id": "../../x", "tool_use_id": "/" }),
        json!({ "hook_event_name": "UserPromptSubmit", "session_id": 1, "prompt": ["x"], "prompt_id": {} }),
        json!({ "hook_event_name": "UserPromptSubmit", "session_id": "s\nprocess: 1@1", "prompt": "\u{1b}[2J\n", "prompt_id": "x".repeat(100_000) }),
        json!({ "hook_event_name": "Stop", "prompt": "x".repeat(5 << 20) }),
    ];
    for said in &strange {
        let ran = hook(rig.path(), said.to_string().as_bytes());
        assert!(
            ran.status.code() == Some(0) && ran.stdout.is_empty(),
            "{said}: {ran:?}"
        );
    }
    let prompts = rig.mount.run(&["rewind", "--json"]);
    let prompts: Value = serde_json::from_slice(&prompts.stdout).expect("JSON");
    assert_ne!(
        prompts[0]["process"], "1@1",
        "a label is one line: {prompts}"
    );
    // Outside every tree the hook prints nothing.
    for one in payloads() {
        let what = one["payload"]["hook_event_name"].as_str().expect("a name");
        if what.starts_with("Worktree") {
            continue;
        }
        let ran = hook(&outside.1, &said_in(&one["payload"], &outside.1));
        assert!(
            ran.status.code() == Some(0) && ran.stdout.is_empty() && ran.stderr.is_empty(),
            "{one}: {ran:?}"
        );
    }
    // An unknown command-line option does not block the agent.
    let ran = hook_of(
        ckptfs(
            rig.path(),
            &["agent", "hook", "--later-option", "-x", "word"],
        ),
        b"{}",
    );
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    // An agent that never closes the pipe does not block the hook forever.
    let mut command = ckptfs(rig.path(), &["agent", "hook"]);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("it starts");
    let ended = crate::common::command::wait_limited(&mut child, crate::common::wait::WAIT);
    assert_eq!(ended.and_then(|status| status.code()), Some(1));
}

/// The file does not exist yet, and its tree is not the agent's working directory.
fn the_tree_is_that_of_the_file_that_is_touched(v: Variant) {
    let rig = v.start();
    let (_dir, outside) = nowhere();
    let write = |file: &Path, cwd: &Path| {
        let said = json!({ "hook_event_name": "PreToolUse", "session_id": "s", "tool_name": "Write", "cwd": cwd,
            "tool_input": { "file_path": file, "content": "" } });
        let ran = hook(&outside, said.to_string().as_bytes());
        assert_eq!(ran.status.code(), Some(0), "{ran:?}");
        rig.mount.log_json().as_array().map_or(0, Vec::len)
    };
    assert_eq!(write(&rig.path().join("not/yet/there"), &outside), 1);
    sh(rig.path(), "echo 1 > f");
    assert_eq!(write(Path::new("f"), rig.path()), 2);
    sh(rig.path(), "echo 2 > f");
    assert_eq!(write(&outside.join("f"), &outside), 2);
    // Through a link into the tree.
    std::os::unix::fs::symlink(rig.path(), outside.join("link")).expect("a link");
    assert_eq!(write(&outside.join("link/f"), &outside), 3);
}
