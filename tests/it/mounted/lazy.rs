//! `umount -l` while a program uses the mount. Failed before: `mount` recommended `status` and
//! `umount`, which reported that nothing was mounted.

use std::fs;
use std::process::{Command, Stdio};

use crate::common::wait::wait_until;
use crate::common::{Fs, Image, Io, Mount, MountOpts};

#[test]
fn a_daemon_that_still_serves_is_named_and_can_be_ended() {
    let image = Image::of(Fs::Xfs);
    let dir = image.dir("project");
    fs::write(dir.join("f"), "1").unwrap();
    let opts = MountOpts::new(Io::Passthrough);
    let mut mount = Mount::start(&dir, &opts);
    assert_eq!(mount.checkpoint(), 1);
    let mut program = Command::new("sh")
        .args(["-c", "exec 5>>f; echo; exec sleep 600"])
        .current_dir(&dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let cwd = format!("/proc/{}/fd/5", program.id());
    wait_until("it has the file open", || fs::read_link(&cwd).is_ok());
    let gone = Command::new("umount").arg("-l").arg(&dir).status();
    assert!(gone.unwrap().success());
    let said = |mount: &Mount, arguments: &[&str]| {
        let ran = mount.run(arguments);
        (
            ran.status.success(),
            String::from_utf8_lossy(&ran.stderr).into_owned(),
        )
    };
    let dir_text = dir.to_str().unwrap();
    for (verb, done) in [("mount", false), ("umount", false), ("status", true)] {
        let line: &[&str] = if verb == "status" {
            &["status"]
        } else {
            &[verb, dir_text]
        };
        let (success, text) = said(&mount, line);
        assert_eq!(success, done, "{verb}: {text}");
        assert!(
            text.contains(&format!("(pid {})", program.id()))
                && text.contains(&format!("ckptfs umount --force {dir_text}")),
            "{verb}: {text}"
        );
    }
    let waits = mount.status_json()["waits_for"].clone();
    assert_eq!(waits[0]["pid"], program.id());
    let (success, text) = said(&mount, &["umount", "--force", dir_text]);
    assert!(success, "{text}");
    mount.remount();
    assert_eq!(fs::read_to_string(mount.view(1).join("f")).unwrap(), "1");
    // The same with a visible mount that is in use.
    let _file = fs::File::open(dir.join("f")).unwrap();
    assert!(!said(&mount, &["umount", dir_text]).0);
    let _ = program.kill();
    let _ = program.wait();
    let ran = mount.run(&["umount", "--force", dir_text]);
    assert!(ran.status.success(), "{ran:?}");
    mount.remount();
    mount.umount();
}
