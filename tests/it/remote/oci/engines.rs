//! Docker and Podman read pushed images with their own pull and storage, `FROM` and `COPY --from`.

use crate::common::skip;
use crate::engine::rig::{Rig, podman_unavailable};

use super::server;

/// A private machine with the registry, a tree with two checkpoints, and both engines.
const PREPARE: &str = r#"
ip link set lo up
mkdir -p $W/registry $DISK/tree
cat >$W/registry.yml <<END
{"version": 0.1, "storage": {"filesystem": {"rootdirectory": "$W/registry"}}, "http": {"addr": "127.0.0.1:5000"}}
END
setsid docker-registry serve $W/registry.yml >$W/registry.log 2>&1 </dev/null &
dk_start
cd $DISK/tree
mkdir -p keep/deep replaced/by gone 'odd name'; echo 1 >keep/deep/file; echo 2 >replaced/by/old; echo 3 >gone/file; ln keep/deep/file keep/link
head -c 3000000 /dev/urandom >large; truncate -s 8M sparse; ln -s large to-large; mkfifo -m 640 fifo; mknod null c 1 3
setfattr -n user.note -v 'a note' large; setcap cap_net_raw+ep large || true; chown 1234:4321 large; chmod 4755 large; chmod 1777 'odd name'
touch -d 2001-02-03T04:05:06.123456789Z keep/deep/file keep/deep; setfacl -m u:1000:r-x keep || true
cp $(command -v busybox) busybox
ckptfs mount $DISK/tree >/dev/null
cd $DISK/tree
ckptfs checkpoint
rm -r gone replaced; mkdir replaced; echo new >replaced/new; echo more >>keep/deep/file; rm large; mkdir large; echo in >large/in; chmod 700 'odd name'
rm to-large; echo now >to-large; mv sparse keep/; touch -d 2002-02-02T02:02:02.5Z keep/deep keep
ckptfs checkpoint -m second
until_true 20 curl -sf http://127.0.0.1:5000/v2/
ckptfs push oci://127.0.0.1:5000/project:v1 1
ckptfs push oci://127.0.0.1:5000/project:v2 2 --json | tee $W/pushed
grep -q '"from":1' $W/pushed
"#;

/// `same DIRECTORY ID`: compares a directory with a view, except the root, whose time Docker
/// changes and whose mode Podman changes. Programs in Go do not see extended attributes with an
/// empty value.
const SAME: &str = r#"
told() {
    cd "$1"
    find . -mindepth 1 -printf '%p %y %m %U %G %T@ %l\n' | sort
    getfattr -R -h -d -m - -P -- * 2>/dev/null | grep -v trusted.overlay
}
same() {
    local view=$DISK/tree/.snapshots/$2
    diff -r --no-dereference --exclude=fifo --exclude=null "$1" "$view"
    [ -z "$(rsync -aAXnc --filter='-x user.ckptfs.*' --delete --itemize-changes "$view/" "$1/" | grep -vx '.d..[t.][p.]..... ./' | tee /dev/stderr)" ]
    diff <(told "$1") <(told "$view")
}
"#;

const DOCKER: &str = r#"
for v in 1 2; do
    docker pull -q 127.0.0.1:5000/project:v$v
    data() { docker image inspect -f "{{.GraphDriver.Data.$1}}" 127.0.0.1:5000/project:v$v; }
    lower=$(data UpperDir)
    below=$(data LowerDir | grep -v 'no value' || true)
    # An overlay has two layers at least.
    mkdir -p $DISK/none $DISK/seen$v
    mount -t overlay -o ro,lowerdir=$lower:${below:-$DISK/none} none $DISK/seen$v
    same $DISK/seen$v $v
    umount $DISK/seen$v
done
"#;

const PODMAN: &str = r#"
for v in 1 2; do
    podman pull -q --tls-verify=false 127.0.0.1:5000/project:v$v
    same "$(podman image mount 127.0.0.1:5000/project:v$v)" $v
done
"#;

/// An image built from a pushed one inherits its labels but does not count as a checkpoint.
const BUILD: &str = r#"
mkdir $W/build
printf 'FROM 127.0.0.1:5000/project:v2\nCOPY --from=127.0.0.1:5000/project:v1 /replaced/by/old /from-v1\n' >$W/build/Dockerfile
DOCKER_BUILDKIT=0 docker build -q -t 127.0.0.1:5000/project:latest $W/build
[ "$(docker run --rm --network none 127.0.0.1:5000/project:latest /busybox cat /from-v1 /replaced/new /keep/deep/file)" = "$(printf '2\nnew\n1\nmore')" ]
docker push -q 127.0.0.1:5000/project:latest
echo third >third
ckptfs checkpoint
ckptfs push oci://127.0.0.1:5000/project 3 --json | tee $W/pushed
grep -q '"from":2' $W/pushed
grep -q '"layers":3' $W/pushed
ckptfs pull oci://127.0.0.1:5000/project --into $DISK/pulled --trusted
[ ! -e $DISK/pulled/from-v1 ]
cat $DISK/pulled/third
# Any image can be pulled.
docker tag 127.0.0.1:5000/project:v1 127.0.0.1:5000/theirs && docker push -q 127.0.0.1:5000/theirs
ckptfs pull oci://127.0.0.1:5000/theirs --into $DISK/theirs --trusted
same $DISK/theirs 1
"#;

#[test]
fn docker_and_podman_read_what_was_pushed() {
    if let Some(reason) = podman_unavailable() {
        return skip(&reason);
    }
    if server::missing() {
        return;
    }
    let rig = Rig::new();
    rig.sh(PREPARE);
    for script in [DOCKER, PODMAN, BUILD] {
        rig.sh(&format!("{SAME}\ncd $DISK/tree\n{script}"));
    }
}
