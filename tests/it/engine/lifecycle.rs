//! The lifecycle of a volume under Docker: each event of the engine, and the events that it does
//! not report to the driver.

use crate::engine::on_an_engine;
use crate::engine::rig::Rig;

fn volumes_come_and_go() {
    let rig = Rig::with_driver();
    rig.sh("docker volume create -d ckptfs vol1");
    assert_eq!(rig.sh("docker volume ls -q"), "vol1\n");
    // For an existing volume the engine sends no other request and ignores different options.
    rig.sh("docker volume create -d ckptfs -o mode=0700 vol1");
    rig.sh("dr -v vol1:/data bb:local sh -c 'echo kept >/data/file'; is_unmounted vol1");
    assert_eq!(rig.sh("dr -v vol1:/data bb:local cat /data/file"), "kept\n");
    // A volume in use cannot be removed, with or without `-f`.
    rig.sh("dk_long user -v vol1:/data; [ -n \"$(mounted vol1)\" ]");
    for flags in ["", "-f"] {
        assert!(
            rig.fails(&format!("docker volume rm {flags} vol1"))
                .contains("in use")
        );
    }
    rig.sh("docker rm -f user >/dev/null; until_true 60 is_unmounted vol1; docker volume rm vol1");
    assert_eq!(rig.sh("docker volume ls -q"), "");
    assert!(
        rig.fails("docker volume inspect vol1")
            .to_lowercase()
            .contains("no such volume")
    );
}

fn volumes_that_nobody_created() {
    let rig = Rig::with_driver();
    // Created implicitly by `docker run`; its options are null.
    rig.sh("dr --volume-driver ckptfs -v implicit:/data bb:local sh -c 'echo x >/data/file'");
    assert_eq!(rig.sh("docker volume ls -q"), "implicit\n");
    // An anonymous volume is removed with its container.
    rig.sh("dr --volume-driver ckptfs -v /data bb:local sh -c 'echo x >/data/file'");
    assert_eq!(rig.sh("docker volume ls -q"), "implicit\n");
    // A volume created with `ckptfs volumes create` is listed at once.
    rig.sh("ckptfs volumes create ours; dr -v ours:/data bb:local true");
    assert_eq!(rig.sh("docker volume ls -q | sort"), "implicit\nours\n");
    // `docker volume prune` does not remove a plugin's volumes.
    rig.sh("docker volume prune -f");
    assert_eq!(rig.sh("docker volume ls -q | sort"), "implicit\nours\n");
}

fn an_empty_volume_is_filled_from_the_image() {
    let rig = Rig::with_driver();
    let seen = "sh -c 'cat /seeded/file; stat -c \"%u:%g %a\" /seeded; ls -A /seeded'";
    assert_eq!(
        rig.sh(&format!(
            "docker volume create -d ckptfs seeded >/dev/null; dr -v seeded:/seeded bb:local {seen}"
        )),
        "from-the-image\n1000:1000 750\nfile\n"
    );
    // A volume with content is not filled, and `nocopy` leaves one empty.
    rig.sh("dr -v seeded:/seeded bb:local sh -c 'echo ours >/seeded/file'");
    assert_eq!(
        rig.sh("dr -v seeded:/seeded bb:local cat /seeded/file"),
        "ours\n"
    );
    assert_eq!(rig.sh("docker volume create -d ckptfs bare >/dev/null; dr -v bare:/seeded:nocopy bb:local ls -A /seeded"), "");
}

fn containers_share_stop_and_start_again() {
    let rig = Rig::with_driver();
    rig.sh("docker volume create -d ckptfs shared; dk_long one -v shared:/data; dk_long two -v shared:/data -u 1000");
    rig.sh("docker exec one sh -c 'echo hello >/data/file; mkdir -m 777 /data/open'; docker exec two sh -c 'cat /data/file; touch /data/open/mine'");
    assert_eq!(
        rig.sh("docker exec one stat -c %u /data/open/mine"),
        "1000\n"
    );
    assert!(
        rig.fails("docker exec two touch /data/not-permitted")
            .contains("Permission denied")
    );
    rig.sh("docker stop one >/dev/null; docker exec two cat /data/file; docker kill two >/dev/null; until_true 60 is_unmounted shared");
    // Start and restart mount with a new id each time.
    rig.sh("docker start one two >/dev/null; docker restart -t 5 one >/dev/null; docker restart -t 0 two >/dev/null");
    assert_eq!(
        rig.sh("docker exec one cat /data/file; docker exec two cat /data/file"),
        "hello\nhello\n"
    );
    // Copies into and out of a stopped container.
    rig.sh("docker stop -t 1 one two >/dev/null; until_true 60 is_unmounted shared; echo copied >$W/in; docker cp $W/in one:/data/in; docker cp one:/data/in $W/out");
    assert_eq!(
        rig.sh("cat $W/out; until_true 60 is_unmounted shared"),
        "copied\n"
    );
    assert_eq!(
        rig.sh("docker start two >/dev/null; docker exec two cat /data/in"),
        "copied\n"
    );
    rig.sh("docker rm -f one two >/dev/null; until_true 60 is_unmounted shared; docker volume rm shared");
}

fn many_at_once() {
    let rig = Rig::with_driver();
    rig.sh("docker volume create -d ckptfs common >/dev/null
        for i in 1 2 3 4 5 6 7 8 9 10; do
            docker run --rm --network none --volume-driver ckptfs -v own$i:/own -v common:/common bb:local sh -c \"echo $i >/own/file; echo $i >/common/file$i\" &
            jobs+=($!)
        done
        for job in ${jobs[@]}; do wait $job; done
        is_unmounted common");
    assert_eq!(
        rig.sh(
            "dr -v common:/common bb:local sh -c 'cat /common/file* | sort -n | tr \"\\n\" \" \"'"
        ),
        "1 2 3 4 5 6 7 8 9 10 "
    );
    assert_eq!(rig.sh("docker volume ls -q | wc -l"), "11\n");
    rig.sh("docker volume rm common $(docker volume ls -q | grep own) >/dev/null; [ -z \"$(docker volume ls -q)\" ]");
}

fn what_is_wrong_is_refused_and_said() {
    let rig = Rig::with_driver();
    let said = rig.fails("docker volume create -d ckptfs -o form=base vol1");
    assert!(said.contains("form") && said.contains("from"), "{said}");
    for name in ["../../etc", ".", "a/b", "a b", ".hidden", &"n".repeat(300)] {
        rig.fails(&format!("docker volume create -d ckptfs '{name}'"));
    }
    let said = rig.fails("docker volume create -d ckptfs -o from=absent vol1");
    assert!(said.contains("absent"), "{said}");
    assert_eq!(rig.sh("docker volume ls -q"), "");
}

fn read_only_and_of_a_size() {
    let rig = Rig::with_driver();
    rig.sh(
        "docker volume create -d ckptfs vol1; dr -v vol1:/data bb:local sh -c 'echo x >/data/file'",
    );
    assert!(
        rig.fails("dr -v vol1:/data:ro bb:local sh -c 'echo y >/data/file'")
            .contains("Read-only file system")
    );
    rig.sh("docker volume create -d ckptfs -o from=vol1 -o readonly=true frozen");
    assert!(
        rig.fails("dr -v frozen:/data bb:local sh -c 'cat /data/file; echo y >/data/file'")
            .contains("Read-only file system")
    );
    rig.sh("docker volume create -d ckptfs -o size=300M small");
    assert!(
        rig.fails("dr -v small:/data bb:local dd if=/dev/zero of=/data/file bs=1M count=400")
            .contains("No space left")
    );
    rig.sh("docker volume create -d ckptfs -o uid=1000 -o gid=1000 -o mode=0750 owned");
    assert_eq!(rig.sh("dr -u 1000 -v owned:/data bb:local sh -c 'touch /data/mine && stat -c \"%u:%g %a\" /data'"), "1000:1000 750\n");
}

fn only_this_time() {
    let rig = Rig::with_driver();
    rig.sh("docker volume create -d ckptfs base; dr -v base:/data bb:local sh -c 'echo base >/data/file'
        docker volume create -d ckptfs -o from=base -o ephemeral=true trial");
    assert_eq!(rig.sh("dr -v trial:/data bb:local sh -c 'cat /data/file; echo mine >/data/file; cat /data/file'"), "base\nmine\n");
    assert_eq!(
        rig.sh(
            "dr -v trial:/data bb:local cat /data/file; dr -v base:/data bb:local cat /data/file"
        ),
        "base\nbase\n"
    );
}

on_an_engine! {
    volumes_come_and_go,
    volumes_that_nobody_created,
    an_empty_volume_is_filled_from_the_image,
    containers_share_stop_and_start_again,
    many_at_once,
    what_is_wrong_is_refused_and_said,
    read_only_and_of_a_size,
    only_this_time,
}
