#!/bin/sh
# Takes a backup of /data every $EVERY seconds while it is written: a checkpoint is made, which is one instant, and copied at leisure.
# Nothing is stopped, no command of ours is needed, and no privilege: a checkpoint is made with mkdir and deleted with rmdir.
set -eu

EVERY=${EVERY:-3600} KEEP=${KEEP:-24}
trap 'exit 0' TERM INT

# What is called a backup is whole and on the disk.
copy() {
    tar -C "/data/.snapshots/$1" -cf "/backup/.$1" . && sync "/backup/.$1" && mv "/backup/.$1" "/backup/$1.tar"
}

backup() {
    name=backup-$(date -u +%Y%m%dT%H%M%SZ)
    mkdir "/data/.snapshots/$name" || return 1
    copied=yes
    copy "$name" || copied=no
    rm -f "/backup/.$name"
    rmdir "/data/.snapshots/$name" || return 1
    [ "$copied" = yes ] || return 1
    ls /backup | grep '^backup-.*tar$' | sort -r | tail -n "+$((KEEP + 1))" | while read -r old; do rm "/backup/$old"; done
}

while :; do
    # A new database is not there yet; a full disk may be empty again an hour later.
    backup || echo "no backup was made" >&2
    # In the background, so that the signal to end does not wait for it.
    sleep "$EVERY" &
    wait $!
done
