//! Checkpoints of a volume: created, viewed, restored and cloned while containers run.

use serde_json::Value;

use crate::engine::on_an_engine;
use crate::engine::rig::Rig;

impl Rig {
    /// Returns the `Status` that the engine shows for a volume.
    fn status(&self, volume: &str) -> Value {
        serde_json::from_str(&self.sh(&format!(
            "docker volume inspect -f '{{{{json .Status}}}}' {volume}"
        )))
        .expect("Status is JSON")
    }
}

fn from_inside_an_unprivileged_container() {
    let rig = Rig::with_driver();
    rig.sh("docker volume create -d ckptfs -o uid=1000 -o mode=0755 vol1; dk_long user -u 1000 --cap-drop ALL --security-opt no-new-privileges -v vol1:/data");
    rig.sh("docker exec user sh -c 'echo old >/data/file && mkdir /data/.snapshots/before && echo new >/data/file'");
    assert_eq!(
        rig.sh("docker exec user sh -c 'cat /data/.snapshots/before/file /data/file; ls -A /data'"),
        "old\nnew\nfile\n"
    );
    assert!(
        rig.fails("docker exec user sh -c 'echo x >/data/.snapshots/before/file'")
            .contains("Read-only file system")
    );
    let status = rig.status("vol1");
    assert!(
        status["checkpoints"].to_string().contains("before"),
        "{status}"
    );
    rig.sh("docker exec user rmdir /data/.snapshots/before");
    let status = rig.status("vol1");
    assert!(
        !status["checkpoints"].to_string().contains("before"),
        "{status}"
    );
}

fn a_state_is_brought_back_under_a_running_container() {
    let rig = Rig::with_driver();
    rig.sh("docker volume create -d ckptfs vol1; dk_long user -v vol1:/data; docker exec user sh -c 'echo old >/data/file; mkdir /data/dir; echo x >/data/dir/gone'");
    assert_eq!(
        rig.sh("ckptfs checkpoint --volume vol1 -m 'before the upgrade'"),
        "1\n"
    );
    rig.sh("docker exec user sh -c 'cat /data/dir/gone; echo new >/data/file; rm -r /data/dir; echo y >/data/added; cat /data/file'");
    rig.sh("ckptfs restore --volume vol1 1");
    assert_eq!(
        rig.sh("docker exec user sh -c 'cat /data/file /data/dir/gone; ls -A /data'"),
        "old\nx\ndir\nfile\n"
    );
    assert!(
        rig.sh("ckptfs log --volume vol1")
            .contains("before the upgrade")
    );
    assert_eq!(
        rig.sh("docker inspect -f '{{.State.Running}} {{.RestartCount}}' user"),
        "true 0\n"
    );
}

fn new_volumes_from_old_states() {
    let rig = Rig::with_driver();
    rig.sh("docker volume create -d ckptfs base; dk_long user -v base:/data; docker exec user sh -c 'echo one >/data/file'
        ckptfs checkpoint --volume base; docker exec user sh -c 'echo two >/data/file'; ckptfs checkpoint --volume base; docker exec user sh -c 'echo three >/data/file'");
    rig.sh("docker volume create -d ckptfs -o from=base -o checkpoint=1 copy");
    assert_eq!(
        rig.sh("dr -v copy:/data bb:local sh -c 'cat /data/file; echo mine >/data/file'"),
        "one\n"
    );
    assert_eq!(rig.sh("docker exec user cat /data/file"), "three\n");
    let status = rig.status("copy");
    assert!(status["parent"].to_string().contains("base"), "{status}");
    // Past states are read-only volumes, whatever the engine requests, and need no create.
    assert_eq!(
        rig.sh("dr -v base@1:/old:ro -v base@2:/newer:ro bb:local cat /old/file /newer/file"),
        "one\ntwo\n"
    );
    assert!(
        rig.fails("dr -v base@1:/old bb:local sh -c 'echo x >/old/file'")
            .contains("Read-only file system")
    );
    rig.fails("dr -v base@77:/old:ro bb:local true");
    assert!(
        rig.fails("docker volume create -d ckptfs -o from=base -o checkpoint=77 other")
            .contains("77")
    );
    // The copy does not depend on its source.
    rig.sh("docker rm -f user >/dev/null; until_true 60 is_unmounted base; docker volume rm base");
    assert_eq!(rig.sh("dr -v copy:/data bb:local cat /data/file"), "mine\n");
}

/// Branches of a volume are volumes.
fn branches_of_a_volume() {
    let rig = Rig::with_driver();
    rig.sh("docker volume create -d ckptfs -o uid=1000 work; dk_long user -u 1000 --cap-drop ALL -v work:/data; docker exec user sh -c 'echo one >/data/file'; ckptfs branch create --volume work inside");
    // One existing branch, and one that the volume name creates.
    assert_eq!(
        rig.sh("for name in inside outside; do dr -u 1000 -v work@branch/$name:/data bb:local sh -c \"cat /data/file; echo $name >/data/file\"; done
            for name in inside outside; do dr -v work@branch/$name:/data bb:local cat /data/file; done; docker exec user cat /data/file"),
        "one\none\ninside\noutside\none\n"
    );
    rig.sh("dk_long other -v work@branch/outside:/data");
    rig.fails("docker volume rm work@branch/outside");
    assert!(
        rig.fails("ckptfs branch drop --volume work outside")
            .contains("in use")
    );
    rig.sh("ckptfs branch drop --volume work inside; docker rm -f other >/dev/null; docker volume rm work@branch/outside");
    assert_eq!(rig.sh("ckptfs branch list --volume work"), "");
    assert_eq!(
        rig.sh("ckptfs undo --volume work >/dev/null; dr -v work@branch/outside:/data bb:local cat /data/file; docker volume rm work@branch/outside"),
        "outside\nwork@branch/outside\n"
    );
    rig.sh("docker rm -f user >/dev/null; until_true 60 is_unmounted work; docker volume rm work");
}

/// Two containers write each number to one file and then to another. At any instant the first file
/// is ahead by at most one.
fn checkpoints_while_two_containers_write() {
    let rig = Rig::with_driver();
    rig.sh("docker volume create -d ckptfs shared; dk_counter one /data/one -v shared:/data; dk_counter two /data/two -v shared:/data");
    let mut atomic = 0;
    for checkpoint in 1..=5 {
        let said = rig.sh(&format!(
            "before=$(counted one /data/one.after) other=$(counted two /data/two.after)
            ckptfs checkpoint --volume shared --json; ahead=
            view=/data/.snapshots/{checkpoint}
            after=$(counted one /data/one)
            for name in one two; do
                first=$(counted one $view/$name) second=$(counted one $view/$name.after)
                ahead=\"$ahead $((first - second))\"
                docker exec one awk '$1 != FNR {{ exit 1 }}' $view/$name $view/$name.after
            done
            [ $before -le $(counted one $view/one) ] && [ $other -le $(counted one $view/two) ] && [ $(counted one $view/one) -le $after ]
            sums() {{ docker exec two md5sum $view/one $view/one.after $view/two $view/two.after; }}
            then=$(sums)
            still_counts one /data/one; still_counts two /data/two
            [ \"$then\" = \"$(sums)\" ]; echo $ahead"
        ));
        let (made, ahead) = said.trim().split_once('\n').expect("two lines");
        let made: Value = serde_json::from_str(made).expect("checkpoint --json");
        assert_eq!(made["id"], checkpoint);
        // If the writers leave no pause for a consistent cut, the checkpoint reports `atomic:
        // false`.
        if made["atomic"] == true {
            atomic += 1;
            assert!(
                ahead.split(' ').all(|ahead| ["0", "1"].contains(&ahead)),
                "checkpoint {checkpoint}: {ahead}"
            );
        }
    }
    assert!(atomic > 0);
    assert_eq!(
        rig.status("shared")["checkpoints"].as_array().map(Vec::len),
        Some(5)
    );
}

on_an_engine! {
    from_inside_an_unprivileged_container,
    a_state_is_brought_back_under_a_running_container,
    new_volumes_from_old_states,
    branches_of_a_volume,
    checkpoints_while_two_containers_write,
}
