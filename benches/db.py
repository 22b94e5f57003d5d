#!/usr/bin/env python3
"""Databases in a mount beside the same in a plain directory of the same filesystem.

  db.py [ROUNDS] [ROW...]     9; FS="xfs btrfs", BIN=target/release/ckptfs, TURN=2 seconds a turn, CKPTFS_BENCH_DIR=/var/tmp

Each round gives every row a turn in the plain directory and one in the mount, in changing order. Prints for each row what was done in a second in both (medians), the
median of the rounds' quotients with the middle half of them, and the requests for each.
Rows: SQLite's inserts, each a transaction that is synced, with its journal deleted and with WAL, alone and with a checkpoint each second; pgbench's TPC-B the same
with 4 clients; a file of 64 KiB that is opened, appended to and closed, first after a checkpoint and a second time ("again"), and one of 8 MiB that stays open ("held").
"""

import contextlib
import glob
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time

BINS = [os.path.realpath(bin) for bin in os.environ.get("BIN", "target/release/ckptfs").split()]
MOUNT = os.environ.get("MOUNT", "").split()
SECONDS = float(os.environ.get("TURN", "2"))
MIB = 1 << 20


def run(*command, **how):
    return subprocess.run(command, check=True, capture_output=True, text=True, **how).stdout


class Place:
    """The plain directory, or a mount by `bin`."""

    def __init__(self, path, bin, owner):
        self.path, self.bin = path, bin
        os.makedirs(path)
        # The kernel does the I/O of the owner's files. PostgreSQL runs as nobody else.
        if owner:
            run("chown", f"{owner}:", path)
        if bin:
            run(bin, "mount", path, *MOUNT)
            self.checkpoint()

    def checkpoint(self):
        if self.bin:
            run(self.bin, "-C", self.path, "checkpoint")

    def requests(self):
        return json.loads(run(self.bin, "-C", self.path, "stats", "--json"))["requests"] if self.bin else {}

    @contextlib.contextmanager
    def checkpoints(self, wanted):
        """One each second."""
        end = threading.Event()

        def make():
            while not end.wait(1):
                self.checkpoint()

        thread = threading.Thread(target=make)
        if wanted:
            thread.start()
        yield
        end.set()
        if wanted:
            thread.join()


def sqlite(mode, checkpoints):
    def row(place):
        path = f"{place.path}/{mode}{checkpoints}.db"
        db = sqlite3.connect(path, isolation_level=None)
        db.execute(f"pragma journal_mode={mode}")
        db.execute("pragma synchronous=full")
        db.execute("create table if not exists t (a integer primary key, b text)")

        def turn():
            done, until = 0, time.perf_counter() + SECONDS
            with place.checkpoints(checkpoints):
                begun = time.perf_counter()
                while time.perf_counter() < until:
                    db.execute("insert into t (b) values (?)", ("x" * 100,))
                    done += 1
                took = time.perf_counter() - begun
            return done, took

        return turn, db.close

    return row


def append(again, held):
    """Appends to each of 40 files after a checkpoint, which is not part of what is timed, nor is the first time if it is to be done `again`."""

    def row(place):
        dir = f"{place.path}/append{again}{held}"
        os.makedirs(dir)
        names = [f"{dir}/{n}" for n in range(40)]
        for name in names:
            with open(name, "wb") as file:
                file.write(os.urandom(8 * MIB if held else 64 * 1024))
        os.sync()
        files = [os.open(name, os.O_WRONLY | os.O_APPEND) for name in names] if held else []

        def once(at):
            if held:
                os.write(files[at], b"x" * 100)
                return
            file = os.open(names[at], os.O_WRONLY | os.O_APPEND)
            os.write(file, b"x" * 100)
            os.close(file)

        def turn():
            done, took, until = 0, 0, time.perf_counter() + SECONDS
            while time.perf_counter() < until:
                place.checkpoint()
                if again:
                    for at in range(len(names)):
                        once(at)
                begun = time.perf_counter()
                for at in range(len(names)):
                    once(at)
                took += time.perf_counter() - begun
                done += len(names)
            return done, took

        return turn, lambda: [os.close(file) for file in files]

    return row


PG = max(glob.glob("/usr/lib/postgresql/*/bin"), default="")


def pgbench(checkpoints, select=False):
    def row(place):
        data, port = f"{place.path}/pg", str(5600 + hash(place.path) % 300)
        os.makedirs(data)
        run("chown", "postgres:", data)
        as_pg = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        env = {**os.environ, "PGPORT": port, "PGHOST": "/tmp", "PGUSER": "postgres"}
        run(*as_pg, f"{PG}/initdb", "-D", data, "-A", "trust", "--no-instructions", "--locale=C", env=env)
        server = subprocess.Popen(
            [*as_pg, f"{PG}/postgres", "-D", data, "-k", "/tmp", "-c", "listen_addresses=", "-c", "jit=off", "-c", "shared_buffers=128MB", "-c", "autovacuum=off"],
            env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while subprocess.run([f"{PG}/pg_isready", "-q"], env=env).returncode:
            time.sleep(0.2)
        run(f"{PG}/pgbench", "-q", "-i", "-s", "10", "postgres", env=env)

        def turn():
            with place.checkpoints(checkpoints):
                out = run(f"{PG}/pgbench", "-n", "-c", "4", "-j", "2", "-T", str(max(1, round(SECONDS * 2))), *(["-S"] if select else []), "postgres", env=env)
            done = int(next(line for line in out.splitlines() if "actually processed" in line).split(":")[1].split("/")[0])
            tps = float(next(line for line in out.splitlines() if line.startswith("tps")).split()[2])
            return done, done / tps

        def close():
            server.send_signal(2)
            server.wait()

        return turn, close

    row.owner = "postgres"
    return row


ROWS = {
    "sqlite delete": sqlite("delete", False),
    "sqlite delete, checkpoints": sqlite("delete", True),
    "sqlite wal": sqlite("wal", False),
    "sqlite wal, checkpoints": sqlite("wal", True),
    "append": append(False, False),
    "append again": append(True, False),
    "held append": append(False, True),
    "held append again": append(True, True),
    "tpc-b": pgbench(False),
    "tpc-b, checkpoints": pgbench(True),
    "select": pgbench(False, True),
}


def told(name, bins, rates, requests):
    plain = rates[0]
    for at, bin in enumerate(bins, 1):
        parts = sorted(mount / beside for mount, beside in zip(rates[at], plain))
        half = f"{parts[len(parts) // 4]:.2f}-{parts[len(parts) * 3 // 4]:.2f}"
        kinds = " ".join(f"{kind} {count:.2f}" for kind, count in sorted(requests[at].items(), key=lambda pair: -pair[1]) if count >= 0.01)
        title = name if len(bins) == 1 else f"{name} ({os.path.basename(bin)})"
        rate = [f"{statistics.median(each):,.0f}" for each in (plain, rates[at])]
        print(f"| {title} | {rate[0]} | {rate[1]} | {statistics.median(parts):.2f} | {half} | {kinds} |", flush=True)


def row(name, mnt, rounds):
    places = [Place(f"{mnt}/{at}", bin, getattr(ROWS[name], "owner", None)) for at, bin in enumerate([None, *BINS])]
    turns = [ROWS[name](place) for place in places]
    rates, asked, done = [[] for _ in places], [{} for _ in places], [0] * len(places)
    for number in range(rounds):
        for at in range(len(places)) if number % 2 else reversed(range(len(places))):
            before = places[at].requests()
            count, took = turns[at][0]()
            rates[at].append(count / took)
            done[at] += count
            for kind, now in places[at].requests().items():
                asked[at][kind] = asked[at].get(kind, 0) + now - before.get(kind, 0)
    for _, close in turns:
        close()
    for place in places[1:]:
        run(place.bin, "umount", place.path)
    told(name, BINS, rates, [{kind: count / max(total, 1) for kind, count in kinds.items()} for kinds, total in zip(asked, done)])


def measure(fs, work, rounds, names):
    os.chmod(work, 0o755)
    image, mnt = f"{work}/image", f"{work}/mnt"
    run("truncate", "-s", "6G", image)
    run(*(["mkfs.xfs", "-q", "-m", "reflink=1"] if fs == "xfs" else ["mkfs.btrfs", "-q"]), image)
    os.makedirs(mnt)
    run("mount", "-o", "loop", image, mnt)
    print(f"\n{fs}, {rounds} rounds, load {os.getloadavg()[0]:.1f}\n")
    print("| each second | plain | mount | quotient | middle half | requests for each |\n|---|---|---|---|---|---|", flush=True)
    try:
        for at, name in enumerate(names):
            os.makedirs(f"{mnt}/{at}")
            row(name, f"{mnt}/{at}", rounds)
    finally:
        for at, _ in enumerate(names):
            for number, bin in enumerate(BINS, 1):
                subprocess.run([bin, "umount", f"{mnt}/{at}/{number}"], capture_output=True)
        while subprocess.run(["umount", mnt], capture_output=True).returncode != 0:
            time.sleep(0.5)
        os.remove(image)


if __name__ == "__main__":
    rounds = next((int(word) for word in sys.argv[1:] if word.isdigit()), 9)
    wanted = [word for word in sys.argv[1:] if not word.isdigit()]
    names = [name for name in ROWS if not wanted or name in wanted]
    for fs in os.environ.get("FS", "xfs btrfs").split():
        with tempfile.TemporaryDirectory(prefix="ckptfs-db-", dir=os.environ.get("CKPTFS_BENCH_DIR", "/var/tmp")) as work:
            measure(fs, work, rounds, names)
