//! The engines alone: what the other tests stand on works without us.

use crate::rig::Rig;
use crate::{on_an_engine, on_podman};

fn an_engine_runs_here_and_ends_with_its_rig() {
    let rig = Rig::docker();
    assert_eq!(rig.sh("dr bb:local echo hello").trim(), "hello");
    let said = rig.sh("docker volume create vol >/dev/null; dr -v vol:/data bb:local sh -c 'echo kept >/data/file'; dr -u 1000 -v vol:/data bb:local cat /data/file");
    assert_eq!(said, "kept\n");
    // A container that would go on for ever ends with the rig, and nothing of it stays mounted.
    rig.sh("docker run -d --network none --name stays bb:local sleep 1000000 >/dev/null");
    let dir = rig.dir().to_owned();
    drop(rig);
    assert!(!dir.exists());
}

fn podman_runs_here() {
    let rig = Rig::new();
    assert_eq!(rig.sh("pm_image; pm bb:local echo hello").trim(), "hello");
}

on_an_engine! { an_engine_runs_here_and_ends_with_its_rig }
on_podman! { podman_runs_here }
