//! The scripts around the tests, and `mount.ckptfs`, the helper of `mount -t ckptfs`.

use std::fs;
use std::path::Path;

use crate::common::{fails, scratch, stdout_of, succeeds, tool};

/// Returns the command that `mount.ckptfs` runs for these arguments.
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

/// Failed before: `noatime`, common in fstab, was rejected.
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
        "tests/deps.sh",
        "tests/tools.sh",
        "tests/cleanup.sh",
        "tests/deny.sh",
        "tests/check-macos.sh",
        "benches/demo.sh",
        "benches/tree.sh",
        ".ci/run",
    ] {
        succeeds(tool("bash", &["-n"]).arg(root.join(name)), 60);
    }
    let compile = "import sys; compile(open(sys.argv[1]).read(), sys.argv[1], 'exec')";
    succeeds(
        tool("python3", &["-c", compile]).arg(root.join("tests/run.py")),
        10,
    );
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
