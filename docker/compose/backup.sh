#!/bin/sh
# Takes a backup of /data every $EVERY seconds while it is written: a checkpoint is made, which is one instant, and copied at leisure.
# Nothing is stopped, no command of ours is needed, and no privilege: a checkpoint is made with mkdir and deleted with rmdir.
set -eu

EVERY=${EVERY:-3600} KEEP=${KEEP:-24}
trap 'exit 0' TERM INT

backup() {
    name=backup-$(date -u +%Y%m%dT%H%M%SZ)
    mkdir "/data/.snapshots/$name"
    tar -C "/data/.snapshots/$name" -cf "/backup/.$name" .
    # What is called a backup is whole.
    sync
    mv "/backup/.$name" "/backup/$name.tar"
    rmdir "/data/.snapshots/$name"
    ls /backup | sort -r | tail -n "+$((KEEP + 1))" | while read -r old; do rm "/backup/$old"; done
}

while :; do
    # A new database is not there yet; a full disk may be empty again an hour later.
    backup || echo "no backup was made" >&2
    # In the background, so that the signal to end does not wait for it.
    sleep "$EVERY" &
    wait $!
done
