# PostgreSQL as Debian packages it, in an image made of the installed files. Sourced after rig.sh.

# Prints the tar of the image: the programs with the libraries they need, busybox, and an empty data directory that belongs to `postgres`.
pg_tar() {
    local root=$W/pg-image home version file
    home=$(dirname "$(dirname "$(ls -d /usr/lib/postgresql/*/bin/postgres | sort -V | tail -n 1)")")
    version=${home##*/}
    mkdir -p "$root/usr/bin"
    image_tar | tar -C "$root" -x
    cp -a --parents "/usr/share/postgresql/$version" "$root"
    # Without the compiler for queries, which is larger than all the rest.
    tar -C / --exclude='*/bitcode' --exclude='*llvmjit*' --exclude='*/pgxs' -c "${home#/}" | tar -C "$root" -x
    for file in "$home"/bin/* "$home"/lib/*.so; do
        case $file in *llvmjit*) ;; *) ldd "$file" 2>/dev/null ;; esac
    done | grep -o '/[^ ]*' | sort -u | while read -r file; do cp -L --parents "$file" "$root"; done
    for file in "$home"/bin/*; do ln -s "$file" "$root/usr/bin/"; done
    echo 'postgres:x:999:999::/var/lib/postgresql:/bin/sh' >>"$root/etc/passwd"
    mkdir -p "$root/var/lib/postgresql/data" "$root/var/run/postgresql"
    printf '%s\n' '#!/bin/sh' 'set -e' 'cd /var/lib/postgresql/data' \
        '[ -s PG_VERSION ] || initdb -D . -A trust --no-instructions -E UTF8 --locale=C >/dev/null' \
        'exec postgres -D . -k /var/run/postgresql -c listen_addresses= -c jit=off -c shared_buffers=16MB -c timezone=GMT "$@"' >"$root/bin/serve"
    chmod 755 "$root/bin/serve"
    chown -R 999:999 "$root/var/lib/postgresql" "$root/var/run/postgresql"
    chmod 700 "$root/var/lib/postgresql/data"
    tar -C "$root" -c .
    rm -rf "$root"
}

pg_image() {
    pg_tar | docker import --change 'USER 999' --change 'ENTRYPOINT ["/bin/serve"]' - postgres:local >/dev/null
}

# Starts container $1 on volume $2, which may be new, and waits until it answers.
pg_start() {
    docker run -d --network none --shm-size 256m --stop-signal INT --name "$1" -v "$2:/var/lib/postgresql/data" postgres:local >/dev/null
    pg_ready "$1"
}

pg_ready() { until_true 180 docker exec "$1" psql -U postgres -Atc 'select 1' || { docker logs "$1" >&2; return 1; }; }

# Runs SQL $2 in container $1.
pg() { docker exec "$1" psql -U postgres -v ON_ERROR_STOP=1 -Atqc "$2"; }

pg_fill() {
    docker exec "$1" pgbench -U postgres -q -i -s "$2" postgres 2>/dev/null
    pg "$1" 'create extension amcheck'
}

# Prints how many transactions are in container $1, and fails unless what they moved adds up everywhere and every index agrees with its table.
pg_check() {
    local sums
    sums=$(pg "$1" "select (select sum(abalance) from pgbench_accounts), (select sum(tbalance) from pgbench_tellers),
        (select sum(bbalance) from pgbench_branches), (select coalesce(sum(delta), 0) from pgbench_history)")
    if ! [[ $sums =~ ^(-?[0-9]+)\|(-?[0-9]+)\|(-?[0-9]+)\|(-?[0-9]+)$ ]] || [ "${BASH_REMATCH[1]}" != "${BASH_REMATCH[2]}" ] ||
        [ "${BASH_REMATCH[2]}" != "${BASH_REMATCH[3]}" ] || [ "${BASH_REMATCH[3]}" != "${BASH_REMATCH[4]}" ]; then
        echo "accounts|tellers|branches|history do not agree: $sums" >&2
        return 1
    fi
    docker exec "$1" pg_amcheck -U postgres --heapallindexed --parent-check postgres >&2 || return 1
    pg_count "$1"
}

pg_count() { pg "$1" 'select count(*) from pgbench_history'; }

# Whether container $1 has more than $2 transactions.
pg_more() { [ "$(pg_count "$1")" -gt "$2" ]; }
