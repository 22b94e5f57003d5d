//! Bugs that the suites found, each with its smallest case.

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::support::{Slot, checkpoint, connect};
use crate::common::command::copy_program;
use crate::common::strace::Strace;
use crate::common::{Io, Variant, for_each_variant, skip};

for_each_variant! { reflink => a_running_program_is_not_emptied_by_an_open_to_read, a_slow_clone_is_of_one_instant_all_the_same }

/// A copy of `sleep` that runs; killed when dropped.
struct Running(Child);

impl Running {
    fn start(program: &Path) -> Running {
        Running(
            Command::new(program)
                .arg("600")
                .stdin(Stdio::null())
                .spawn()
                .unwrap_or_else(|error| panic!("{}: {error}", program.display())),
        )
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `open::etxtbsy` of pjdfstest failed once in thirty runs: `O_RDONLY | O_TRUNC` on a running
/// program said ETXTBSY, but had emptied it, and it died of SIGBUS. With FUSE_ATOMIC_O_TRUNC the
/// kernel asks whether the file is being executed only after the open. Nobody but the kernel knows
/// that, so such an open of a file that can be executed is refused.
fn a_running_program_is_not_emptied_by_an_open_to_read(v: Variant) {
    let rig = v.start();
    let program = rig.path().join("sleep");
    let sleep = ["/bin/sleep", "/usr/bin/sleep"]
        .into_iter()
        .find(|path| Path::new(path).exists())
        .expect("there is sleep");
    copy_program(Path::new(sleep), &program);
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let bytes = fs::read(&program).unwrap();
    let running = Running::start(&program);
    // The standard library does not pass O_TRUNC without write access.
    let empty = || {
        OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_TRUNC)
            .open(&program)
    };
    assert_eq!(empty().unwrap_err().raw_os_error(), Some(libc::ETXTBSY));
    assert_eq!(
        OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(&program)
            .unwrap_err()
            .raw_os_error(),
        Some(libc::ETXTBSY)
    );
    assert!(
        fs::read(&program).unwrap() == bytes,
        "the program is as it was"
    );
    drop(running);
    fs::set_permissions(&program, Permissions::from_mode(0o644)).unwrap();
    empty().unwrap();
    assert_eq!(
        fs::metadata(&program).unwrap().len(),
        0,
        "what cannot be executed is emptied, as Linux does"
    );
}

/// fsx stood still, and a checkpoint said that it is not of one instant: the disk was busy, the
/// first clone took all the time that a cut has, and it gave up without looking whether anything
/// had changed meanwhile.
fn a_slow_clone_is_of_one_instant_all_the_same(v: Variant) {
    let said = Slot::new("strace");
    let rig = v.start();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(rig.path().join("f"))
        .unwrap();
    file.set_len(1 << 20).unwrap();
    let mut client = connect(rig.path());
    checkpoint(&mut client);
    let calls = said.path().join("calls");
    let Some(slow) = Strace::start(rig.mount.pid(), "ioctl", "delay_exit=150000", &calls) else {
        return skip("there is no strace that may follow the daemon");
    };
    file.write_all_at(&[1; 100_000], 0).unwrap();
    let info = checkpoint(&mut client);
    drop(slow);
    assert!(info.atomic, "nothing was written while the clone was made");
    if v.io == Io::Passthrough {
        assert!(
            info.duration_us > Some(100_000),
            "the clone was not slow: {info:?}"
        );
    }
    file.write_all_at(&[2; 100_000], 0).unwrap();
    assert!(fs::read(rig.view(info.id.0).join("f")).unwrap()[..100_000] == [1; 100_000]);
}
