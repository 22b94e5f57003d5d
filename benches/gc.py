#!/usr/bin/env python3
"""What `gc --keep-last 10` leaves and how long others wait for it.

  gc.py [CHECKPOINTS] [CHANGES] [FILES]     2000, 60, 36000; FS="xfs btrfs", BIN=target/release/ckptfs, CKPTFS_BENCH_DIR=/var/tmp

Two stores of the same tree and the same changes: one with all the checkpoints, of which gc leaves ten, and one that only ever had these ten. A writer works beside
gc and the idle time after it: every 5 ms it appends to a file, changes one that a checkpoint holds, makes one and renames it, and does the same in a plain directory
of the same filesystem. Prints a table in Markdown for each filesystem.
"""

import gc as garbage
import json
import os
import subprocess
import sys
import tempfile
import time

NUMBERS = [int(word) for word in sys.argv[1:] if word.isdigit()]
COUNT, CHANGES, FILES = NUMBERS + [2000, 60, 36000][len(NUMBERS):]
BIN = os.path.realpath(os.environ.get("BIN", "target/release/ckptfs"))
KEPT = 10
TICK = 0.005
PARTS = ["layers", "index", "journal"]


def run(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout


def path_of(tree, number):
    return f"{tree}/d{number // 1000}/s{number // 50 % 20}/f{number}"


def make_tree(tree):
    for number in range(FILES):
        if number % 50 == 0:
            os.makedirs(os.path.dirname(path_of(tree, number)))
        with open(path_of(tree, number), "w") as file:
            file.write(f"file {number}\n")


def change(tree, step):
    for n in range(CHANGES):
        with open(path_of(tree, (step * CHANGES + n) * 7919 % FILES), "a") as file:
            file.write("more\n")


def sizes(tree):
    """Bytes on disk of each part of the store."""
    return {part: int(run("du", "-sk", f"{tree}/.ckptfs/{part}").split()[0]) * 1024 if os.path.isdir(f"{tree}/.ckptfs/{part}") else 0 for part in PARTS}


def settle(tree, pause=4):
    """Waits until the store has been the same for a while; how long that took."""
    begun, before, since = time.time(), None, time.time()
    while time.time() - since < pause:
        time.sleep(0.25)
        now = sizes(tree)
        if now != before:
            before, since = now, time.time()
    return since - begun


def write(tree, plain, out, stop):
    """The writer: latencies in milliseconds, of each kind of operation in the mount and beside it."""
    garbage.disable()
    took = {}

    def timed(kind, call):
        begun = time.perf_counter()
        call()
        took.setdefault(kind, []).append((time.perf_counter() - begun) * 1000)

    def append(path):
        with open(path, "ab", 0) as file:
            file.write(b"x" * 100)

    os.makedirs(f"{tree}/writer", exist_ok=True)
    os.makedirs(f"{plain}/writer", exist_ok=True)
    number, due = 0, time.perf_counter()
    while not os.path.exists(stop):
        for kind, root in (("mount", tree), ("plain", plain)):
            timed(f"{kind} append", lambda: append(f"{root}/writer/log"))
            timed(f"{kind} make", lambda: append(f"{root}/writer/new"))
            timed(f"{kind} rename", lambda: os.rename(f"{root}/writer/new", f"{root}/writer/{number % 100}"))
        timed("mount change", lambda: append(path_of(tree, number * 37 % 500)))
        number += 1
        due = max(due + TICK, time.perf_counter())
        time.sleep(max(0, due - time.perf_counter()))
    with open(out, "w") as file:
        json.dump(took, file)


def beside(work, tree, call):
    """Runs the writer beside a call; what it measured and what the call returned."""
    out, stop = f"{work}/took", f"{work}/stop"
    if os.path.exists(stop):
        os.remove(stop)
    writer = subprocess.Popen([sys.executable, __file__, "writer", tree, f"{work}/mnt/plain", out, stop])
    time.sleep(1)
    value = call()
    open(stop, "w").close()
    if writer.wait() != 0:
        sys.exit("the writer failed")
    return json.load(open(out)), value


def told(took):
    """Median, 99th of a hundred, the longest, and how many took more than 10 ms."""
    every = sorted(took)
    return f"{every[len(every) // 2]:.2f} / {every[len(every) * 99 // 100]:.2f} / {every[-1]:.1f} ({sum(one > 10 for one in every)} of {len(every)})"


def measure(fs, work):
    image, mnt = f"{work}/image", f"{work}/mnt"
    run("truncate", "-s", "24G", image)
    run(*(["mkfs.xfs", "-q", "-m", "reflink=1"] if fs == "xfs" else ["mkfs.btrfs", "-q"]), image)
    os.makedirs(mnt, exist_ok=True)
    run("mount", "-o", "loop", image, mnt)
    found, trees = {}, {name: f"{mnt}/{name}" for name in ("ten", "many")}
    rows = []
    try:
        for name, tree in trees.items():
            os.makedirs(tree)
            make_tree(tree)
            run(BIN, "mount", tree)
            begun = time.time()
            for step in range(COUNT):
                change(tree, step)
                if name == "many" or step >= COUNT - KEPT:
                    run(BIN, "-C", tree, "checkpoint")
            print(f"{fs}: {name}: {time.time() - begun:.0f} s for the checkpoints", file=sys.stderr)
            settle(tree)
            found[f"{name} before"] = sizes(tree)
            alone, _ = beside(work, tree, lambda: time.sleep(20))
            if name == "many":
                def thin():
                    begun = time.time()
                    run(BIN, "-C", tree, "gc", f"--keep-last={KEPT}")
                    freed = time.time() - begun
                    return freed, settle(tree)

                busy, (freed, after) = beside(work, tree, thin)
                again, _ = beside(work, tree, lambda: time.sleep(20))
                rows = [(kind, alone[kind], busy[kind], again[kind]) for kind in alone]
            run(BIN, "umount", tree)
            found[name] = sizes(tree)
    finally:
        for tree in trees.values():
            subprocess.run([BIN, "umount", tree], capture_output=True)
        # The daemon's last thread may have something open still.
        while subprocess.run(["umount", mnt], capture_output=True).returncode != 0:
            time.sleep(0.5)
        os.remove(image)
    print(f"\n{fs}: {FILES} files, {COUNT} checkpoints of {CHANGES} changes: gc {freed:.1f} s, and {after:.1f} s until nothing changes any more\n")
    print("| MB on disk | before gc | after | with ten only | more than that |\n|---|---|---|---|---|")
    mega = lambda bytes: f"{bytes / 1e6:.2f}"
    for part in PARTS:
        before, left, ten = (found[name][part] for name in ("many before", "many", "ten"))
        print(f"| {part} | {mega(before)} | {mega(left)} | {mega(ten)} | {mega(left - ten)} |")
    before, left, ten = (sum(found[name].values()) for name in ("many before", "many", "ten"))
    print(f"| all | {mega(before)} | {mega(left)} | {mega(ten)} | {mega(left - ten)}, of {mega(ten * 0.05 + (1 << 20))} |")
    print("\n| ms: median / p99 / longest (above 10 ms) | before | beside gc and after it | later |\n|---|---|---|---|")
    for kind, *columns in rows:
        print(f"| {kind} | {' | '.join(map(told, columns))} |")
    sys.stdout.flush()


if len(sys.argv) > 1 and sys.argv[1] == "writer":
    write(*sys.argv[2:])
else:
    for fs in os.environ.get("FS", "xfs btrfs").split():
        with tempfile.TemporaryDirectory(prefix="ckptfs-gc-", dir=os.environ.get("CKPTFS_BENCH_DIR", "/var/tmp")) as work:
            measure(fs, work)
