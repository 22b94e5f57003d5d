//! `branch conflicts`: files touched by several branches, by inode; the conflicts of each pair; and
//! the stream of changes.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::support::create;
use crate::common::command::sh;
use crate::common::wait::{WAIT, wait_until};
use crate::common::{MountOpts, Rig, Variant, for_each_variant};
use ckptfs_api::{Client, Code, WatchConflicts};

for_each_variant! { xfs =>
    what_was_renamed_here_and_edited_there_is_one_file, what_would_clash_is_told,
    conflicts_are_told_as_they_come_and_go, who_watches_holds_up_nobody, a_command_is_run_for_each
}

const BASE: &str =
    "mkdir -p d gone in; for f in a b c d/f gone/x in/i; do seq 9 > $f; done; ln b d/hard";

fn rig(v: Variant) -> Rig {
    v.start_with(MountOpts::new(v.io), |dir| drop(sh(dir, BASE)))
}

/// Returns a line per conflict: the path, `*` for an inode not in the base, and the branches.
fn told(rig: &Rig) -> Vec<String> {
    let all = rig.mount.json(&["branch", "conflicts"]);
    let all = all.as_array().expect("a list");
    all.iter().map(line).collect()
}

fn line(one: &Value) -> String {
    let mut who: Vec<&str> = one["branches"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    who.extend(one["parent"].as_bool().filter(|here| *here).map(|_| "here"));
    let inode = if one["inode"].is_u64() { "" } else { "*" };
    let path = one["path"].as_str().expect("a path");
    format!("{path}{inode}: {}", who.join(" "))
}

fn what_was_renamed_here_and_edited_there_is_one_file(v: Variant) {
    let rig = rig(v);
    let (one, two) = (create(&rig, "one"), create(&rig, "two"));
    assert!(told(&rig).is_empty());
    // One file at two paths; a file replaced by another; two new files at one path; and a change in
    // a directory that the other branch renamed, which is no conflict.
    sh(&one, "mv a moved; echo 1 >> b; echo 1 > new; mv d dir");
    sh(
        &two,
        "echo 2 >> a; seq 3 > t; mv t b; echo 2 > new; echo 2 >> d/f",
    );
    assert_eq!(told(&rig), ["a: one two", "b: one two", "new*: one two"]);
    let text = rig.mount.ok(&["branch", "conflicts"]);
    assert_eq!(
        text.lines().next(),
        Some("a\tone (as moved), two"),
        "{text}"
    );
    let all = rig.mount.json(&["branch", "conflicts"]);
    let inode = fs::metadata(rig.path().join("a")).unwrap();
    assert_eq!(
        all[0]["inode"].as_u64(),
        Some(std::os::unix::fs::MetadataExt::ino(&inode))
    );
    assert_eq!(all[0]["touched"][0]["from"], "a");
    // A file that was opened but not changed does not count, nor does a reverted change.
    drop(
        fs::File::options()
            .append(true)
            .open(two.join("c"))
            .unwrap(),
    );
    sh(&one, "cp c was; echo 1 >> c");
    sh(&two, "chmod 600 c; chmod 644 c");
    assert!(!told(&rig).contains(&"c: one two".to_owned()));
    // For a new branch only changes of the parent after its creation count.
    sh(rig.path(), "echo here >> c; echo here > gone/y");
    let three = create(&rig, "three");
    sh(&three, "echo 3 >> c; rm -r gone; chmod 700 in");
    assert_eq!(
        told(&rig),
        [
            "a: one two",
            "b: one two",
            "c: one three here",
            "new*: one two"
        ]
    );
    // A new file in a directory removed by another branch; a directory whose mode both changed.
    sh(rig.path(), "echo here > gone/z; chmod 711 in");
    let now = told(&rig);
    assert!(
        now.contains(&"gone: three here".to_owned()) && now.contains(&"in: three here".to_owned()),
        "{now:?}"
    );
    // A dropped branch does not count.
    rig.mount.ok(&["branch", "drop", "one"]);
    assert!(!told(&rig).iter().any(|line| line.contains(" one")));
}

fn what_would_clash_is_told(v: Variant) {
    let rig = rig(v);
    let (one, two) = (create(&rig, "one"), create(&rig, "two"));
    sh(&one, "sed -i s/2/two/ a; sed -i s/2/two/ c; mv d/f moved");
    sh(
        &two,
        "sed -i s/9/nine/ a; sed -i s/2/zwei/ c; echo more >> d/f",
    );
    sh(rig.path(), "sed -i s/2/deux/ c; rm d/f");
    let text = rig.mount.ok(&["branch", "conflicts", "--check"]);
    assert_eq!(
        text,
        "a\tone, two\tmerges cleanly\n\
         c\tone, two, this tree\tone and this tree clash (content), two and this tree clash (content), two and one clash (content)\n\
         d/f\tone (as moved), two, this tree (deleted)\tone and this tree clash (removed), two and this tree clash (removed)\n"
    );
    // The result agrees with `merge --dry-run`.
    let dry = rig.mount.run(&["merge", "two", "-n", "--json"]);
    let dry: Value = serde_json::from_slice(&dry.stdout).unwrap();
    let all = rig.mount.json(&["branch", "conflicts", "--check"]);
    let clash = all[1]["clashes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|clash| clash["theirs"] == "two" && clash["ours"].is_null())
        .expect("two, merged here");
    assert_eq!(clash["what"], dry["conflicts"][0]["what"]);
    assert_eq!(clash["path"], dry["conflicts"][0]["path"]);
    // Branches with different bases: changes of the parent in between count for no branch.
    sh(rig.path(), "echo here > in/between");
    let three = create(&rig, "three");
    sh(&three, "sed -i s/5/five/ a; echo 3 >> in/i");
    sh(&one, "sed -i s/5/fuenf/ a; echo 1 > in/new");
    let text = rig.mount.ok(&["branch", "conflicts", "--check"]);
    assert_eq!(
        text.lines().next(),
        Some("a\tone, three, two\tthree and one clash (content)"),
        "{text}"
    );
    assert!(!text.contains("in/"), "{text}");
}

/// A running `branch conflicts --watch`; drop kills it.
struct Watch {
    child: Child,
    lines: Receiver<Value>,
}

impl Watch {
    fn start(mut command: Command) -> Watch {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let value = serde_json::from_str(&line).expect("a line of JSON");
                if tell.send(value).is_err() {
                    return;
                }
            }
        });
        Watch { child, lines }
    }

    fn of(rig: &Rig) -> Watch {
        Watch::start(rig.mount.command(&["branch", "conflicts", "--watch"]))
    }

    /// Returns the next line as `KIND PATH: WHO`.
    #[track_caller]
    fn next(&self) -> String {
        let line_ = self.lines.recv_timeout(WAIT);
        let one = line_.expect("a line");
        format!("{} {}", one["kind"].as_str().expect("a kind"), line(&one))
    }

    #[track_caller]
    fn is_quiet(&self) {
        let next = self.lines.recv_timeout(Duration::from_millis(700));
        assert_eq!(next.unwrap_err(), RecvTimeoutError::Timeout);
    }

    /// Waits for the end and returns the status and stderr.
    fn ended(mut self) -> (Option<i32>, String) {
        let mut ended = None;
        wait_until("the watcher ends", || {
            ended = self.child.try_wait().expect("a child");
            ended.is_some()
        });
        let mut said = String::new();
        let mut stderr = self.child.stderr.take().expect("a pipe");
        stderr.read_to_string(&mut said).expect("text");
        (ended.and_then(|status| status.code()), said)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn conflicts_are_told_as_they_come_and_go(v: Variant) {
    let mut rig = rig(v);
    let (one, two) = (create(&rig, "one"), create(&rig, "two"));
    sh(&one, "echo 1 >> a; echo 1 >> c");
    sh(&two, "echo 2 >> a");
    let watch = Watch::of(&rig);
    assert_eq!(watch.next(), "appeared a: one two");
    watch.is_quiet();
    sh(rig.path(), "echo here >> c");
    assert_eq!(watch.next(), "appeared c: one here");
    sh(&two, "mv c moved");
    assert_eq!(watch.next(), "changed c: one two here");
    // A passthrough write through an open handle, which sends no request, is detected.
    let mut open = fs::File::options()
        .append(true)
        .open(two.join("b"))
        .unwrap();
    sh(&one, "echo 1 >> b");
    watch.is_quiet();
    std::io::Write::write_all(&mut open, b"2\n").unwrap();
    assert_eq!(watch.next(), "appeared b: one two");
    drop(open);
    // The next daemon reports only changes since its predecessor.
    rig.mount.replace_worker();
    watch.is_quiet();
    sh(&one, "echo 1 > new");
    sh(&two, "echo 2 > new");
    assert_eq!(watch.next(), "appeared new*: one two");
    sh(&one, "rm new");
    assert_eq!(watch.next(), "gone new*: one two");
    rig.mount.ok(&["branch", "drop", "two"]);
    let mut last = [watch.next(), watch.next(), watch.next()];
    last.sort();
    assert_eq!(
        last,
        ["changed c: one here", "gone a: one two", "gone b: one two"]
    );
    // An unmount does not report conflicts as gone: their state is unknown.
    let began = Instant::now();
    rig.mount.umount();
    assert!(began.elapsed() < WAIT);
    let quiet = watch.lines.recv_timeout(WAIT);
    assert_eq!(quiet.unwrap_err(), RecvTimeoutError::Disconnected);
    let (status, said) = watch.ended();
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains("no longer mounted") || said.contains("the daemon ended"),
        "{said}"
    );
}

fn who_watches_holds_up_nobody(v: Variant) {
    let mut rig = rig(v);
    let (one, two) = (create(&rig, "one"), create(&rig, "two"));
    sh(&one, "echo 1 >> a");
    // More than the pipe buffer, without a reader.
    let deaf = rig
        .mount
        .command(&["branch", "conflicts", "--watch"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut deaf = deaf.expect("it starts");
    let many =
        "for n in $(seq 600); do echo x > a-long-name-of-a-file-so-that-a-pipe-is-full-$n; done";
    sh(&one, many);
    sh(&two, many);
    let watch = Watch::of(&rig);
    for _ in 0..600 {
        assert!(watch.next().starts_with("appeared a-long-name"));
    }
    // Waiting clients are limited, so that other verbs get a connection.
    let store = || fs::File::open(rig.path().join(".ckptfs")).expect("the store");
    let mut seen = Client::connect(store()).expect("the daemon");
    let state = seen
        .ask(WatchConflicts { seen: None })
        .expect("an answer")
        .seen;
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let mut client = Client::connect(store()).expect("the daemon");
            let ask = WatchConflicts {
                seen: Some(state.clone()),
            };
            std::thread::spawn(move || client.ask(ask))
        })
        .collect();
    wait_until("the rest are refused", || {
        waiting.iter().filter(|one| one.is_finished()).count() >= 4
    });
    sh(&two, "echo 2 >> a");
    assert_eq!(watch.next(), "appeared a: one two");
    let mut refused = 0;
    for one in waiting {
        match one.join().expect("no panic") {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.code, Code::TooManyConnections);
                refused += 1;
            }
        }
    }
    assert!(refused >= 4, "{refused}");
    // Ends when its reader has closed the pipe, and at once on a signal.
    let mut read = rig.mount.command(&["branch", "conflicts", "--watch"]);
    let mut left = read.stdout(Stdio::piped()).spawn().expect("it starts");
    drop(left.stdout.take());
    wait_until("it ends", || left.try_wait().expect("a child").is_some());
    let pid = rustix::process::Pid::from_child(&watch.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is alive");
    assert_eq!(watch.ended().1, "");
    rig.mount.umount();
    drop(deaf.stdout.take());
    wait_until("it ends", || deaf.try_wait().expect("a child").is_some());
}

fn a_command_is_run_for_each(v: Variant) {
    let rig = rig(v);
    let (one, two) = (create(&rig, "one"), create(&rig, "two"));
    let out = rig.image.path().join("told");
    let hostile = "$(touch pwned)`id`';\"x";
    let command = format!(
        "printf '%s|%s|%s|%s\\n' \"$CKPTFS_KIND\" \"$CKPTFS_PATH\" \"$CKPTFS_BRANCHES\" \"$CKPTFS_PARENT\" >> {}; echo said; exit 3",
        out.display()
    );
    let mut watching = rig
        .mount
        .command(&["branch", "conflicts", "--watch", "--exec", &command]);
    let work = rig.image.path().join("work");
    fs::create_dir(&work).unwrap();
    fs::set_permissions(&work, fs::Permissions::from_mode(0o700)).unwrap();
    watching.current_dir(&work);
    let watch = Watch::start(watching);
    for branch in [&one, &two] {
        fs::write(branch.join(hostile), branch.to_str().unwrap()).unwrap();
    }
    assert_eq!(watch.next(), format!("appeared {hostile}*: one two"));
    fs::write(rig.path().join(hostile), "here").unwrap();
    assert_eq!(watch.next(), format!("changed {hostile}*: one two here"));
    let expected = format!("appeared|{hostile}|one two|\nchanged|{hostile}|one two|1\n");
    wait_until("both events are reported", || {
        fs::read_to_string(&out).is_ok_and(|told| told == expected)
    });
    assert_eq!(
        fs::read_dir(&work).unwrap().count(),
        0,
        "a file name was executed"
    );
    // A failing command is reported and does not end the watch; its output is not data.
    let refused = rig.mount.run(&["branch", "conflicts", "--exec", "true"]);
    assert_eq!(refused.status.code(), Some(2));
    fs::remove_file(one.join(hostile)).unwrap();
    assert_eq!(watch.next(), format!("changed {hostile}*: two here"));
}
