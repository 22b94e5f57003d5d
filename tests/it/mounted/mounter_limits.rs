//! The daemon does not inherit limits, priority and signals of the mounting process. Failed before:
//! SIGXFSZ or SIGXCPU killed the daemon, and the mount was dead.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::common::{Io, MountOpts, Variant, for_each_variant};

for_each_variant! { all =>
    the_daemon_has_no_limits_of_the_process_that_mounts,
    a_limit_that_cannot_be_lifted_is_reported,
}

/// Settings that a shell may have before a mount.
const LIMITED: &str = "trap '' CHLD; echo 700 > /proc/self/oom_score_adj; ulimit -S -f 4096; ulimit -S -t 60; ulimit -S -v 4000000; ulimit -S -d 4000000; umask 777; cd /proc; exec nice -n 15";

fn mount_from(limits: &str, root: &Path, v: Variant) -> Output {
    let program = env!("CARGO_BIN_EXE_ckptfs");
    let (io, root) = (v.io.name(), root.display());
    let line = format!("{limits} {program} mount --io={io} --tripwire=off {root}");
    let output = Command::new("bash").args(["-c", &line]).output();
    output.expect("a shell")
}

fn the_daemon_has_no_limits_of_the_process_that_mounts(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io), |dir| {
        fs::write(dir.join("f"), "1").unwrap();
        let large = fs::File::create(dir.join("large")).unwrap();
        large.write_all_at(b"end", 20 << 20).unwrap();
    });
    rig.mount.umount();
    let root = rig.path().to_owned();
    let mounted = mount_from(LIMITED, &root, v);
    assert!(mounted.status.success(), "{mounted:?}");
    rig.mount.adopt();
    for pid in [Some(rig.mount.pid()), rig.mount.holder_pid()] {
        let of = |name: &str| {
            let pid = pid.expect("a process");
            fs::read_to_string(Path::new("/proc").join(pid.to_string()).join(name)).unwrap()
        };
        let limits = of("limits");
        for limit in [
            "Max file size",
            "Max cpu time",
            "Max address space",
            "Max data size",
        ] {
            let line = limits.lines().find(|line| line.starts_with(limit)).unwrap();
            assert!(line.contains("unlimited            unlimited"), "{line}");
        }
        assert_eq!(of("oom_score_adj").trim(), "0");
        // After the name: the state, and sixteen more fields.
        let stat = of("stat");
        let nice = stat.rsplit(')').next().unwrap().split_whitespace().nth(16);
        assert_eq!(nice, Some("0"), "{stat}");
    }
    assert_eq!(rig.mount.checkpoint(), 1);
    let at = |name: &str, bytes: &[u8], offset| {
        let mut file = fs::OpenOptions::new();
        let file = file.write(true).create(true).open(root.join(name)).unwrap();
        file.write_all_at(bytes, offset).unwrap();
    };
    at("large", b"END", 20 << 20);
    at("new", b"x", 40 << 20);
    let mut end = [0; 3];
    let view = fs::File::open(rig.view(1).join("large")).unwrap();
    view.read_exact_at(&mut end, 20 << 20).unwrap();
    assert_eq!(&end, b"end");
    drop(view);
    rig.mount.restore(1);
    assert!(!root.join("new").exists());
    rig.mount.umount();
}

fn a_limit_that_cannot_be_lifted_is_reported(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io), |dir| {
        fs::write(dir.join("f"), "1").unwrap();
    });
    rig.mount.umount();
    let root = rig.path().to_owned();
    // Root with CAP_SYS_RESOURCE can raise it, and then it has no effect.
    let lift = ["-c", "ulimit -f 8192; ulimit -f unlimited"];
    let lifts = Command::new("bash").args(lift).output().unwrap();
    let lifts = lifts.status.success();
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let refused = mount_from("ulimit -f 8192; exec", &root, v);
    if lifts {
        assert!(refused.status.success(), "{}", said(&refused));
        rig.mount.adopt();
        rig.mount.umount();
    } else {
        assert!(!refused.status.success());
        assert!(
            said(&refused).contains("8.0 MiB (ulimit -f)"),
            "{}",
            said(&refused)
        );
    }
    let mounted = mount_from("ulimit -f 262144; exec", &root, v);
    assert!(mounted.status.success(), "{mounted:?}");
    assert_eq!(
        said(&mounted).contains("256.0 MiB (ulimit -f)"),
        !lifts,
        "{mounted:?}"
    );
    rig.mount.adopt();
    assert_eq!(rig.mount.checkpoint(), 1);
    let file = fs::File::create(root.join("large")).unwrap();
    let written = file.write_all_at(b"x", 300 << 20);
    drop(file);
    // In a passthrough mount the writer's own limit applies.
    if v.io == Io::Daemon && !lifts {
        let large = 27;
        assert_eq!(written.unwrap_err().raw_os_error(), Some(large));
    }
    // The daemon is alive.
    fs::write(root.join("f"), "2").unwrap();
    rig.mount.restore(1);
    rig.mount.umount();
}
