//! Samba's `shadow_copy2`: checkpoints as previous versions in Windows. The test runs its own
//! server, with a separate port and directories, for guests only.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use super::support::{missing, output, variants};
use crate::common::command::wait_limited;
use crate::common::wait::{WAIT, wait_until};
use crate::common::{
    MountOpts, Rig, RunDir, Variant, process, run_limited, scratch, skip, succeeds, tool,
};

variants! { previous_versions_of_a_share_and_of_one_below => xfs_passthrough, btrfs_daemon }

/// Returns the reason why the test cannot run here, if any.
fn unavailable() -> Option<String> {
    let has_module = || {
        let built = output(Path::new("/"), "smbd", &["-b"]);
        let find = |line: &str| line.trim().strip_prefix("MODULESDIR: ").map(PathBuf::from);
        let dir = built.lines().find_map(find);
        dir.is_some_and(|dir| dir.join("vfs/shadow_copy2.so").exists())
    };
    let none = || (!has_module()).then(|| "Samba has no shadow_copy2".to_owned());
    missing(&["smbd", "smbclient"]).or_else(none)
}

/// `[global]` contains all that a share requires: the module with its defaults. The other settings
/// isolate this server.
fn config(dir: &Path, port: u16, shares: &str) -> String {
    let dir = dir.display();
    format!(
        "[global]
         vfs objects = shadow_copy2
         guest ok = yes
         read only = no
         map to guest = Bad User
         guest account = nobody
         server role = standalone server
         bind interfaces only = yes
         interfaces = 127.0.0.1
         smb ports = {port}
         disable netbios = yes
         load printers = no
         disable spoolss = yes
         lock directory = {dir}
         state directory = {dir}
         cache directory = {dir}
         pid directory = {dir}
         private dir = {dir}
         ncalrpc dir = {dir}/rpc
         log file = {dir}/log
         {shares}"
    )
}

/// A running server.
struct Samba {
    server: Child,
    port: u16,
    dir: tempfile::TempDir,
}

impl Samba {
    fn start(shares: &[(&str, &Path)]) -> Samba {
        let dir = scratch();
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = free.local_addr().expect("its number").port();
        drop(free);
        let shares = shares
            .iter()
            .map(|(name, path)| format!("[{name}]\npath = {}\n", path.display()));
        let conf = dir.path().join("smb.conf");
        fs::write(&conf, config(dir.path(), port, &shares.collect::<String>())).expect("smb.conf");
        let server = tool("smbd", &["-F", "-s"])
            .arg(&conf)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("smbd starts");
        // Recorded so that the server is killed even if this process is killed.
        let start = process::start_of(server.id()).expect("it runs");
        RunDir::get().note_daemon(server.id(), start);
        let samba = Samba { server, port, dir };
        wait_until("smbd answers", || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
        });
        samba
    }

    /// Runs smbclient commands in a share, and returns its output, including errors.
    fn ask(&self, share: &str, commands: &str) -> String {
        let mut client = tool("smbclient", &["-N", "-p", &self.port.to_string(), "-s"]);
        client
            .arg(self.dir.path().join("smb.conf"))
            .arg(format!("//127.0.0.1/{share}"))
            .args(["-c", commands])
            .current_dir(self.dir.path());
        let output = run_limited(&mut client, 60);
        [output.stdout, output.stderr]
            .map(|said| String::from_utf8_lossy(&said).into_owned())
            .concat()
    }

    /// Returns the content of a file in a share.
    fn get(&self, share: &str, path: &str) -> String {
        let got = self.dir.path().join("got");
        let _ = fs::remove_file(&got);
        let said = self.ask(share, &format!("get {path} got"));
        fs::read_to_string(got).unwrap_or_else(|error| panic!("{path}: {error}: {said}"))
    }

    /// Returns the names of the previous versions of a file.
    fn versions(&self, share: &str, file: &str) -> Vec<String> {
        let said = self.ask(share, &format!("allinfo {file}"));
        let names = said.lines().filter(|line| line.starts_with("@GMT-"));
        names.map(str::to_owned).collect()
    }
}

impl Drop for Samba {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.server);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        if wait_limited(&mut self.server, WAIT).is_none() {
            let _ = self.server.kill();
            let _ = self.server.wait();
        }
    }
}

fn put(path: PathBuf, content: &str) {
    fs::write(&path, content).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Makes three checkpoints in different seconds; returns their names, the newest first.
fn story(rig: &Rig) -> Vec<String> {
    let root = rig.path();
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).expect("chmod");
    fs::create_dir_all(root.join("docs/letters")).expect("mkdir");
    for version in ["one", "two", "three"] {
        put(root.join("f"), version);
        put(root.join("docs/letters/to whom"), version);
        if version == "one" {
            put(root.join("docs/gone"), "was here");
        } else {
            let _ = fs::remove_file(root.join("docs/gone"));
        }
        rig.mount.checkpoint();
        std::thread::sleep(Duration::from_millis(1010));
    }
    put(root.join("f"), "now");
    put(root.join("docs/letters/to whom"), "now");
    let names = fs::read_dir(root.join(".snapshots")).expect("a listing");
    let mut names: Vec<String> = names
        .map(|entry| {
            entry
                .expect("a name")
                .file_name()
                .into_string()
                .expect("text")
        })
        .filter(|name| name.starts_with("@GMT-"))
        .collect();
    names.sort();
    names.reverse();
    assert_eq!(names.len(), 3);
    names
}

fn previous_versions_of_a_share_and_of_one_below(v: Variant) {
    if let Some(why) = unavailable() {
        return skip(&why);
    }
    let rig = v.start_with(MountOpts::new(v.io).arg("--snapdir-names=gmt"), |_| {});
    let names = story(&rig);
    let (root, docs) = (rig.path().to_owned(), rig.path().join("docs"));
    let samba = Samba::start(&[("all", &root), ("docs", &docs)]);
    let letter = "\"letters/to whom\"";
    assert_eq!(samba.versions("all", "f"), names);
    assert_eq!(
        samba.versions("docs", letter),
        names,
        "a share of a subdirectory"
    );
    assert_eq!(
        (samba.get("all", "f"), samba.get("docs", letter)),
        ("now".into(), "now".into())
    );
    for (name, was) in names.iter().zip(["three", "two", "one"]) {
        assert_eq!(samba.get("all", &format!("{name}/f")), was);
        assert_eq!(
            samba.get("docs", &format!("\"{name}/letters/to whom\"")),
            was
        );
    }
    // A deleted file is in the previous version of its directory.
    let oldest = names.last().expect("three");
    let listed = samba.ask("docs", &format!("ls {oldest}/*"));
    assert!(
        listed.contains("gone") && listed.contains("letters"),
        "{listed}"
    );
    assert_eq!(samba.get("docs", &format!("{oldest}/gone")), "was here");
    let now = samba.ask("docs", "ls");
    assert!(
        !now.contains("gone") && !now.contains(".snapshots"),
        "{now}"
    );
    // Previous versions are read-only.
    for change in [
        "put smb.conf NAME/new",
        "del NAME/gone",
        "mkdir NAME/d",
        "rmdir NAME",
        "rmdir NAME/letters",
    ] {
        let said = samba.ask("docs", &change.replace("NAME", oldest));
        assert!(said.contains("NT_STATUS_"), "{change}: {said}");
    }
    assert_eq!(samba.get("docs", &format!("{oldest}/gone")), "was here");
    // The running server sees a new checkpoint.
    rig.mount.checkpoint();
    assert_eq!(samba.versions("all", "f").len(), 4);
    drop(samba);
    let mut list = tool("ls", &[root.join(".snapshots")]);
    succeeds(&mut list, 60);
}
