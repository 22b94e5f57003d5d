//! `ckptfs mcp` with the client of the Python package `mcp` (tests/tools.sh), and with a client
//! that violates the protocol.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::command::wait_limited;
use crate::common::wait::{WAIT_SECONDS, seen, wait_until};
use crate::common::{Variant, for_each_variant, run_limited, skip};

/// Seconds for the whole run of the agent.
const AGENT_SECONDS: u64 = 120;
/// Limit for the replies and for the exit.
const EXIT_LIMIT: Duration = Duration::from_secs(2 * WAIT_SECONDS);

fn python() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/python/bin/python3")
}

fn an_agent_uses_every_tool(v: Variant) {
    if !python().exists() {
        skip("no client: tests/tools.sh could not install the Python package mcp");
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/mcp/client.py");
    // The handshakes of current and of future agents.
    for mode in ["legacy", "auto"] {
        let rig = v.start_with(crate::common::MountOpts::new(v.io), |dir| {
            fs::create_dir(dir.join("src")).unwrap();
            fs::write(dir.join("src/a"), "one\n").unwrap();
            fs::write(dir.join("gone"), "it was here\n").unwrap();
            fs::write(dir.join("binary"), [0, 1, 2, 255]).unwrap();
            let lines = (0..600_000).map(|line| format!("this is line {line}\n"));
            fs::write(dir.join("large"), lines.collect::<String>()).unwrap();
        });
        let mut agent = Command::new(python());
        agent
            .args([script.as_os_str(), env!("CARGO_BIN_EXE_ckptfs").as_ref()])
            .arg(mode)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .current_dir(rig.path());
        let ran = run_limited(&mut agent, AGENT_SECONDS);
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(ran.status.success(), "{mode}: {said}");
    }
}

/// Sends `sent`, closes stdin after the replies to `ids`, and returns the exit status and the lines
/// of stdout.
fn talk(dir: &Path, sent: &[u8], ids: &[u64]) -> (i32, Vec<Value>) {
    let mut server = Command::new(env!("CARGO_BIN_EXE_ckptfs"))
        .args(["mcp"])
        .env("CKPTFS_LOG", "trace")
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut stdin = server.stdin.take().expect("piped");
    let stdout = server.stdout.take().expect("piped");
    let (lines, over) = (Mutex::new(Vec::<Value>::new()), AtomicBool::new(false));
    let (heard, ended) = (&lines, &over);
    let status = std::thread::scope(|scope| {
        scope.spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let line = line.expect("UTF-8");
                let value = serde_json::from_str(&line);
                let value = value.unwrap_or_else(|error| panic!("stdout has {line:?}: {error}"));
                heard.lock().expect("lines").push(value);
            }
            ended.store(true, Ordering::SeqCst);
        });
        scope.spawn(move || {
            // The server may have closed its stdin.
            let _ = stdin.write_all(sent);
            wait_until("it answers or exits", || {
                let known = heard.lock().expect("lines");
                let answered = |id: &u64| known.iter().any(|line| line["id"] == *id);
                let all = ids.iter().all(answered) || ended.load(Ordering::SeqCst);
                seen(all, known.clone())
            });
        });
        wait_limited(&mut server, EXIT_LIMIT).unwrap_or_else(|| {
            let _ = server.kill();
            panic!("it does not exit at the end of stdin");
        })
    });
    let lines = lines.into_inner().expect("lines");
    (status.code().expect("it was not killed by a signal"), lines)
}

fn line(value: &Value) -> Vec<u8> {
    format!("{value}\n").into_bytes()
}

/// With trace logging and garbage between the messages, stdout contains replies only.
fn stdout_has_the_protocol_and_nothing_else(v: Variant) {
    let rig = v.start();
    rig.mount.checkpoint();
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}});
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let call = |id: u64, tool: &str, arguments: Value| {
        line(
            &json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}),
        )
    };
    let sent = [
        line(&hello),
        line(&ready),
        call(2, "status", json!({})),
        b"\x1b[31mno json\n\xff\xfe\n{}\n[]\n\n".to_vec(),
        call(3, "no_such_tool", json!({})),
        call(4, "delete", json!({"checkpoint": "1"})),
        call(5, "undo", json!({"count": -1})),
        call(6, "branch_create", json!({"name": "x\u{1b}[31m"})),
        call(7, "log", json!([])),
        call(8, "log", json!({"limit": 1})),
    ]
    .concat();
    let (status, mut lines) = talk(rig.path(), &sent, &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(status, 0);
    // Invalid JSON as JavaScript and Python write it. A session of its own, because requests are
    // served concurrently: this checkpoint would appear in the replies above.
    let sent = [
        line(&hello),
        line(&ready),
        br#"{"method":"tools/call","params":{"name":"checkpoint","arguments":{"message":"a\ud800b"}},"jsonrpc":"2.0","id":9}
{"jsonrpc":"2.0","id":10,"method":"tools/call","params":{"name":"log","arguments":{"limit":Infinity}}}
"#
        .to_vec(),
    ]
    .concat();
    let (status, more) = talk(rig.path(), &sent, &[1, 9, 10]);
    assert_eq!(status, 0);
    lines.extend(more);
    assert!(
        lines.iter().all(|line| line["jsonrpc"] == "2.0"),
        "{lines:?}"
    );
    let answer = |id: u64| {
        lines
            .iter()
            .find(|line| line["id"] == id)
            .unwrap_or_else(|| panic!("no answer to {id} in {lines:?}"))
    };
    assert_eq!(answer(2)["result"]["structuredContent"]["checkpoints"], 1);
    assert!(answer(9)["result"].is_object(), "{lines:?}");
    for refused in [3, 4, 7, 10] {
        assert!(answer(refused)["error"].is_object(), "{lines:?}");
    }
    for failed in [5, 6] {
        assert_eq!(answer(failed)["result"]["isError"], true, "{lines:?}");
    }
    assert_eq!(answer(8)["result"]["structuredContent"]["more"], false);

    // The server rejects a message that never ends, and closes the session.
    let endless = [line(&hello), line(&ready), vec![b' '; 6 << 20]].concat();
    let (_, lines) = talk(rig.path(), &endless, &[1]);
    assert_eq!(lines.len(), 1, "{lines:?}");
    // An empty session succeeds.
    assert_eq!(talk(rig.path(), b"", &[]), (0, Vec::new()));
}

for_each_variant! {
    xfs => an_agent_uses_every_tool
}
for_each_variant! {
    xfs => stdout_has_the_protocol_and_nothing_else
}
