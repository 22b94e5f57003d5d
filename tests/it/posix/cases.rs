//! Bugs found by the suites, each with its minimal case.

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::support::{SuiteDir, checkpoint, connect};
use crate::common::command::copy_program;
use crate::common::strace::Strace;
use crate::common::{Io, Variant, for_each_variant, skip};

for_each_variant! { reflink => a_running_program_is_not_emptied_by_an_open_to_read, a_slow_clone_is_of_one_instant_all_the_same }

/// A running copy of `sleep`, killed on drop.
struct RunningProgram(Child);

impl RunningProgram {
    fn start(program: &Path) -> RunningProgram {
        RunningProgram(
            Command::new(program)
                .arg("600")
                .stdin(Stdio::null())
                .spawn()
                .unwrap_or_else(|error| panic!("{}: {error}", program.display())),
        )
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `O_RDONLY | O_TRUNC` on a running program fails without truncating it. With FUSE_ATOMIC_O_TRUNC
/// the kernel checks for execution only after the open, and the daemon cannot check it; such an
/// open of an executable file is refused.
///
/// Failed before: once in thirty runs of `open::etxtbsy` of pjdfstest the call returned ETXTBSY but
/// had truncated the program, which died of SIGBUS.
fn a_running_program_is_not_emptied_by_an_open_to_read(v: Variant) {
    let rig = v.start();
    let program = rig.path().join("sleep");
    let sleep = ["/bin/sleep", "/usr/bin/sleep"]
        .into_iter()
        .find(|path| Path::new(path).exists())
        .expect("sleep is installed");
    copy_program(Path::new(sleep), &program);
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let bytes = fs::read(&program).unwrap();
    let running = RunningProgram::start(&program);
    // The standard library rejects O_TRUNC without write access.
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
        "the program is unchanged"
    );
    drop(running);
    fs::set_permissions(&program, Permissions::from_mode(0o644)).unwrap();
    empty().unwrap();
    assert_eq!(
        fs::metadata(&program).unwrap().len(),
        0,
        "a file that is not executable is truncated, as on Linux"
    );
}

/// Failed before: with fsx stopped, a checkpoint reported `atomic: false`. On a busy disk the first
/// clone used the whole time limit of a cut, which gave up without checking for changes.
fn a_slow_clone_is_of_one_instant_all_the_same(v: Variant) {
    let said = SuiteDir::new("strace");
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
        return skip("strace cannot trace the daemon");
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
