//! `ckptfs run` and `ckptfs bisect`: output, exit status, signals and the terminal.

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::support::{Sandbox, TIME_LIMIT};

fn mounted() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.file("p/README.md", "hello\n");
    sandbox.file("p/src/main.rs", "fn main() {}\n");
    sandbox.ckptfs(&["mount", "p"]).ok();
    sandbox
}

/// Removes the duration from a text.
fn without_time(text: &str) -> String {
    let Some((before, after)) = text.split_once(" in ") else {
        return text.to_owned();
    };
    format!(
        "{before}{}",
        after
            .split_once(';')
            .map_or(String::new(), |(_, rest)| format!(";{rest}"))
    )
}

#[test]
fn a_command_s_changes_are_shown_and_kept_or_taken_back() {
    let sandbox = mounted();
    let shell = |arguments: &[&str], script: &str| {
        sandbox.ckptfs_in(
            "p/src",
            &[&["run"], arguments, &["--", "sh", "-c", script]].concat(),
        )
    };
    let ran = shell(
        &[],
        "echo data; echo talk >&2; echo more >> ../README.md; rm main.rs; echo x > new",
    );
    assert_eq!((ran.code, ran.out().as_str()), (0, "data\n"));
    let shown = "talk\n6 -> 11  M README.md\n    -13  D src/main.rs\n     +2  A src/new\n3 changes, 7 bytes more, 13 bytes less\nkept; to take it back: ckptfs restore 1\n";
    assert_eq!(ran.err(), shown);
    let ran = shell(&["--rollback", "on-failure"], "rm new; exit 9");
    let said = "-2  D src/new\n1 change, 0 bytes more, 2 bytes less\nWarning: everything changed since checkpoint 2 is taken back, no matter who changed it\n\
                rolled back to checkpoint 2: 1 change; the previous state is checkpoint 3\n";
    assert_eq!((ran.code, without_time(&ran.err()).as_str()), (9, said));
    assert!(sandbox.path.join("p/src/new").exists());
    assert_eq!(shell(&["--rollback", "on-failure"], "rm new").code, 0);
    assert!(!sandbox.path.join("p/src/new").exists());
    assert_eq!(
        shell(
            &["--rollback", "always", "--keep-on-success"],
            "echo kept > new"
        )
        .code,
        0
    );
    assert_eq!(shell(&["--rollback", "always"], "echo gone > new").code, 0);
    assert_eq!(
        fs::read_to_string(sandbox.path.join("p/src/new")).expect("kept"),
        "kept\n"
    );
    let ran = shell(&["--rollback", "on-failure"], "exit 3");
    assert_eq!(
        (
            ran.code,
            ran.err().lines().count(),
            ran.err()
                .starts_with("nothing has changed since checkpoint ")
        ),
        (3, 1, true)
    );
    let log = sandbox.ckptfs_in("p", &["log", "-n", "1"]).ok().out();
    assert!(log.ends_with("before: sh -c exit 3\n"), "{log}");
}

#[test]
fn the_report_is_for_programs() {
    let sandbox = mounted();
    let ran = sandbox.ckptfs_in(
        "p",
        &[
            "run",
            "--json",
            "-m",
            "why",
            "--",
            "sh",
            "-c",
            "echo {}; echo x > a; kill -USR1 $$",
        ],
    );
    assert_eq!((ran.code, ran.out().as_str()), (138, "{}\n"));
    let report: serde_json::Value = serde_json::from_slice(&ran.stderr).expect("a report");
    assert_eq!(
        (
            &report["status"],
            &report["signal"],
            &report["checkpoint"]["note"]
        ),
        (&138.into(), &10.into(), &"why".into())
    );
    assert_eq!(
        report["changes"],
        serde_json::json!([{"path": "a", "change": "A", "kind": "file", "size": 2}])
    );
    assert_eq!(
        (
            &report["rolled_back"],
            report["guard"].is_null(),
            report["duration_us"].is_u64()
        ),
        (&false.into(), true, true),
        "{report}"
    );
    let file = sandbox.path.join("report");
    let ran = sandbox.ckptfs_in(
        "p",
        &[
            "run",
            "--report",
            file.to_str().expect("a path"),
            "--rollback",
            "always",
            "--",
            "rm",
            "a",
        ],
    );
    assert_eq!(ran.code, 0);
    let report: serde_json::Value =
        serde_json::from_slice(&fs::read(file).expect("the file")).expect("a report");
    assert_eq!(
        (&report["command"], &report["rolled_back"], &report["guard"]),
        (&serde_json::json!(["rm", "a"]), &true.into(), &3.into())
    );
}

#[test]
fn what_cannot_be_run_has_its_own_status() {
    let sandbox = mounted();
    let ran = sandbox.ckptfs_in("p", &["run", "--", "./no-such-command"]);
    assert_eq!(
        (ran.code, ran.err().lines().next()),
        (
            127,
            Some("Warning: ./no-such-command could not be run: No such file or directory")
        )
    );
    assert_eq!(
        sandbox.ckptfs_in("p", &["run", "--", "./README.md"]).code,
        126
    );
    sandbox.ckptfs_in("", &["run", "--", "true"]).is(
        125,
        "",
        "Error: [DIR] is not inside a directory mounted by ckptfs\nHint: ckptfs mount DIR\n",
    );
    sandbox.ckptfs_in("p", &["run", "--rollback", "ask", "--", "true"]).is(
        125,
        "",
        "Error: cannot ask: stdin or stderr is not a terminal\nHint: use --rollback on-failure or never\n",
    );
    assert_eq!(sandbox.ckptfs_in("p", &["run"]).code, 2);
    assert_eq!(
        sandbox
            .ckptfs_in("p", &["run", "--at", "7", "--", "true"])
            .code,
        125
    );
    sandbox.ckptfs_in("p", &["checkpoint"]).ok();
    let past = |name: &str, arguments: &[&str]| {
        sandbox.ckptfs_in(name, &[&["run", "--at", "3", "--"], arguments].concat())
    };
    assert_eq!(
        (
            past("p", &["sh", "-c", "exit 6"]).code,
            past("p", &["cat", "README.md"]).out()
        ),
        (6, "hello\n".to_owned())
    );
    fs::create_dir(sandbox.path.join("p/later")).expect("a directory");
    past("p/later", &["true"]).is(
        125,
        "",
        "Error: [DIR]/p/later cannot be entered as it was at checkpoint 3: No such file or directory\nHint: start from a directory that exists there, such as [DIR]/p\n",
    );
}

#[test]
fn bisect_tells_each_step_and_the_first_bad_one() {
    let sandbox = mounted();
    for n in 1..=6 {
        sandbox.file("p/n", &format!("{n}\n"));
        sandbox
            .ckptfs_in("p", &["checkpoint", "-m", &format!("number {n}")])
            .ok();
    }
    let log = sandbox.path.join("log");
    let found = sandbox.ckptfs_in(
        "p",
        &[
            "bisect",
            "--log",
            log.to_str().expect("a path"),
            "1",
            "latest",
            "--",
            "sh",
            "-c",
            "echo noise; test $(cat n) -lt 4",
        ],
    );
    assert_eq!(found.code, 0);
    let out = found.out();
    assert!(
        out.starts_with("4  ") && out.ends_with("  number 4\n") && out.lines().count() == 1,
        "{out}"
    );
    let expected = "noise\ncheckpoint 1 is good\nnoise\ncheckpoint 6 is bad\ncheckpoint 3: 4 between, about 2 more to try\nnoise\ncheckpoint 3 is good\ncheckpoint 4: 2 between, about 1 more to try\nnoise\ncheckpoint 4 is bad\n\
                    checkpoint 4 is the first bad one; what changed: ckptfs diff 3 4\n";
    assert_eq!(found.err(), expected);
    let logged = "{\"id\":1,\"status\":0,\"result\":\"good\"}\n{\"id\":6,\"status\":1,\"result\":\"bad\"}\n{\"id\":3,\"status\":0,\"result\":\"good\"}\n{\"id\":4,\"status\":1,\"result\":\"bad\"}\n";
    assert_eq!(fs::read_to_string(log).expect("the log"), logged);
    let says = "noise\nError: \"4\" (checkpoint 4) was said to be good, but is bad: the test exited with status 1 there\nHint: try the test alone: ckptfs run --at ID -- TEST\n";
    sandbox
        .ckptfs_in(
            "p",
            &[
                "bisect",
                "4",
                "6",
                "sh",
                "-c",
                "echo noise; test $(cat n) -lt 4",
            ],
        )
        .is(1, "", says);
    sandbox.ckptfs_in("p", &["bisect", "4", "2", "--", "true"]).is(
        1,
        "",
        "Error: checkpoint 4 (good) is not older than 2 (bad)\nHint: name the good one first; to find what fixed something, let TEST fail where it is fixed\n",
    );
}

/// Starts a command with its stdout piped, and waits until it prints `ready`.
fn started(mut command: std::process::Command) -> (Child, std::process::ChildStdout) {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("spawn");
    let mut out = child.stdout.take().expect("stdout");
    let (mut said, mut byte) = (Vec::new(), [0]);
    while !said.ends_with(b"ready") {
        assert_eq!(
            out.read(&mut byte).expect("read"),
            1,
            "it ended: {}",
            String::from_utf8_lossy(&said)
        );
        said.push(byte[0]);
    }
    (child, out)
}

fn ended(mut child: Child) -> i32 {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("wait") {
            return status.code().unwrap_or(-1);
        }
        if began.elapsed() > TIME_LIMIT {
            let _ = child.kill();
            panic!("it has not exited");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn signals_reach_the_command_once_and_its_end_is_ours() {
    let sandbox = mounted();
    let run = |script: &str| {
        let mut command = sandbox.command("p");
        command.args(["run", "--rollback", "always", "--", "sh", "-c", script]);
        started(command)
    };
    for (signal, number) in [("TERM", 15), ("HUP", 1), ("INT", 2)] {
        let trap = format!(
            "trap 'echo {signal} >> got; exit 42' {signal}; echo x > made; printf ready; while :; do sleep 0.02; done"
        );
        let (child, _out) = run(&trap);
        assert!(
            std::process::Command::new("kill")
                .args([&format!("-{signal}"), &child.id().to_string()])
                .status()
                .expect("kill")
                .success()
        );
        assert_eq!(ended(child), 42, "{signal}");
        assert!(
            !sandbox.path.join("p/made").exists(),
            "rolled back after {signal}"
        );
        let (child, _out) = run("printf ready; exec sleep 1000");
        assert!(
            std::process::Command::new("kill")
                .args([&format!("-{signal}"), &child.id().to_string()])
                .status()
                .expect("kill")
                .success()
        );
        assert_eq!(ended(child), 128 + number, "{signal}");
    }
    let log = sandbox.ckptfs_in("p", &["log", "--json"]).ok().json();
    let guards = log
        .as_array()
        .expect("a log")
        .iter()
        .filter(|made| made["reason"]["kind"] == "guard");
    let got = |id: &serde_json::Value| {
        fs::read_to_string(sandbox.path.join(format!("p/.snapshots/{id}/got")))
            .expect("the output of the trap")
    };
    let mut all: Vec<String> = guards.map(|made| got(&made["id"])).collect();
    all.sort();
    assert_eq!(all, ["HUP\n", "INT\n", "TERM\n"]);
}

/// A command in a terminal is in the foreground process group, and Ctrl-C reaches it once.
#[test]
fn the_terminal_is_the_command_s() {
    let sandbox = mounted();
    let script = "trap 'echo int >> got' INT; cut -d' ' -f5,8 /proc/self/stat > groups; printf ready; n=0; while [ $n -lt 20 ]; do sleep 0.05; [ -e got ] && n=$((n+1)); done; exit 5";
    fs::write(sandbox.path.join("p/script.sh"), script).expect("a script");
    let mut terminal = sandbox.hermetic("script", "p");
    terminal.args(["-qec", "exec ckptfs run -- sh script.sh", "/dev/null"]);
    let (mut child, _out) = started(terminal);
    let mut stdin = child.stdin.take().expect("stdin");
    stdin.write_all(b"\x03").expect("a key");
    assert_eq!(ended(child), 5);
    drop(stdin);
    assert_eq!(
        fs::read_to_string(sandbox.path.join("p/got")).expect("it was interrupted"),
        "int\n"
    );
    let groups = fs::read_to_string(sandbox.path.join("p/groups")).expect("its groups");
    let (own, foreground) = groups.trim().split_once(' ').expect("two numbers");
    assert_eq!(own, foreground);
}

#[test]
fn whoever_is_asked_decides() {
    let sandbox = mounted();
    for (answer, there) in [("y\n", false), ("n\n", true)] {
        let mut terminal = sandbox.hermetic("script", "p");
        terminal.args([
            "-qec",
            "ckptfs run --rollback ask -- sh -c 'echo > made; printf ready'",
            "/dev/null",
        ]);
        let (mut child, _out) = started(terminal);
        let mut stdin = child.stdin.take().expect("stdin");
        stdin.write_all(answer.as_bytes()).expect("an answer");
        assert_eq!(ended(child), 0);
        assert_eq!(sandbox.path.join("p/made").exists(), there, "{answer:?}");
    }
}
