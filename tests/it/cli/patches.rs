//! `diff --patch` of renamed directories, applied by git.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::support::Sandbox;

/// Returns numbered lines.
pub fn lines(from: u32, to: u32) -> String {
    (from..to).map(|line| format!("line {line}\n")).collect()
}

/// Copies the view `from` and applies the patch to `to` with git. Returns the copy and the patch.
pub fn patched(sandbox: &Sandbox, from: &str, to: &str) -> (PathBuf, String) {
    let copy = sandbox.path.join(format!("copy{from}"));
    let view = sandbox.path.join(format!("p/.snapshots/{from}"));
    let mut cp = sandbox.hermetic("cp", "");
    sandbox
        .run({
            cp.arg("-a").arg(view).arg(&copy);
            cp
        })
        .ok();
    let patch = sandbox.ckptfs_in("p", &["diff", "--patch", from, to]).ok();
    assert_eq!(patch.err(), "");
    let file = sandbox.path.join(format!("{from}.patch"));
    fs::write(&file, &patch.stdout).expect("write");
    let mut git = sandbox.hermetic("git", "");
    git.current_dir(&copy)
        .args(["apply", "-p1"])
        .arg(&file)
        .env("GIT_CONFIG_GLOBAL", "/dev/null");
    let applied = sandbox.run(git);
    assert_eq!(applied.code, 0, "{}\n{}", applied.err(), patch.out());
    (copy, patch.out())
}

/// Returns names, kinds, contents and executable bits, all that git records of a tree.
fn known(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(at) = open.pop() {
        for entry in fs::read_dir(&at).expect("a directory") {
            let path = entry.expect("an entry").path();
            let meta = fs::symlink_metadata(&path).expect("stat");
            let name = path.strip_prefix(dir).expect("below").display().to_string();
            if meta.is_dir() {
                open.push(path);
            } else if meta.is_symlink() {
                found.push(format!(
                    "{name} -> {}",
                    fs::read_link(&path).expect("a link").display()
                ));
            } else {
                let content = fs::read(&path).expect("content");
                found.push(format!(
                    "{name} {} {}",
                    meta.permissions().mode() & 0o100,
                    content.escape_ascii()
                ));
            }
        }
    }
    found.sort();
    found
}

/// Failed before: the patch omitted files that only moved with their directory.
#[test]
fn a_renamed_directory_takes_all_that_is_in_it_along() {
    let sandbox = Sandbox::new();
    let p = |name: &str| sandbox.path.join("p").join(name);
    for name in [
        "unchanged",
        "changed",
        "run",
        "sub/deep/unchanged",
        "sub/deep/changed",
        "gone",
        "moves out",
        "sub/é \"x\"",
        "other/stays",
    ] {
        let below = if name.starts_with("other") {
            name.to_owned()
        } else {
            format!("dir/{name}")
        };
        sandbox.file(format!("p/{below}"), &lines(0, 40));
    }
    fs::write(p("dir/binary"), b"\0\x01\x02").expect("write");
    fs::set_permissions(p("dir/run"), fs::Permissions::from_mode(0o755)).expect("chmod");
    symlink("unchanged", p("dir/link")).expect("link");
    symlink("nowhere", p("dir/sub/link")).expect("link");
    sandbox.ckptfs(&["mount", "p"]).ok();
    sandbox.ckptfs_in("p", &["checkpoint"]).is(0, "1\n", "");
    fs::rename(p("dir"), p("new name")).expect("mv");
    fs::write(p("new name/changed"), lines(1, 42)).expect("write");
    fs::write(p("new name/sub/deep/changed"), lines(3, 40)).expect("write");
    fs::write(p("new name/made"), "made\n").expect("write");
    fs::remove_file(p("new name/gone")).expect("rm");
    fs::rename(p("new name/moves out"), p("moved out")).expect("mv");
    fs::rename(p("other"), p("new name/moved in")).expect("mv");
    fs::rename(p("new name/sub/deep"), p("new name/deeper")).expect("mv");
    sandbox.ckptfs_in("p", &["checkpoint"]).is(0, "2\n", "");
    for (from, to) in [("1", "2"), ("2", "1")] {
        let (copy, patch) = patched(&sandbox, from, to);
        assert_eq!(
            known(&copy),
            known(&p(&format!(".snapshots/{to}"))),
            "{from} to {to}\n{patch}"
        );
    }
    // A moved file is printed as a rename, without its content.
    let patch = sandbox
        .ckptfs_in("p", &["diff", "--patch", "1", "2"])
        .ok()
        .out();
    assert!(
        patch.contains(
            "similarity index 100%\nrename from dir/unchanged\nrename to new name/unchanged\n"
        ),
        "{patch}"
    );
}

#[test]
fn a_log_has_the_patch_of_each_checkpoint() {
    let sandbox = Sandbox::new();
    sandbox.file("p/a", "one\n");
    sandbox.file("p/b", "b\n");
    sandbox.ckptfs(&["mount", "p"]).ok();
    let log = |arguments: &[&str]| {
        let ran = sandbox.ckptfs_in("p", &[&["log", "-p"], arguments].concat());
        assert_eq!(ran.err(), "");
        ran.ok().out()
    };
    let checkpoint = |note: &str| {
        sandbox.ckptfs_in("p", &["checkpoint", "-m", note]).ok();
    };
    checkpoint("first");
    sandbox.file("p/a", "two\n");
    checkpoint("second");
    sandbox.file("p/b", "c\n");
    checkpoint("third");
    let all = log(&[]);
    let found = ["  third", "-b\n+c\n", "  second", "-one\n+two\n", "  first"];
    let at: Vec<Option<usize>> = found.iter().map(|text| all.find(text)).collect();
    assert!(at.iter().all(Option::is_some) && at.is_sorted(), "{all}");
    let of_a = log(&["a"]);
    let is_there = |text: &str| of_a.contains(text);
    assert!(
        is_there("second") && is_there("+two") && !is_there("third"),
        "{of_a}"
    );
    assert!(!log(&["-n", "1"]).contains("second"));
    assert!(!log(&["--before", "2"]).contains("+two"));
    let head = sandbox.ckptfs_in("p", &["diff", "HEAD"]);
    assert!(
        head.err().contains("`latest` is the newest"),
        "{}",
        head.err()
    );
    sandbox.ckptfs(&["umount", "p"]).ok();
}
