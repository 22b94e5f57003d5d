//! Podman: every call has another form, all containers share one id, and only the HTTP status marks
//! an error.

use crate::engine::on_podman;
use crate::engine::rig::Rig;

fn volumes_come_and_go() {
    let rig = Rig::podman();
    rig.sh("podman volume create --driver ckptfs vol1");
    rig.sh("pm -v vol1:/data bb:local sh -c 'echo old >/data/file; mkdir /data/.snapshots/before; echo new >/data/file'; is_unmounted vol1");
    assert_eq!(
        rig.sh("pm -v vol1:/data bb:local cat /data/.snapshots/before/file /data/file"),
        "old\nnew\n"
    );
    let said = rig.sh("podman volume inspect vol1");
    assert!(said.contains("before"), "{said}");
    assert_eq!(rig.sh("podman volume ls -q"), "vol1\n");
    rig.sh("podman volume rm vol1");
    assert_eq!(
        rig.sh("podman volume ls -q; ckptfs volumes ls --json | grep -c vol1 || true"),
        "0\n"
    );
}

fn an_error_is_one() {
    let rig = Rig::podman();
    let said = rig.fails("podman volume create --driver ckptfs --opt form=base vol1");
    assert!(said.contains("form") && said.contains("from"), "{said}");
    let said = rig.fails("podman volume create --driver ckptfs --opt from=absent vol1");
    assert!(said.contains("absent"), "{said}");
    assert_eq!(rig.sh("podman volume ls -q"), "");
}

fn two_containers_with_one_id() {
    let rig = Rig::podman();
    rig.sh("podman volume create --driver ckptfs vol1
        for name in one two; do pm -d --name $name -v vol1:/data bb:local sh -c 'trap exit TERM; while :; do sleep 0.2; done'; done
        podman exec one sh -c 'echo x >/data/file'; podman exec two cat /data/file; ckptfs checkpoint --volume vol1
        podman exec two sh -c 'echo y >/data/file'; ckptfs restore --volume vol1 1");
    assert_eq!(rig.sh("podman exec one cat /data/file; podman stop -t 5 one >/dev/null; podman exec two cat /data/file"), "x\nx\n");
    rig.sh("podman stop -t 5 two; until_true 60 is_unmounted vol1");
}

fn made_outside_copied_and_pruned() {
    let rig = Rig::podman();
    rig.sh("ckptfs volumes create base; podman volume reload; pm -v base:/data bb:local sh -c 'echo one >/data/file; mkdir /data/.snapshots/first; echo two >/data/file'
        podman volume create --driver ckptfs --opt from=base --opt checkpoint=first copy");
    assert_eq!(rig.sh("pm -v copy:/data bb:local cat /data/file"), "one\n");
    // `podman volume prune` removes a plugin's volumes. With `on-remove=trash`, a volume can be
    // restored from the trash.
    rig.sh(
        "podman volume create --driver ckptfs --opt on-remove=trash dear; podman volume prune -f",
    );
    assert_eq!(rig.sh("podman volume ls -q"), "");
}

on_podman! { volumes_come_and_go, an_error_is_one, two_containers_with_one_id, made_outside_copied_and_pruned }
