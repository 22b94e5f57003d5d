//! The scripts around the tests: counting, and the helper that `mount -t ckptfs` calls.

use std::fs;
use std::path::Path;

use crate::common::run_dir::script;
use crate::common::{fails, run_limited, scratch, stdout_of, succeeds, tool};

fn stage(dir: &Path, name: &str, log: &str, status: &str) {
    fs::write(dir.join(format!("{name}.log")), log).unwrap();
    fs::write(dir.join(format!("{name}.status")), status).unwrap();
    let stages = fs::read_to_string(dir.join("stages")).unwrap_or_default();
    fs::write(dir.join("stages"), format!("{stages}{name}\n")).unwrap();
}

/// The last line that `summary.sh` prints and whether it calls the run good.
fn summary(dir: &Path) -> (String, bool) {
    let output = run_limited(
        &mut tool("bash", &[script("summary.sh").as_os_str(), dir.as_os_str()]),
        60,
    );
    let text = String::from_utf8(output.stdout).unwrap();
    (
        text.lines().last().unwrap_or_default().to_owned(),
        output.status.success(),
    )
}

#[test]
fn counts_are_summed_over_the_stages() {
    let dir = scratch();
    stage(dir.path(), "fmt", "", "0 1 \n");
    stage(
        dir.path(),
        "unit",
        "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n",
        "0 1 \n",
    );
    stage(
        dir.path(),
        "cli",
        "\nSKIPPED: no npm\nok\ntest result: ok. 5 passed; 0 failed; 0 ignored; 0 measured\n",
        "0 1 \n",
    );
    assert_eq!(
        summary(dir.path()),
        ("17 passed, 0 failed, 2 skipped".to_owned(), true)
    );
}

#[test]
fn a_stage_that_fails_without_naming_a_test_is_one_failure() {
    let dir = scratch();
    stage(dir.path(), "clippy", "error: no\n", "101 1 \n");
    stage(
        dir.path(),
        "mounted",
        "test a ... ok\ntest b ... \nSKIPPED: no\nok\ntest c ... ",
        "124 1 hung: stopped after 1 s\n",
    );
    stage(
        dir.path(),
        "unit",
        "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured\n",
        "101 1 \n",
    );
    assert_eq!(
        summary(dir.path()),
        ("4 passed, 4 failed, 1 skipped".to_owned(), false)
    );
}

/// What `mount.ckptfs` would run for these arguments.
fn mount_helper(arguments: &[&str]) -> String {
    let helper = Path::new(env!("CARGO_MANIFEST_DIR")).join("mount/mount.ckptfs");
    stdout_of(
        tool("sh", &[helper]).args(arguments).env("CKPTFS", "echo"),
        60,
    )
    .trim()
    .to_owned()
}

#[test]
fn mount_options_become_arguments() {
    assert_eq!(mount_helper(&["/data", "/mnt"]), "mount /data /mnt");
    assert_eq!(mount_helper(&["/data", "/data", "-o", "rw"]), "mount /data");
    let options = "rw,suid,noauto,_netdev,x-systemd.automount,io=daemon,snapdir=visible,snapdir-names=gmt,writes=daemon,snapdir-mode=700";
    assert_eq!(
        mount_helper(&["/data", "/mnt", "-n", "-v", "-o", options]),
        "mount /data /mnt -o suid --io daemon --snapdir visible --snapdir-names gmt --writes daemon --snapdir-mode 700"
    );
    assert_eq!(mount_helper(&["-o", "rw", "-f", "/data", "/mnt"]), "");
    assert_eq!(
        mount_helper(&["/data", "/mnt", "-r"]),
        "mount /data /mnt -o ro"
    );
    assert_eq!(
        mount_helper(&["/data", "/mnt", "-o", "noexec,ro"]),
        "mount /data /mnt -o noexec -o ro"
    );
}

/// `noatime`, as half of all lines in fstab have it, was refused.
#[test]
fn mount_options_of_others_are_accepted() {
    let options = "defaults,noatime,relatime,nodiratime,lazytime,strictatime,async,user_xattr,acl,_netdev,nofail,x-gvfs-show,users";
    assert_eq!(
        mount_helper(&["/data", "/mnt", "-o", options]),
        "mount /data /mnt"
    );
}

#[test]
fn mount_options_that_cannot_be_kept_are_refused() {
    let helper = Path::new(env!("CARGO_MANIFEST_DIR")).join("mount/mount.ckptfs");
    for option in ["sync", "dirsync", "colour=blue"] {
        let said = fails(
            tool(
                "sh",
                &[
                    helper.as_os_str(),
                    "/data".as_ref(),
                    "/mnt".as_ref(),
                    "-o".as_ref(),
                    option.as_ref(),
                ],
            )
            .env("CKPTFS", "echo"),
            60,
        );
        assert!(said.contains(option), "{said}");
    }
}

#[test]
fn every_script_is_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in [
        "tests/run.sh",
        "tests/deps.sh",
        "tests/tools.sh",
        "tests/cleanup.sh",
        "tests/deny.sh",
        "tests/summary.sh",
        "tests/check-macos.sh",
        "benches/demo.sh",
        "benches/tree.sh",
        ".ci/run",
    ] {
        succeeds(tool("bash", &["-n"]).arg(root.join(name)), 60);
    }
}

#[test]
fn a_tree_of_many_files_has_as_many_as_were_asked_for() {
    let dir = scratch();
    let source = dir.path().join("source");
    fs::create_dir_all(source.join("crate-1/src")).unwrap();
    for number in 0..7 {
        fs::write(
            source.join(format!("crate-1/src/{number}.rs")),
            "fn main() {}\n",
        )
        .unwrap();
    }
    let tree = dir.path().join("tree");
    let maker = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/tree.sh");
    succeeds(
        tool(
            "bash",
            &[maker.as_os_str(), tree.as_os_str(), "20".as_ref()],
        )
        .env("TREE_SOURCE", &source),
        60,
    );
    let found = stdout_of(
        &mut tool("find", &[tree.to_str().unwrap(), "-type", "f"]),
        60,
    );
    assert_eq!(found.lines().count(), 20);
}
