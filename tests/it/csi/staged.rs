//! A staged volume is mounted at its staging path and at the targets of pods, and nowhere else.
//! Otherwise the kubelet does not unstage it.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tonic::Code;

use crate::common::mount::mount_table;
use crate::common::pool::Pool;
use crate::common::wait::{same, wait_until};
use crate::common::{process, run_limited, skip, stdout_of, tool};
use crate::csi::support::{
    PodWriter, Rig, SECONDS, code, from_snapshot, from_volume, text, unavailable,
};
use ckptfs_volumes::csi::proto::volume_capability::access_mode::Mode;

const WRITER: Mode = Mode::SingleNodeWriter;

/// Returns the other mounts with the device and root of `at`, by the rule of the kubelet's
/// `GetDeviceMountRefs` (`SearchMountPoints` of k8s.io/mount-utils).
fn references(at: &Path) -> Vec<PathBuf> {
    let table = mount_table("self");
    let table: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split(' ').collect())
        .collect();
    let around = table.iter().rev().find(|mount| at.starts_with(mount[4]));
    let around = around.expect("something is mounted at /");
    let below = at.strip_prefix(around[4]).expect("it is above the path");
    let root = Path::new(around[3]).join(below);
    let same = |mount: &&Vec<&str>| {
        mount[0] != around[0] && mount[2] == around[2] && Path::new(mount[3]) == root
    };
    let refs = table.iter().filter(same);
    refs.map(|mount| PathBuf::from(mount[4])).collect()
}

impl Rig {
    /// Checks that a staged volume is mounted at its staging path and for these pods, and nowhere
    /// else.
    #[track_caller]
    pub fn is_only_at(&self, id: &str, pods: &[&str]) {
        let staging = self.staging(id);
        let mut refs = references(&staging);
        refs.sort();
        let targets: Vec<PathBuf> = pods.iter().map(|pod| self.target(id, pod)).collect();
        assert_eq!((self.mounts_at(&staging), refs), (1, targets), "{id}");
    }

    /// Mounts a staged volume in the pool too: the state between the two steps of staging or
    /// unstaging, and the state that an older driver left.
    fn mount_in_the_pool(&self, id: &str, home: &Path) {
        let staging = self.staging(id);
        let mut bind = tool("mount", &["--bind"]);
        run_limited(bind.arg(&staging).arg(home), SECONDS);
        assert_eq!((references(&staging).len(), self.mounts_at(home)), (2, 1));
    }

    fn is_put_in_order(&self, id: &str) {
        let (staging, pods) = (self.staging(id), [self.target(id, "a")]);
        wait_until("it is mounted only at its staging path", || {
            same(references(&staging), pods.to_vec())
        });
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.ok(arguments)).expect("JSON")
    }

    fn daemon_of(&self, id: &str) -> (PathBuf, u32) {
        let status = self.json(&["--volume", id, "status", "--json"]);
        let mount = PathBuf::from(status["mount"].as_str().expect("a path"));
        let pid = status["daemon"]["pid"].as_u64().expect("a number");
        (mount, u32::try_from(pid).expect("a process"))
    }

    /// Deletes a volume, and checks that it is not mounted.
    #[track_caller]
    fn deletes(&self, id: &str) {
        self.delete(id)
            .unwrap_or_else(|error| panic!("{id}: {error}; {}", self.log()));
        assert!(!self.is_mounted(id), "{id}");
    }
}

/// An event for a volume and its clone while pods use them.
#[derive(Clone, Copy, Debug)]
enum VolumeEvent {
    KillDriver,
    KillDaemon,
    CallAgain,
    Checkpoint,
    Restore,
    Branch,
    Snapshot,
    Clone,
    SecondPod,
}

const STEPS: [VolumeEvent; 9] = [
    VolumeEvent::Checkpoint,
    VolumeEvent::KillDriver,
    VolumeEvent::Restore,
    VolumeEvent::Branch,
    VolumeEvent::KillDaemon,
    VolumeEvent::CallAgain,
    VolumeEvent::Snapshot,
    VolumeEvent::Clone,
    VolumeEvent::SecondPod,
];

/// Works in a branch of a volume, and in the clone, which is also a branch.
fn branch(id: &str, rig: &Rig) {
    let target = rig.target(id, "a");
    let made = rig.ok(&["--volume", id, "branch", "create", "try"]);
    let dir = PathBuf::from(made.lines().next().expect("the mount is listed"));
    fs::write(dir.join("g"), "x").unwrap();
    rig.ok(&["--volume", id, "merge", "try"]);
    assert_eq!(fs::read(target.join("g")).unwrap(), b"x");
    rig.ok(&["--volume", id, "branch", "drop", "try"]);
    if id == "v" {
        // The clone is a branch, but its mount is not at its tree.
        let run = ["--volume", id, "branch", "run", "volume.c", "--"];
        rig.ok(&[&run[..], &["sh", "-c", "echo x > run"]].concat());
        let clone = rig.target("c", "a");
        assert_eq!(fs::read(clone.join("run")).unwrap(), b"x\n");
        let changes = rig.ok(&["--volume", id, "branch", "diff", "volume.c"]);
        assert!(changes.contains("A run"), "{changes}");
    }
}

fn take(step: VolumeEvent, id: &str, rig: &mut Rig) {
    let (staging, target) = (rig.staging(id), rig.target(id, "a"));
    match step {
        VolumeEvent::KillDriver => {
            rig.kill();
            rig.serve();
        }
        VolumeEvent::KillDaemon => process::kill(rig.daemon_of(id).1),
        VolumeEvent::CallAgain => {
            rig.try_stage(id, WRITER).unwrap();
            rig.try_publish(id, "a", WRITER, false).unwrap();
        }
        // By name, and by the pod's path.
        VolumeEvent::Checkpoint => {
            rig.ok(&["--volume", id, "checkpoint"]);
            rig.ok(&["-C", &text(&target), "checkpoint", "-m", "seen"]);
            let log = rig.json(&["--volume", id, "log", "--json"]);
            let seen = rig.json(&["-C", &text(&target), "log", "--json"]);
            assert!(log == seen && log[0]["note"] == "seen", "{log}");
        }
        VolumeEvent::Restore => {
            fs::write(target.join("f"), "before").unwrap();
            rig.ok(&["--volume", id, "checkpoint", "-t", "good"]);
            fs::write(target.join("f"), "after").unwrap();
            rig.ok(&["--volume", id, "restore", "good", "f"]);
            assert_eq!(fs::read(target.join("f")).unwrap(), b"before");
            rig.ok(&["--volume", id, "tag", "-d", "good"]);
        }
        VolumeEvent::Branch => branch(id, rig),
        VolumeEvent::Snapshot => {
            let snapshot = rig.snapshot(id, &format!("of-{id}"));
            rig.create_from("restored", from_snapshot(&snapshot.snapshot_id));
            let restored = rig.use_it("restored", "b");
            assert!(restored.join("log").exists());
            rig.is_only_at("restored", &["b"]);
            rig.leave("restored", "b");
            rig.deletes("restored");
            rig.delete_snapshot(&snapshot.snapshot_id).unwrap();
        }
        VolumeEvent::Clone => {
            rig.create_from("cloned", from_volume(id));
            assert!(rig.use_it("cloned", "b").join("log").exists());
            rig.is_only_at("cloned", &["b"]);
            rig.leave("cloned", "b");
            rig.deletes("cloned");
        }
        VolumeEvent::SecondPod => {
            let second = rig.try_publish(id, "b", WRITER, true).unwrap();
            rig.is_only_at(id, &["a", "b"]);
            fs::write(second.join("h"), "x").expect_err("it is read-only there");
            rig.unpublish(id, "b").unwrap();
        }
    }
    let (mount, _) = rig.daemon_of(id);
    assert_eq!(mount, staging, "the daemon knows where its mount is");
}

/// Performs the steps with a volume and its clone. `source_first`: the source is removed before the
/// clone.
fn in_order(steps: &[VolumeEvent], source_first: bool) {
    if unavailable() {
        return;
    }
    let mut rig = Rig::start();
    rig.create("v");
    let of_volume = PodWriter::start(&rig.use_it("v", "a"));
    rig.create_from("c", from_volume("v"));
    let of_clone = PodWriter::start(&rig.use_it("c", "a"));
    for step in steps {
        for id in ["v", "c"] {
            take(*step, id, &mut rig);
            for id in ["v", "c"] {
                rig.is_only_at(id, &["a"]);
            }
            of_volume.writes_on();
            of_clone.writes_on();
        }
    }
    let listed = rig.json(&["volumes", "ls", "--json"]);
    let mounted = |id: &str| {
        let mut all = listed.as_array().expect("a list").iter();
        all.find(|one| one["name"] == id).expect("it exists")["mountpoint"].clone()
    };
    let mut order = [("v", of_volume), ("c", of_clone)];
    for (id, _) in &order {
        assert_eq!(mounted(id), text(&rig.staging(id)), "{listed}");
    }
    if !source_first {
        order.reverse();
    }
    let [(first, pod), (second, other)] = order;
    drop(pod);
    rig.unpublish(first, "a").unwrap();
    rig.is_only_at(first, &[]);
    assert_eq!(
        code(rig.delete(first)),
        Code::FailedPrecondition,
        "it is staged"
    );
    rig.unstage(first).unwrap();
    other.writes_on();
    rig.is_only_at(second, &["a"]);
    rig.delete(first).unwrap();
    other.writes_on();
    drop(other);
    rig.leave(second, "a");
    rig.deletes(second);
    assert_eq!(rig.json(&["volumes", "ls", "--json"]), json!([]));
    let disk = rig.disk().to_owned();
    let left = || {
        let table = mount_table("self");
        let lines = table.lines().filter(|line| line.contains("fuse.ckptfs"));
        let here = lines.filter(|line| line.contains(&text(&disk)));
        here.map(str::to_owned).collect::<Vec<String>>()
    };
    wait_until("nothing is left", || same(left(), [""; 0]));
}

#[test]
fn a_staged_volume_and_its_clone_are_mounted_nowhere_else() {
    in_order(&STEPS, true);
}

#[test]
fn a_staged_volume_and_its_clone_are_mounted_nowhere_else_in_another_order() {
    let mut steps = STEPS;
    steps.reverse();
    in_order(&steps, false);
}

/// The kubelet's own function (k8s.io/mount-utils), at each moment at which the kubelet calls it.
#[test]
fn the_kubelet_finds_no_other_mount() {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/bin/mountrefs");
    if !tool.is_file() {
        return skip("mountrefs is not installed (tests/tools.sh says why)");
    }
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v");
    rig.use_it("v", "a");
    rig.create_from("c", from_volume("v"));
    let target = rig.use_it("c", "b");
    let finds = |id: &str| {
        let staging = rig.staging(id);
        let mut command = Command::new(&tool);
        let found = stdout_of(command.arg(&staging), SECONDS);
        let found: Vec<PathBuf> = found.lines().map(PathBuf::from).collect();
        assert_eq!(
            found,
            references(&staging),
            "the assumption of the other tests"
        );
        found
    };
    assert_eq!(finds("v"), [rig.target("v", "a")]);
    assert_eq!(finds("c"), [target]);
    for (id, pod) in [("v", "a"), ("c", "b")] {
        rig.unpublish(id, pod).unwrap();
        assert_eq!(finds(id), Vec::<PathBuf>::new());
        rig.unstage(id).unwrap();
        assert_eq!(finds(id), Vec::<PathBuf>::new());
        rig.delete(id).unwrap();
    }
}

#[test]
fn what_a_killed_driver_left_at_two_places_is_put_in_order() {
    if unavailable() {
        return;
    }
    let mut rig = Rig::start();
    rig.create("v");
    let target = rig.use_it("v", "a");
    rig.create_from("c", from_volume("v"));
    rig.use_it("c", "a");
    rig.kill();
    rig.mount_in_the_pool("v", &rig.point("v"));
    rig.mount_in_the_pool("c", &rig.root.join("volumes/c"));
    rig.serve();
    for id in ["v", "c"] {
        rig.is_put_in_order(id);
    }
    fs::write(target.join("f"), "x").unwrap();
    for id in ["c", "v"] {
        rig.leave(id, "a");
        rig.deletes(id);
    }
}

/// Failed before: a claim was deleted while the driver restarted. Its volume stayed mounted in the
/// pool until the next check of all volumes, 30 s later. The kubelet, which doubles its delay,
/// retried after a minute.
#[test]
fn what_a_killed_driver_left_is_put_in_order_soon_where_somebody_worked_on_it() {
    if unavailable() {
        return;
    }
    let mut rig = Rig::start();
    for id in ["v", "w"] {
        rig.create(id);
        rig.use_it(id, "a");
    }
    rig.kill();
    for id in ["v", "w"] {
        rig.mount_in_the_pool(id, &rig.point(id));
    }
    let lock = File::open(rig.root.join("locks/v")).expect("the lock file exists");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)
        .expect("no process holds the lock");
    rig.serve();
    // A locked volume does not delay the next one.
    rig.is_put_in_order("w");
    drop(lock);
    let began = Instant::now();
    rig.is_put_in_order("v");
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
    for id in ["v", "w"] {
        rig.leave(id, "a");
        rig.deletes(id);
    }
}

#[test]
fn a_volume_that_is_not_unstaged_because_it_is_in_use_can_be_unstaged_later() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v");
    let staging = rig.try_stage("v", WRITER).unwrap();
    let inside = File::open(&staging).unwrap();
    rig.unstage("v").expect_err("a process uses it");
    rig.is_only_at("v", &[]);
    drop(inside);
    rig.unstage("v").unwrap();
    rig.deletes("v");
}

#[test]
fn a_volume_that_is_staged_at_two_places_stays_until_the_last_is_left() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v");
    let target = rig.use_it("v", "a");
    let second = rig.staging("second");
    rig.stage_at("v", &second, WRITER).unwrap();
    assert_eq!(references(&second), [rig.staging("v"), target.clone()]);
    // The kubelet does not do this while a pod uses the volume.
    rig.unstage("v").unwrap();
    fs::write(target.join("f"), "x").unwrap();
    assert_eq!(references(&second), [target.as_path()]);
    rig.unpublish("v", "a").unwrap();
    assert_eq!(references(&second), Vec::<PathBuf>::new());
    assert_eq!(fs::read(second.join("f")).unwrap(), b"x");
    rig.unstage_at("v", &second).unwrap();
    rig.deletes("v");
}

#[test]
fn a_verb_goes_on_where_it_began_when_its_volume_is_staged() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v");
    let (home, staging) = (rig.point("v"), rig.staging("v"));
    for is_killed in [false, true] {
        let script = "echo x > begun; read -r _; echo x > ended";
        let mut verb = rig
            .ckptfs(&["--volume", "v", "run", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        wait_until("it runs", || home.join("begun").exists());
        rig.try_stage("v", WRITER).unwrap();
        assert_eq!(references(&staging), [home.as_path()]);
        if is_killed {
            verb.kill().unwrap();
            verb.wait().unwrap();
            rig.ok(&["--volume", "v", "checkpoint"]);
        } else {
            drop(verb.stdin.take());
            assert!(verb.wait().unwrap().success());
            assert!(staging.join("ended").exists());
        }
        rig.is_only_at("v", &[]);
        drop(verb.stdin.take());
        wait_until("its command has ended", || staging.join("ended").exists());
        for name in ["begun", "ended"] {
            fs::remove_file(staging.join(name)).unwrap();
        }
        rig.unstage("v").unwrap();
    }
    rig.deletes("v");
}

/// Sends a call as Docker; all calls of the test come from one process.
fn docker(socket: &Path, call: &str, name: &str) -> Value {
    let body = json!({"Name": name, "ID": "ab12"}).to_string();
    let head = format!(
        "POST /VolumeDriver.{call} HTTP/1.1\r\nHost: \r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let mut stream = UnixStream::connect(socket).expect("the driver listens");
    stream.write_all((head + &body).as_bytes()).unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    let (_, body) = said.split_once("\r\n\r\n").expect("an answer");
    serde_json::from_str(body).expect("JSON")
}

#[test]
fn a_staged_volume_is_in_the_pool_too_while_docker_uses_it() {
    if unavailable() {
        return;
    }
    let mut rig = Rig::start();
    rig.create("v");
    let target = rig.use_it("v", "a");
    let pod = PodWriter::start(&target);
    assert_eq!(rig.end(), 0);
    let socket = rig.socket.clone();
    let command = rig.ckptfs(&["serve", "volumes", "--socket", &text(&socket)]);
    Pool::serve(&mut rig, command, |socket| {
        UnixStream::connect(socket).is_ok()
    });
    assert_eq!(
        docker(&socket, "Path", "v")["Mountpoint"],
        text(&rig.staging("v"))
    );
    let home = rig.point("v");
    assert_eq!(docker(&socket, "Mount", "v")["Mountpoint"], text(&home));
    assert!(home.join("log").exists() && rig.mounts_at(&home) == 1);
    assert_eq!(docker(&socket, "Path", "v")["Mountpoint"], text(&home));
    docker(&socket, "Unmount", "v");
    rig.is_only_at("v", &["a"]);
    assert_eq!(rig.end(), 0);
    rig.serve();
    pod.writes_on();
    drop(pod);
    rig.leave("v", "a");
    rig.deletes("v");
}
