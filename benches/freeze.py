#!/usr/bin/env python3
"""How long a checkpoint takes while files are open to be written, and how long another process waits for it.

  freeze.py [ROUNDS] [SCENARIO...]     20; FS="xfs btrfs", BIN=target/release/ckptfs, CKPTFS_BENCH_DIR=/var/tmp

Another process appends to a file of the mount all the time, which the kernel does by itself, and makes and removes a file, which waits for a freeze; one more does
the same in a plain directory of the same filesystem. A scenario holds files open and does something to them before each checkpoint. Prints a table in Markdown
for each filesystem: the checkpoint's time and how long of it changes had to wait (as the daemon tells), and what these calls took while checkpoints were made; the longest is the number that matters.
"""

import gc as garbage
import json
import mmap
import os
import subprocess
import sys
import tempfile
import time

BIN = os.path.realpath(os.environ.get("BIN", "target/release/ckptfs"))
PAGE = 4096


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def told(took):
    """Median, 99th of a hundred and the longest, in milliseconds."""
    every = sorted(took)
    return f"{every[len(every) // 2]:.2f} / {every[len(every) * 99 // 100]:.2f} / {every[-1]:.1f}"


def work(path, out, stop):
    garbage.disable()
    took, file = ([], []), os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def timed(kind, call):
        begun = time.perf_counter()
        call()
        took[kind].append((time.perf_counter() - begun) * 1000)

    def make():
        os.close(os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT))
        os.unlink(f"{path}.new")

    while not os.path.exists(stop):
        timed(0, lambda: os.write(file, b"x" * 100))
        timed(1, make)
        time.sleep(0.0005)
    with open(out, "w") as file:
        json.dump(took, file)


def make(path, size):
    with open(path, "wb") as file:
        file.write(b"a" * size)
    return path


def opened(tree, count, size, flags=os.O_RDWR):
    return [os.open(make(f"{tree}/o{n}", size), flags) for n in range(count)]


def nothing():
    pass


def many_extents(tree):
    """A file of some ten thousand extents: every other block is a hole."""
    path = f"{tree}/extents"
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    for n in range(10_700):
        os.pwrite(file, b"b" * PAGE, n * 2 * PAGE)
    os.fsync(file)
    return file


def idle(count):
    return lambda tree: (opened(tree, count, PAGE), nothing)[1]


def written(count):
    def scenario(tree):
        files = opened(tree, count, PAGE)
        return lambda: [os.pwrite(file, os.urandom(16), 0) for file in files]

    return scenario


def extents(write):
    def scenario(tree):
        file = many_extents(tree)
        return (lambda: os.pwrite(file, os.urandom(16), 0)) if write else nothing

    return scenario


def mapped(count):
    def scenario(tree):
        maps = [mmap.mmap(file, PAGE) for file in opened(tree, count, PAGE)]

        def store():
            for one in maps:
                one[:8] = os.urandom(8)

        return store

    return scenario


SCENARIOS = {
    "nothing open": lambda tree: nothing,
    "1,000 idle open files": idle(1000),
    "64 open, written": written(64),
    "1 of 10,700 extents, idle": extents(False),
    "1 of 10,700 extents, written": extents(True),
    "1,000 mappings, stored to": mapped(1000),
}


def measure(fs, work, rounds, names):
    image, mnt = f"{work}/image", f"{work}/mnt"
    run("truncate", "-s", "8G", image)
    run(*(["mkfs.xfs", "-q", "-m", "reflink=1"] if fs == "xfs" else ["mkfs.btrfs", "-q"]), image)
    os.makedirs(mnt)
    run("mount", "-o", "loop", image, mnt)
    print(f"\n{fs}, {rounds} checkpoints each; ms: median / p99 / longest\n")
    print("| open for writing | checkpoint | of it frozen | another's append | plain | another makes and removes | plain |\n|---|---|---|---|---|---|---|")
    try:
        for at, name in enumerate(names):
            tree, plain, stop = f"{mnt}/tree{at}", f"{mnt}/plain{at}", f"{work}/stop{at}"
            os.makedirs(tree)
            os.makedirs(plain)
            run(BIN, "mount", tree)
            # What is open when this process ends must not keep the mount.
            child = os.fork()
            if child == 0:
                between = SCENARIOS[name](tree)
                files = [f"{tree}/log", f"{plain}/log"]
                others = [subprocess.Popen([sys.executable, __file__, "work", file, f"{file}.took", stop]) for file in files]
                time.sleep(3)
                took, frozen = [], []
                for n in range(rounds):
                    between()
                    made = json.loads(run(BIN, "-C", tree, "checkpoint", "--json"))
                    took.append(made["duration_us"] / 1000)
                    frozen.append(made.get("frozen_us", made["duration_us"]) / 1000)
                    time.sleep(0.05)
                open(stop, "w").close()
                [other.wait() for other in others]
                theirs = [json.load(open(f"{file}.took")) for file in files]
                columns = [took, frozen, *(theirs[where][kind] for kind in (0, 1) for where in (0, 1))]
                print(f"| {name} | {' | '.join(map(told, columns))} |", flush=True)
                os._exit(0)
            os.waitpid(child, 0)
            run(BIN, "umount", tree)
    finally:
        for at, _ in enumerate(names):
            subprocess.run([BIN, "umount", f"{mnt}/tree{at}"], capture_output=True)
        while subprocess.run(["umount", mnt], capture_output=True).returncode != 0:
            time.sleep(0.5)
        os.remove(image)


if sys.argv[1:2] == ["work"]:
    work(*sys.argv[2:])
else:
    rounds = next((int(word) for word in sys.argv[1:] if word.isdigit()), 20)
    names = [name for name in SCENARIOS if not sys.argv[1:] or sys.argv[1].isdigit() and len(sys.argv) == 2 or any(word in name for word in sys.argv[1:] if not word.isdigit())]
    for fs in os.environ.get("FS", "xfs btrfs").split():
        with tempfile.TemporaryDirectory(prefix="ckptfs-freeze-", dir=os.environ.get("CKPTFS_BENCH_DIR", "/var/tmp")) as work:
            measure(fs, work, rounds, names)
