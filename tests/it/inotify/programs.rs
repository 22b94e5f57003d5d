//! Programs that watch: `inotifywait -m -r`, `tail -F`, Node's `fs.watch`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::support::{EVENT_SECONDS, has, sh};
use crate::common::{Variant, for_each_variant, skip, tool};

/// A program that runs until dropped, and its output lines.
struct Program {
    child: Child,
    lines: Receiver<String>,
    said: Vec<String>,
}

impl Program {
    fn start(dir: &Path, name: &str, arguments: &[&str]) -> Program {
        let mut child = tool(name, arguments)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let pipes: [Box<dyn std::io::Read + Send>; 2] = [
            Box::new(child.stdout.take().unwrap()),
            Box::new(child.stderr.take().unwrap()),
        ];
        for pipe in pipes {
            let sender = sender.clone();
            std::thread::spawn(move || {
                BufReader::new(pipe)
                    .lines()
                    .map_while(Result::ok)
                    .all(|line| sender.send(line).is_ok())
            });
        }
        Program {
            child,
            lines,
            said: Vec::new(),
        }
    }

    /// Waits until each of `parts` is part of a line.
    #[track_caller]
    fn expect(&mut self, parts: &[&str]) {
        let end = Instant::now() + Duration::from_secs(EVENT_SECONDS);
        loop {
            let missing: Vec<&&str> = parts
                .iter()
                .filter(|part| !self.said.iter().any(|line| line.contains(**part)))
                .collect();
            if missing.is_empty() {
                return;
            }
            match self
                .lines
                .recv_timeout(end.saturating_duration_since(Instant::now()))
            {
                Ok(line) => self.said.push(line),
                Err(_) => panic!("{missing:?} is missing in its output: {:#?}", self.said),
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const TREE: &str = "mkdir -p src/lib docs; echo 1 > src/main; echo 2 > src/lib/a; echo 3 > docs/readme; echo 4 > docs/old; echo 5 > log";
const CHANGED: &str = "echo changed > src/main; rm src/lib/a; echo new > src/lib/b; mkdir src/more; mv docs/old docs/older; chmod 600 docs/readme";

fn inotifywait_sees_a_restore(v: Variant) {
    if !has("inotifywait") {
        return skip("inotifywait is not installed (make deps)");
    }
    let rig = v.start();
    sh(rig.path(), TREE);
    let id = rig.mount.checkpoint();
    sh(rig.path(), CHANGED);
    let mut program = Program::start(rig.path(), "inotifywait", &["-m", "-r", "."]);
    program.expect(&["Watches established"]);
    rig.mount.restore(id);
    program.expect(&[
        "./src/ MOVED_TO main",
        "./src/lib/ CREATE a",
        "./src/lib/ DELETE b",
        "./src/ DELETE,ISDIR more",
        "./docs/ CREATE old",
        "./docs/ DELETE older",
        "./docs/ ATTRIB readme",
    ]);
}

fn tail_follows_a_restored_file(v: Variant) {
    let rig = v.start();
    sh(rig.path(), TREE);
    let id = rig.mount.checkpoint();
    sh(rig.path(), "echo later > log");
    let mut program = Program::start(rig.path(), "tail", &["-n", "+1", "-F", "log"]);
    program.expect(&["later"]);
    rig.mount.restore(id);
    program.expect(&["5"]);
    sh(rig.path(), "echo appended >> log");
    program.expect(&["appended"]);
}

/// Prints the events of `fs.watch` for a directory and two files.
const WATCH_JS: &str = "
const fs = require('fs');
fs.watch('src', (event, name) => console.log('dir', event, name));
fs.watch('docs/readme', (event, name) => console.log('file', event, name));
fs.watch('src/main', (event, name) => console.log('main', event, name));
console.log('ready');
";

fn node_sees_a_restore(v: Variant) {
    if !has("node") {
        return skip("node is not installed");
    }
    let rig = v.start();
    sh(rig.path(), TREE);
    let id = rig.mount.checkpoint();
    sh(rig.path(), CHANGED);
    fs::write(rig.image.path().join("watch.js"), WATCH_JS).unwrap();
    let script = rig.image.path().join("watch.js");
    let mut program = Program::start(rig.path(), "node", &[script.to_str().unwrap()]);
    program.expect(&["ready"]);
    rig.mount.restore(id);
    program.expect(&[
        "dir rename main",
        "dir rename more",
        "file change readme",
        "main rename main",
    ]);
}

for_each_variant! { xfs => tail_follows_a_restored_file, node_sees_a_restore }
for_each_variant! { reflink => inotifywait_sees_a_restore }
