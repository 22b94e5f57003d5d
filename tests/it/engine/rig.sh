#!/usr/bin/env bash
# A private machine for container engines: namespaces of its own, places of its own for everything an engine writes, no network, no registry.
#
#   rig.sh hold         the first process in the namespaces: prepares them, says `ready`, and stays until its stdin ends; all ends with it
#   . rig.sh            the functions below, for a shell in them (`Engine::sh` of rig.rs enters)
#
# In the environment: W, the directory of this rig, PATH with `ckptfs` in it, RIG, a name no other rig has.
set -euo pipefail

export DOCKER_HOST=unix:///run/docker.sock DOCKER_CONFIG=$W/client
export PODMAN_IGNORE_CGROUPSV1_WARNING=1 HOME=$W CKPTFS_TRIPWIRE=off CKPTFS_AUTO_ABSENCE=off LC_ALL=C.UTF-8
DISK=$W/disk

# A directory of the system with changes that nobody outside sees: an engine and the documentation's commands may write there.
private_copy() {
    mkdir -p "$DISK/over$1/up" "$DISK/over$1/work"
    mount -t overlay -o "lowerdir=$1,upperdir=$DISK/over$1/up,workdir=$DISK/over$1/work" ckptfs-test "$1"
}

# Loop devices are taken by others too: the first free one may be gone a moment later.
mount_disk() {
    local try
    mkdir -p "$DISK"
    truncate -s 6G "$W/disk.img"
    mkfs.xfs -q -f -K -m reflink=1 "$W/disk.img"
    for try in 1 2 3 4 5 6; do
        mount -o loop "$W/disk.img" "$DISK" && return 0
        for try in $(seq 0 63); do [ -e "/dev/loop$try" ] || mknod -m 660 "/dev/loop$try" b 7 "$try" || true; done
        sleep "0.$try"
    done
    return 1
}

# What others have mounted came along when the namespace was made, and would be busy for them as long as it is here.
leave_the_mounts_of_others() {
    local point rest
    while read -r _ _ _ _ point rest; do
        point=$(printf '%b' "$point")
        case "$point ${rest#* - }" in */ckptfs-*' '* | *' fuse.ckptfs '*) echo "$point" ;; esac
    done </proc/self/mountinfo | tac | while read -r point; do umount -l -c "$point" || true; done
}

hold() {
    leave_the_mounts_of_others
    mount_disk
    mount -t tmpfs -o mode=755 ckptfs-test /run
    mkdir -p /run/docker/plugins /run/lock
    private_copy /etc
    private_copy /var/lib
    # An engine's data lies on the disk itself: an overlay cannot be the upper layer of another.
    mkdir -p /var/lib/{docker,containers,ckptfs} "$DISK"/{docker,containers,ckptfs} /etc/docker "$W/client"
    echo "{}" >"$W/client/config.json"
    mount --bind "$DISK/docker" /var/lib/docker
    mount --bind "$DISK/containers" /var/lib/containers
    mount --bind "$DISK/ckptfs" /var/lib/ckptfs
    engine_settings
    # Docker warns each time where packets are not forwarded; there is no network here to forward to.
    echo 1 >/proc/sys/net/ipv4/ip_forward || true
    echo ready
    cat >/dev/null
}

engine_settings() {
    cat >/etc/docker/daemon.json <<END
{"hosts": ["$DOCKER_HOST"], "exec-root": "/run/docker-exec", "pidfile": "/run/dockerd.pid", "storage-driver": "overlay2",
 "exec-opts": ["native.cgroupdriver=cgroupfs"], "cgroup-parent": "/$RIG", "bridge": "none", "iptables": false, "ip6tables": false,
 "ip-forward": false, "ip-masq": false, "userland-proxy": false, "shutdown-timeout": 10}
END
    mkdir -p /etc/containers/containers.conf.d
    cat >/etc/containers/containers.conf <<END
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=20000:20000"]
netns = "none"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "$(command -v runc >/dev/null && echo runc || echo crun)"
END
    cat >/etc/containers/storage.conf <<END
[storage]
driver = "overlay"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers"
END
    cp "$PROJECT/docker/containers.conf" /etc/containers/containers.conf.d/ckptfs.conf
}

# Runs its arguments again and again until they succeed, at most $1 seconds: nothing here sleeps and hopes.
until_true() {
    local seconds=$1 began=$SECONDS pause=0.05
    shift
    until "$@" >/dev/null 2>&1; do
        if [ $((SECONDS - began)) -gt "$seconds" ]; then
            echo "after $seconds s still not: $*" >&2
            return 1
        fi
        sleep "$pause"
        pause=0.3
    done
}

is_gone() { ! kill -0 "$1"; }

# Starts dockerd with these further arguments; again after dk_stop and dk_kill.
dk_start() {
    rm -f /run/docker-exec/containerd/containerd.pid /run/dockerd.pid
    setsid dockerd "$@" >>"$W/dockerd.log" 2>&1 </dev/null &
    until_true 120 /usr/bin/docker version || { tail -n 40 "$W/dockerd.log" >&2; return 1; }
}

dk_stop() {
    local pid
    pid=$(cat /run/dockerd.pid)
    kill -TERM "$pid"
    until_true 60 is_gone "$pid"
}

# What a crash of the engine is: dockerd and its containerd, the containers' shims stay.
dk_kill() {
    local pid
    pid=$(cat /run/dockerd.pid)
    kill -KILL "$pid" "$(cat /run/docker-exec/containerd/containerd.pid)"
    until_true 60 is_gone "$pid"
}

# The volume driver, until vol_stop or vol_kill.
vol_start() {
    setsid ckptfs serve volumes "$@" >>"$W/driver.log" 2>&1 </dev/null &
    echo $! >"$W/driver.pid"
    until_true 60 vol_answers_or_is_gone
    vol_answers || { tail -n 40 "$W/driver.log" >&2; return 1; }
}

vol_answers() { curl -sSf -m 20 --unix-socket /run/docker/plugins/ckptfs.sock -X POST http://plugin/Plugin.Activate >/dev/null; }
vol_answers_or_is_gone() { vol_answers || is_gone "$(cat "$W/driver.pid")"; }

vol_stop() { kill -TERM "$(cat "$W/driver.pid")" && until_true 60 is_gone "$(cat "$W/driver.pid")"; }
vol_kill() { kill -KILL "$(cat "$W/driver.pid")" && until_true 60 is_gone "$(cat "$W/driver.pid")"; }

# Prints the tar of an image: busybox under all its names, root and a user 1000; further directories of $@ go in too.
image_tar() {
    local root=$W/image name
    if [ ! -d "$root" ]; then
        mkdir -p "$root"/{bin,etc,tmp,proc,sys,dev,seeded}
        cp "$(command -v busybox)" "$root/bin/busybox"
        for name in $("$root/bin/busybox" --list); do [ "$name" = busybox ] || ln -s busybox "$root/bin/$name"; done
        printf 'root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n' >"$root/etc/passwd"
        # What a volume that is mounted over it has copied into it.
        echo from-the-image >"$root/seeded/file"
        chown -R 1000:1000 "$root/seeded"
        chmod 750 "$root/seeded"
        chmod 1777 "$root/tmp"
    fi
    tar -C "$root" -c .
}

dk_image() { image_tar | docker import --change 'CMD ["/bin/sh"]' - bb:local >/dev/null; }
pm_image() { image_tar | podman import -q --change 'CMD ["/bin/sh"]' - bb:local >/dev/null; }

docker() { /usr/bin/docker "$@"; }

# One command in a container of its own.
dr() { docker run --rm --network none "$@"; }
pm() { podman run --rm --cgroup-parent "/$RIG" "$@"; }

# A container named $1, with these further arguments, that does nothing until it is told to end.
dk_long() {
    local name=$1
    shift
    docker run -d --network none --name "$name" "$@" bb:local sh -c 'trap exit TERM; while :; do sleep 0.2; done' >/dev/null
}

# One named $1 that counts, a number a line, into file $2 and then into $2.after, and ends with status 9 when it cannot.
dk_counter() {
    local name=$1 file=$2
    shift 2
    docker run -d --network none --name "$name" "$@" bb:local \
        sh -c "trap exit TERM; i=0; while :; do i=\$((i + 1)); echo \$i >>$file && echo \$i >>$file.after || exit 9; done" >/dev/null
    until_true 60 counts_beyond "$name" "$file" 0
}

# How far file $2 in container $1 has got.
counted() { docker exec "$1" sh -c "wc -l <$2"; }
counts_beyond() { [ "$(counted "$1" "$2")" -gt "$3" ]; }

# Fails unless the counter of dk_counter still counts, and every number it wrote is there.
still_counts() {
    until_true 60 counts_beyond "$1" "$2" "$(counted "$1" "$2")"
    docker exec "$1" awk '$1 != NR { print NR ": " $1; bad = 1 } END { exit bad }' "$2"
    [ "$(docker inspect -f '{{.State.Running}}' "$1")" = true ]
}

# Where volume $1 is mounted, or nothing.
mounted() { awk -v name="$1" '$5 ~ "/" name "$" && / - fuse/ { print $5 }' /proc/self/mountinfo; }
is_unmounted() { [ -z "$(mounted "$1")" ]; }

# What volume $1's Status has at jq-like path $2 (keys with dots between).
status_of() { docker volume inspect -f "{{json .Status}}" "$1"; }

# What the commands of docs/containers.md need that is not here: systemd, of which this starts what the unit says, and nothing of Podman's settings.
page_programs() {
    rm /etc/containers/containers.conf.d/ckptfs.conf
    mkdir -p "$W/bin"
    cat >"$W/bin/systemctl" <<'END'
#!/usr/bin/env bash
set -eu
[ "$1 $2" = 'enable --now' ]
shift 2
for unit in "$@"; do
    file=$PROJECT/mount/$unit
    case $unit in
        *.socket) grep -qx 'ListenStream=/run/docker/plugins/ckptfs.sock' "$file" ;;
        *.service)
            command=$(sed -n "s|^ExecStart=@PREFIX@/bin/||p" "$file")
            setsid $command >>"$W/driver.log" 2>&1 </dev/null &
            ;;
    esac
done
for try in $(seq 600); do
    curl -sf -m 20 --unix-socket /run/docker/plugins/ckptfs.sock -X POST http://plugin/Plugin.Activate >/dev/null && exit 0
    sleep 0.1
done
exit 1
END
    chmod 755 "$W/bin/systemctl"
}

page_environment() { export PATH=$W/bin:$PATH; }

. "$PROJECT/tests/it/engine/pg.sh"

if [ "${1:-}" = hold ]; then hold; fi
