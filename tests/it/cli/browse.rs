//! `ckptfs browse`, in a terminal provided by tmux.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use super::support::Sandbox;
use crate::common::command::has;
use crate::common::skip;
use crate::common::wait::{same, wait_until};

/// A terminal of 120 columns and 32 lines in which a program runs.
struct Terminal<'s> {
    sandbox: &'s Sandbox,
}

impl Terminal<'_> {
    fn start<'s>(sandbox: &'s Sandbox, command: &str) -> Terminal<'s> {
        let terminal = Terminal { sandbox };
        let size = ["-x", "120", "-y", "32"];
        terminal.tmux(&[&["new-session", "-d"], &size[..], &[command]].concat());
        terminal
    }

    fn tmux(&self, words: &[&str]) -> String {
        let mut command = self.sandbox.hermetic("tmux", "");
        command
            .env("TMUX_TMPDIR", &self.sandbox.path)
            .args(["-L", "test", "-f", "/dev/null"])
            .args(words);
        self.sandbox.run(command).out()
    }

    /// Types keys. An Escape followed immediately by a key would be Alt and that key, so the Escape
    /// is read first.
    fn keys(&self, keys: &[&str]) -> &Self {
        for part in keys.split_inclusive(|key| *key == "Escape") {
            self.tmux(&[&["send-keys"], part].concat());
            if part.ends_with(&["Escape"]) {
                std::thread::sleep(Duration::from_millis(100));
                let tty = self.tmux(&["display-message", "-p", "#{pane_tty}"]);
                let tty = File::open(tty.trim()).expect("the terminal");
                let unread = || rustix::io::ioctl_fionread(&tty).expect("its queue");
                wait_until("the key is read", || same(unread(), 0));
            }
        }
        self
    }

    /// Waits until all of these texts are on the screen, and returns the screen.
    #[track_caller]
    fn shows(&self, wanted: &[&str]) -> String {
        wait_until(&format!("{wanted:?} is on the screen"), || {
            let screen = self.tmux(&["capture-pane", "-p"]);
            let shown = wanted.iter().all(|text| screen.contains(text));
            if shown { Ok(screen) } else { Err(screen) }
        })
    }
}

impl Drop for Terminal<'_> {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

/// Three checkpoints: `kept` and `src/a`; `src/a` modified and `gone` added; `gone` deleted.
fn mounted() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.file("p/kept", "kept\n");
    sandbox.file("p/src/a", "one\n");
    sandbox.ckptfs(&["mount", "p"]).ok();
    let checkpoint = |note: &str| {
        sandbox.ckptfs(&["-C", "p", "checkpoint", "-m", note]).ok();
    };
    checkpoint("first");
    sandbox.file("p/src/a", "two\n");
    sandbox.file("p/gone", "gone\n");
    checkpoint("second");
    std::fs::remove_file(sandbox.path.join("p/gone")).expect("unlink");
    checkpoint("third");
    sandbox
}

/// Copies the program and the browser to where `make install` puts them, below `usr`.
fn install(sandbox: &Sandbox) {
    let ours = Path::new(env!("CARGO_BIN_EXE_ckptfs"));
    let usr = sandbox.path.join("usr");
    for (from, to) in [("ckptfs", "bin"), ("ckptfs-browse", "libexec/ckptfs")] {
        let dir = usr.join(to);
        std::fs::create_dir_all(&dir).expect("mkdir");
        std::fs::copy(ours.with_file_name(from), dir.join(from)).expect("copy");
    }
}

fn content(sandbox: &Sandbox, path: &str) -> Option<String> {
    std::fs::read_to_string(sandbox.path.join(path)).ok()
}

#[test]
fn what_each_checkpoint_changed_is_seen_and_a_file_comes_back() {
    if !has("tmux") {
        skip("tmux is not installed");
        return;
    }
    let sandbox = mounted();
    install(&sandbox);
    let terminal = Terminal::start(&sandbox, "usr/bin/ckptfs -C p browse");
    terminal.shows(&["live", "third", "second", "first", "0 changes"]);
    // Two down: the second checkpoint, its changes, and their patch.
    terminal
        .keys(&["j", "j"])
        .shows(&["2 changes", "A gone", "M src/a", "asked for", "second"]);
    terminal.keys(&["Enter", "j"]).shows(&["-one", "+two"]);
    // All of its files: a directory, then a file.
    terminal.keys(&["t"]).shows(&["src/", "kept", "gone"]);
    terminal.keys(&["Enter"]).shows(&["2 /src", "two"]);
    // Back to its changes, and the versions of a file.
    terminal.keys(&["Escape", "t"]).shows(&["M src/a"]);
    terminal
        .keys(&["v"])
        .shows(&["Versions of gone", "added", "deleted"]);
    terminal
        .keys(&["Escape"])
        .shows(&["1 Checkpoints", "third"]);
    // `gone` is restored from the second checkpoint after a confirmation, and the restore undone.
    terminal.keys(&["g", "j", "j"]).shows(&["A gone"]);
    terminal.keys(&["Enter"]).shows(&["+gone"]);
    terminal
        .keys(&["r"])
        .shows(&["ckptfs restore 2 -- gone", "A gone", "y: do it"]);
    assert_eq!(content(&sandbox, "p/gone"), None);
    terminal
        .keys(&["y"])
        .shows(&["restored checkpoint 2: 1 change"]);
    assert_eq!(content(&sandbox, "p/gone").as_deref(), Some("gone\n"));
    terminal
        .keys(&["Escape", "z"])
        .shows(&["ckptfs undo", "y: do it"]);
    terminal
        .keys(&["y"])
        .shows(&["the previous state is checkpoint 5"]);
    assert_eq!(content(&sandbox, "p/gone"), None);
    terminal.keys(&["Escape", "q"]);
    drop(terminal);
    sandbox.ckptfs(&["umount", "p"]).ok();
}

#[test]
fn a_branch_and_a_tag_are_made_and_what_is_hostile_is_shown_harmless() {
    if !has("tmux") {
        skip("tmux is not installed");
        return;
    }
    let sandbox = mounted();
    sandbox.file(
        "p/\u{1b}]0;evil\u{7}\u{202e}name",
        "\u{1b}[2J\u{1b}[31mred\n",
    );
    sandbox
        .ckptfs(&["-C", "p", "checkpoint", "-m", "fourth\u{1b}[31m"])
        .ok();
    let terminal = Terminal::start(&sandbox, "ckptfs -C p browse");
    terminal
        .keys(&["j"])
        .shows(&["fourth\\x1b[31m", "\\x1b]0;evil\\x07\\u{202e}name"]);
    terminal.keys(&["Enter"]).shows(&["+\\x1b[2J\\x1b[31mred"]);
    terminal.keys(&["1", "j", "j", "T"]).shows(&["tag"]);
    terminal.keys(&["-l", "good"]);
    terminal.keys(&["Enter"]).shows(&["[good]"]);
    terminal.keys(&["b"]).shows(&["name of the branch"]);
    terminal.keys(&["-l", "try"]);
    terminal.keys(&["Enter"]).shows(&["p@try"]);
    assert_eq!(content(&sandbox, "p@try/gone").as_deref(), Some("gone\n"));
    // An error is displayed without leaving the screen.
    terminal
        .keys(&["Escape", "b"])
        .shows(&["name of the branch"]);
    terminal.keys(&["-l", "try"]);
    terminal.keys(&["Enter"]).shows(&["Error:"]);
    // The first checkpoint has no changes: without a selected file, `r` does not mean the whole
    // tree.
    terminal.keys(&["Escape", "1", "G"]).shows(&["0 changes"]);
    terminal.keys(&["Enter", "r"]).shows(&["select a file"]);
    terminal
        .keys(&["?"])
        .shows(&["quit", "versions of the selected file"]);
    drop(terminal);
    sandbox.ckptfs(&["umount", "p"]).ok();
}

#[test]
fn without_a_terminal_it_says_what_to_type() {
    let sandbox = mounted();
    let ran = sandbox.ckptfs(&["-C", "p", "browse"]);
    assert_eq!(ran.code, 2, "{}", ran.err());
    assert!(
        ran.err().contains("browse needs a terminal"),
        "{}",
        ran.err()
    );
    sandbox.ckptfs(&["umount", "p"]).ok();
}

#[test]
fn a_browser_that_is_not_installed_is_named() {
    let sandbox = mounted();
    let alone = sandbox.path.join("ckptfs-alone");
    std::fs::copy(env!("CARGO_BIN_EXE_ckptfs"), &alone).expect("copy");
    let mut command = sandbox.hermetic(alone.to_str().expect("a path"), "");
    command.args(["-C", "p", "browse"]);
    let ran = sandbox.run(command);
    assert_eq!(ran.code, 1, "{}", ran.err());
    assert!(
        ran.err().contains("ckptfs-browse is not installed"),
        "{}",
        ran.err()
    );
    sandbox.ckptfs(&["umount", "p"]).ok();
}
