//! The packages: image, managed plugin, compose example. All are made from local files, as users
//! make them.

use std::fs;
use std::path::Path;

use crate::common::{has, stdout_of, succeeds, tool};
use crate::engine::on_an_engine;
use crate::engine::rig::Rig;

/// Debian's certificate authorities in one file.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

fn the_image_has_the_program_and_nothing_else() {
    let rig = Rig::docker();
    rig.sh("\"$PROJECT\"/docker/image.sh \"$(command -v ckptfs)\" ckptfs:test");
    assert!(rig.sh("dr ckptfs:test --version").starts_with("ckptfs "));
    // TLS connections to remotes need the machine's certificate authorities.
    if Path::new(AUTHORITIES).exists() {
        rig.sh(&format!(
            "docker create --name made ckptfs:test; docker cp made:{AUTHORITIES} - | tar -xO | cmp - {AUTHORITIES}; docker rm made"
        ));
    }
    // The image has no other program.
    assert!(
        rig.fails("docker run --rm --network none --entrypoint /bin/sh ckptfs:test -c true")
            .contains("/bin/sh")
    );
    // It serves a directory of the host, visible outside and in other containers, and leaves a
    // plain directory.
    rig.sh("mkdir -p $DISK/project; echo old >$DISK/project/file; mount --make-rshared $DISK
        docker run -d --name server --network none --device /dev/fuse --cap-add SYS_ADMIN -v $DISK/project:/project:rshared ckptfs:test mount --foreground /project
        until_true 60 mkdir $DISK/project/.snapshots/before; echo new >$DISK/project/file");
    assert_eq!(
        rig.sh("dr -v $DISK/project:/data bb:local cat /data/.snapshots/before/file /data/file"),
        "old\nnew\n"
    );
    assert_eq!(
        rig.sh("docker stop -t 30 server >/dev/null; ls -A $DISK/project"),
        ".ckptfs\nfile\n"
    );
}

fn the_managed_plugin_serves_a_container() {
    let rig = Rig::docker();
    rig.sh(
        "mkdir -p /var/lib/ckptfs/volumes; \"$PROJECT\"/docker/plugin.sh \"$(command -v ckptfs)\" ckptfs:local; docker plugin enable ckptfs:local",
    );
    rig.sh("docker volume create -d ckptfs:local vol1; dk_long user -v vol1:/data; docker exec user sh -c 'echo old >/data/file; mkdir /data/.snapshots/before; echo new >/data/file'");
    assert_eq!(
        rig.sh("docker exec user cat /data/.snapshots/before/file /data/file"),
        "old\nnew\n"
    );
    assert!(
        rig.fails("docker plugin disable ckptfs:local")
            .contains("in use")
    );
    rig.sh("docker rm -f user; docker plugin disable -f ckptfs:local; docker plugin enable ckptfs:local");
    assert_eq!(
        rig.sh("docker volume create -d ckptfs:local -o from=vol1 -o checkpoint=before copy >/dev/null; dr -v copy:/data bb:local cat /data/file"),
        "old\n"
    );
    // A volume pushed by another node: the remotes directory is in the pool, next to the volumes.
    rig.sh("cd /var/lib/ckptfs/volumes; mkdir .remotes; cd .remotes; (umask 077; echo secret >password)
        export CKPTFS_REMOTES=$PWD/remotes.toml; ckptfs remote add home $PWD/repository --password-file $PWD/password
        docker plugin disable -f ckptfs:local; ckptfs push home --volume vol1; docker plugin enable ckptfs:local");
    assert_eq!(
        rig.sh("docker volume create -d ckptfs:local -o remote=home -o from=vol1@before far >/dev/null; dr -v far:/data bb:local cat /data/file"),
        "old\n"
    );
    // The engine restarts a killed plugin. Its containers lose their mounts, which is why the units
    // are preferable; their data stays.
    rig.sh("dk_long user -v vol1:/data; kill -KILL $(pidof ckptfs)
        docker exec user cat /data/file && exit 1; docker rm -f user");
    assert_eq!(
        rig.sh(
            "until_true 60 dr -v vol1:/data bb:local true; dr -v vol1:/data bb:local cat /data/file"
        ),
        "new\n"
    );
    // The data is on the host and outlives the plugin.
    rig.sh("docker plugin disable -f ckptfs:local; docker plugin rm -f ckptfs:local");
    assert_eq!(
        rig.sh("ckptfs volumes ls | grep -c -e '^vol1' -e '^copy' -e '^far'"),
        "3\n"
    );
}

fn the_compose_example_takes_backups() {
    if !has("docker-compose") {
        return crate::engine::skip("docker-compose is not installed (make deps)");
    }
    if !has("pg_createcluster") {
        return crate::engine::skip("PostgreSQL is not installed (make deps; apt: postgresql)");
    }
    let rig = Rig::with_driver();
    rig.sh("pg_image; cat >$W/no-network.yaml <<'END'
version: '2.4'
services:
  db: {network_mode: none}
  backup: {network_mode: none}
END
        cat >$W/env.sh <<'END'
export DATABASE_IMAGE=postgres:local BACKUP_IMAGE=bb:local EVERY=1 KEEP=2
compose() { docker-compose -p shop --project-directory \"$PROJECT/docker/compose\" -f \"$PROJECT/docker/compose/compose.yaml\" -f $W/no-network.yaml \"$@\"; }
END
        . $W/env.sh; compose up -d; until_true 120 pg_ready shop_db_1; pg shop_db_1 'create table t as select 1 as a'");
    // Waits for two complete backups newer than the newest at this point. The second began after
    // the first ended, so it contains the table. An older backup may still be listed.
    rig.sh("list() { ls $(mounted shop_backups) | grep tar; }
        first=$(list | tail -n 1 || true); newer() { [ \"$(list | awk -v first=\"$first\" '$0 > first' | wc -l)\" -ge 2 ]; }; until_true 120 newer");
    rig.sh(". $W/env.sh; compose stop backup; path=$(docker run -d --network none -v shop_backups:/backup bb:local sleep 600)
        docker cp $path:/backup $W/backup; docker rm -f $path; file=$(ls $W/backup/*.tar | tail -n 1); docker volume create -d ckptfs -o uid=999 -o mode=0700 again
        docker run --rm --network none -u 999 -v again:/data -v $file:/b.tar:ro bb:local tar -C /data -xf /b.tar
        pg_start again again");
    assert_eq!(rig.sh("pg again 'select a from t'"), "1\n");
    rig.sh(
        ". $W/env.sh; docker rm -f again; compose down -v; [ \"$(docker volume ls -q)\" = again ]",
    );
}

/// Building the package needs cargo-deb; checking that every listed file exists does not.
#[test]
fn every_file_of_the_debian_package_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = concat!("BIN=", env!("CARGO_BIN_EXE_ckptfs"));
    succeeds(
        tool("make", &["-s", "deb-files", "share-files", program]).current_dir(root),
        60,
    );
    let manifest: toml_edit::DocumentMut = fs::read_to_string(root.join("Cargo.toml"))
        .expect("the manifest")
        .parse()
        .expect("TOML");
    let assets = manifest["package"]["metadata"]["deb"]["assets"]
        .as_array()
        .expect("assets");
    for asset in assets {
        let from = asset
            .as_array()
            .and_then(|pair| pair.get(0)?.as_str())
            .expect("a path");
        // The binary is built with the package.
        if from != "target/release/ckptfs" {
            stdout_of(
                tool(
                    "bash",
                    &["-c", &format!("shopt -s globstar failglob; ls -d {from}")],
                )
                .current_dir(root),
                60,
            );
        }
    }
    let units = stdout_of(
        tool("grep", &["-rh", "^Exec", "target/deb/units"]).current_dir(root),
        60,
    );
    assert!(
        units.lines().count() > 0 && units.lines().all(|line| line.contains("=/usr/bin/ckptfs ")),
        "{units}"
    );
}

on_an_engine! { the_image_has_the_program_and_nothing_else, the_managed_plugin_serves_a_container, the_compose_example_takes_backups }
