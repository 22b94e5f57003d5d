//! Descriptors, mappings and working directories opened before the mount bypass it, and must be
//! reported.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};

use crate::common::wait::{same, seen, wait_until};
use crate::common::{
    Fs, Image, Io, Mount, MountOpts, Rig, Variant, for_each_variant, run_limited, skip, tool,
};

for_each_variant! { xfs =>
    a_working_directory_below_the_mount_is_told_by_every_verb,
    who_has_something_below_the_mount_is_named,
    who_hides_below_the_mount_is_found,
}

/// `cd p; ckptfs mount .`. Failed before: edits were not seen, `status` reported no changes, and
/// deleted files were lost.
fn a_working_directory_below_the_mount_is_told_by_every_verb(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io), |dir| {
        fs::create_dir(dir.join("sub")).unwrap();
        fs::write(dir.join("f"), "old").unwrap();
    });
    rig.mount.umount();
    let script = r#"
cd "$1/sub"
"$2" mount .. --io "$3"
for verb in checkpoint status log "diff 1" "show 1:" "show 1:f" ops du "run -- true" "restore 1"; do
    "$2" $verb 2>"$1.said" >/dev/null
    grep -q 'enter the mount: cd \.' "$1.said" || echo "silent: $verb"
done
cd .
"$2" status 2>&1 >/dev/null
"#;
    let (dir, ckptfs) = (rig.path().to_owned(), env!("CARGO_BIN_EXE_ckptfs"));
    let mut shell = tool("sh", &["-c", script, "sh"]);
    shell.arg(&dir).args([ckptfs, v.io.name()]);
    let output = run_limited(&mut shell, 60);
    rig.mount.adopt();
    let (said, told) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert_eq!(said, "", "stderr: {told}");
    assert_eq!(
        told.matches("enter the mount: cd .").count(),
        1,
        "mount also prints it: {told}"
    );
}

/// A process started before the mount, killed when dropped.
struct EarlierProcess(Child);

impl EarlierProcess {
    fn start(program: &str, arguments: &[&str], dir: &Path) -> EarlierProcess {
        let child = tool(program, arguments)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        EarlierProcess(child)
    }

    fn pid(&self) -> u64 {
        self.0.id().into()
    }
}

impl Drop for EarlierProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the processes that `status` names.
fn below(rig: &Rig) -> Vec<u64> {
    let status = rig.mount.status_json();
    status["below"]
        .as_array()
        .unwrap()
        .iter()
        .map(|holder| holder["pid"].as_u64().unwrap())
        .collect()
}

/// A shell, a program with an open file, and a container with a bind mount of the directory.
fn who_has_something_below_the_mount_is_named(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io), |dir| {
        fs::create_dir_all(dir.join("sub/deep")).unwrap();
        fs::write(dir.join("read"), "r").unwrap();
        fs::write(dir.join("sub/log"), [0; 64]).unwrap();
    });
    assert_eq!(
        rig.mount.status_json()["below"],
        serde_json::json!([]),
        "no process is below the mount"
    );
    rig.mount.umount();
    let dir = rig.path().to_owned();
    let shell = EarlierProcess::start("sleep", &["600"], &dir.join("sub"));
    let reader = EarlierProcess::start("sh", &["-c", "exec 7<read; exec sleep 600"], &dir);
    // The new namespace has copies of other tests' mounts, which would prevent their unmount.
    let script = "umount -l -a -t fuse.ckptfs; mkdir -p $0/m; mount --bind $1/sub $0/m; cd /; exec 7<>$0/m/log; exec sleep 600";
    let place = crate::common::scratch();
    let container = EarlierProcess::start(
        "unshare",
        &[
            "-m",
            "sh",
            "-c",
            script,
            place.path().to_str().unwrap(),
            dir.to_str().unwrap(),
        ],
        Path::new("/"),
    );
    let is_in = |pid: u64, fd: &str| {
        fs::read_link(format!("/proc/{pid}/fd/{fd}"))
            .is_ok_and(|path| path.is_absolute() && path.exists() || path.ends_with("log"))
    };
    wait_until("the programs are running", || {
        is_in(reader.pid(), "7") && is_in(container.pid(), "7")
    });

    let output = Mount::try_start(&dir, &MountOpts::new(v.io));
    rig.mount.adopt();
    let told = String::from_utf8_lossy(&output.stderr);
    for (who, what) in [
        (&shell, "has its working directory there"),
        (&reader, "read open"),
        (&container, "log open"),
    ] {
        assert!(
            told.contains(&format!("(pid {})", who.pid())) && told.contains(what),
            "{what}: {told}"
        );
    }
    what_is_written_below_is_kept(&rig, container.pid());
    let mut all = vec![shell.pid(), reader.pid(), container.pid()];
    all.sort_unstable();
    // Until its exec, a child of another thread has copies of our descriptors.
    wait_until("exactly these are named", || same(below(&rig), all.clone()));
    // `status` limits its search time.
    wait_until("status reports it", || {
        let text = rig.mount.run(&["status"]);
        let said = String::from_utf8_lossy(&text.stderr).into_owned();
        seen(said.contains("has its working directory there"), text)
    });
    drop((shell, reader, container));
    wait_until("no process is named", || {
        same(below(&rig), Vec::<u64>::new())
    });
}

/// Asserts that each checkpoint contains a write that no request preceded.
fn what_is_written_below_is_kept(rig: &Rig, writer: u64) {
    let log = File::options()
        .write(true)
        .open(format!("/proc/{writer}/fd/7"))
        .unwrap();
    for value in [1, 2] {
        log.write_all_at(&[value; 64], 0).unwrap();
        let id = rig.mount.checkpoint();
        log.write_all_at(&[9; 64], 0).unwrap();
        assert_eq!(fs::read(rig.view(id).join("sub/log")).unwrap(), [value; 64]);
    }
}

/// Writes its input to a file in a way that hides it in `/proc/PID`: in a thread with a separate
/// descriptor table, or in a thread that outlives the main thread.
const HIDDEN: &str = r#"
import ctypes, mmap, os, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
name, how = os.fsencode(sys.argv[1]), sys.argv[2]
def work():
    if how == "table":
        assert libc.unshare(0x400) == 0     # CLONE_FILES
        fd = os.open(name, os.O_WRONLY)
        store = lambda byte: os.pwrite(fd, byte * 64, 0)
    else:
        fd = os.open(name, os.O_RDWR)
        memory = mmap.mmap(fd, 64)
        os.close(fd)
        def store(byte): memory[:] = byte * 64
    store(b"0")
    print("ready", flush=True)
    for line in sys.stdin.buffer:
        store(line[:1])
        print("stored", flush=True)
threading.Thread(target=work, daemon=False).start()
if how == "leader": libc.syscall(60 if os.uname().machine == "x86_64" else 93, 0)     # exit(2) of this thread alone
"#;

struct HiddenWriter {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl HiddenWriter {
    fn start(path: &Path, how: &str) -> HiddenWriter {
        let mut python = tool("python3", &["-c", HIDDEN]);
        let mut child = python
            .arg(path)
            .arg(how)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut hidden = HiddenWriter { child, output };
        hidden.says("ready");
        hidden
    }

    fn says(&mut self, word: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), word);
    }

    fn store(&mut self, byte: u8) {
        self.child
            .stdin
            .as_mut()
            .unwrap()
            .write_all(&[byte, b'\n'])
            .unwrap();
        self.says("stored");
    }
}

impl Drop for HiddenWriter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `/proc/PID/fd` and `/proc/PID/maps` show the main thread.
fn who_hides_below_the_mount_is_found(v: Variant) {
    if run_limited(&mut tool("sh", &["-c", "command -v python3"]), 60)
        .status
        .code()
        != Some(0)
    {
        return skip("python3 is not installed");
    }
    let names = ["plain", "line\nend", r"not\012so"];
    let mut hidden = Vec::new();
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        for (name, how) in names.into_iter().zip(["table", "leader", "leader"]) {
            fs::write(dir.join(name), [b'0'; 64]).unwrap();
            hidden.push(HiddenWriter::start(&dir.join(name), how));
        }
    });
    for round in [b'1', b'3'] {
        hidden.iter_mut().for_each(|hidden| hidden.store(round));
        let id = rig.mount.checkpoint();
        hidden.iter_mut().for_each(|hidden| hidden.store(round + 1));
        for name in names {
            assert_eq!(
                fs::read(rig.view(id).join(name)).unwrap(),
                [round; 64],
                "{name:?}: the view shows a later write"
            );
        }
    }
}

/// Failed before: a mount on the parent directory hid a mounted tree with its history.
#[test]
fn mounts_inside_are_refused_or_named() {
    let image = Image::of(Fs::Xfs);
    let outer = image.dir("outer");
    fs::create_dir_all(outer.join("tmpfs")).unwrap();
    let inner = image.dir("outer/inner");
    let opts = MountOpts::new(Io::Daemon);
    {
        let _inner = Mount::start(&inner, &opts);
        let output = Mount::try_start(&outer, &opts);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success()
                && told.contains("inner is mounted inside")
                && told.contains("ckptfs umount"),
            "{told}"
        );
    }
    let output = Mount::try_start(Path::new("/"), &opts);
    assert!(
        !output.status.success()
            && String::from_utf8_lossy(&output.stderr).contains("/ cannot be mounted: every"),
        "{output:?}"
    );
    assert!(!Path::new("/.ckptfs").exists());

    let place = outer.join("tmpfs");
    crate::common::succeeds(tool("mount", &["-t", "tmpfs", "none"]).arg(&place), 60);
    let output = Mount::try_start(&outer, &opts);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let gone = tool("umount", &["-l"]).arg(&outer).status();
    crate::common::succeeds(tool("umount", &["-l"]).arg(&place), 60);
    assert!(
        output.status.success() && gone.is_ok_and(|status| status.success()),
        "{told}"
    );
    assert!(
        told.contains("inside the directory are not in checkpoints: tmpfs\n"),
        "{told}"
    );
}
