#!/usr/bin/env python3
"""What a branch costs: to make, to drop, to read, to write to for the first time, to merge; beside what else makes a second tree.

  branches.py [ROUNDS] [FILES...]     7, 1000 36000; FS="xfs btrfs", BIN=target/release/ckptfs, CKPTFS_BENCH_DIR=/var/tmp
                                      BRANCHFS=target/tools/bin/branchfs, if it is there

Everything is measured in turn in each round, so that what else the machine does meets all alike. Whole commands, in milliseconds: median (least, most). What
takes O(files) is measured in one round only above 100,000 files, and git not at all there. Prints tables in Markdown for each filesystem and size.
"""

import collections
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

BIN = os.path.realpath(os.environ.get("BIN", "target/release/ckptfs"))
BRANCHFS = os.environ.get("BRANCHFS", "target/tools/bin/branchfs")
MANY = 100_000
PRESENT = 50
TOUCHED = 60
PER_DIR = 35
SEARCH = "rg" if shutil.which("rg") else "grep -r"
GIT = ["git", "-c", "user.name=b", "-c", "user.email=b@localhost", "-c", "gc.auto=0", "-c", "maintenance.auto=false"]


def run(*command, cwd=None, check=True):
    return subprocess.run(command, check=check, capture_output=True, text=True, cwd=cwd)


class Times(collections.defaultdict):
    def __init__(self):
        super().__init__(list)

    def of(self, name, call):
        begun = time.perf_counter()
        answer = call()
        self[name].append((time.perf_counter() - begun) * 1000)
        return answer

    def command(self, name, *command, cwd=None):
        """A whole command; one that this program does not have, or that fails, has no time."""
        begun = time.perf_counter()
        ran = run(*command, cwd=cwd, check=False)
        took = (time.perf_counter() - begun) * 1000
        if ran.returncode == 0:
            self[name].append(took)
        elif name not in self.failed:
            self.failed[name] = (ran.stderr.strip().splitlines() or [f"status {ran.returncode}"])[0]
        return ran.returncode == 0

    failed = {}

    def cell(self, name):
        if not self[name]:
            return "-"
        return f"{statistics.median(self[name]):.1f} ({min(self[name]):.1f}, {max(self[name]):.1f})"

    def ratio(self, one, other):
        if not self[one] or not self[other]:
            return "-"
        return f"{statistics.median(self[one]) / statistics.median(self[other]):.2f}"


def fill(tree, files):
    """Real text of some kilobytes a file, so many to a directory."""
    with open(__file__, "rb") as own:
        text = own.read()
    for number in range(files):
        if number % PER_DIR == 0:
            where = f"{tree}/d{number // PER_DIR // 100}/d{number // PER_DIR % 100}"
            os.makedirs(where)
        with open(f"{where}/f{number}", "wb") as file:
            file.write(b"%d\n" % number + text[: 200 + number * 7919 % 5000])


def path(tree, number):
    return f"{tree}/d{number // PER_DIR // 100}/d{number // PER_DIR % 100}/f{number}"


def append(name):
    file = os.open(name, os.O_WRONLY | os.O_APPEND)
    os.write(file, b"one more line\n")
    os.close(file)


def cold():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


class Place:
    """A filesystem with a mounted tree, `tree`, and a plain one, `plain`, which is a repository too."""

    def __init__(self, fs, work, files):
        self.fs, self.files, self.dir = fs, files, f"{work}/mnt"
        image = f"{work}/image"
        run("truncate", "-s", "60G" if files > MANY else "12G", image)
        run(*(["mkfs.xfs", "-q", "-m", "reflink=1"] if fs == "xfs" else ["mkfs.btrfs", "-q"]), image)
        os.makedirs(self.dir)
        run("mount", "-o", "loop", image, self.dir)
        self.tree, self.plain = f"{self.dir}/tree", f"{self.dir}/plain"
        run("btrfs", "subvolume", "create", self.plain) if fs == "btrfs" else os.makedirs(self.plain)
        fill(self.plain, files)
        self.git = files <= MANY
        if self.git:
            run(*GIT, "init", "-q", "-b", "main", cwd=self.plain)
            run(*GIT, "add", "-A", cwd=self.plain)
            run(*GIT, "commit", "-q", "-m", "all", cwd=self.plain)
        run("cp", "-a", "--reflink=always", self.plain, self.tree)
        if self.git:
            run(*GIT, "update-index", "-q", "--refresh", cwd=self.tree)
        run("touch", f"{self.tree}/waits")
        run(BIN, "mount", self.tree)
        self.ckptfs("checkpoint")

    def ckptfs(self, *arguments, check=True):
        return run(BIN, "-C", self.tree, *arguments, check=check)

    def branch(self, name):
        return self.ckptfs("branch", "create", name).stdout.strip()

    def used(self):
        """Bytes and inodes that are taken; btrfs counts no inodes."""
        run("sync", "-f", self.dir)
        found = os.statvfs(self.dir)
        return (found.f_blocks - found.f_bfree) * found.f_frsize, found.f_files - found.f_ffree

    def close(self):
        for entry in os.listdir(self.dir):
            if entry.startswith("tree@"):
                run(BIN, "umount", f"{self.dir}/{entry}", check=False)
        run(BIN, "umount", self.tree, check=False)
        run("umount", self.dir, check=False)


def create_and_drop(place, times, rounds, present):
    for number in range(rounds):
        name = f"round-{present}-{number}"
        times.command(f"create {present}", BIN, "-C", place.tree, "branch", "create", name)
        times.command(f"create plain {present}", BIN, "-C", place.tree, "branch", "create", "--no-git", f"{name}p")
        times.command(f"drop {present}", BIN, "-C", place.tree, "branch", "drop", name)
        times.command(f"drop plain {present}", BIN, "-C", place.tree, "branch", "drop", f"{name}p")
        times.command("/bin/true", BIN, "--version")


def others(place, times, rounds):
    """What else makes a second tree, and how it goes again."""
    for number in range(rounds):
        at = f"{place.dir}/other-{number}"
        again = [("cp -a --reflink", ["cp", "-a", "--reflink=always", place.plain, at]), ("ckptfs fork", [BIN, "-C", place.tree, "fork", "1", at])]
        for name, command in again:
            if times.command(name, *command):
                times.command(f"{name}, rm", "rm", "-rf", at)
        if place.git and times.command("git worktree add", *GIT, "worktree", "add", "-q", at, "-b", f"b{number}", cwd=place.plain):
            times.command("git worktree add, rm", *GIT, "worktree", "remove", "--force", at, cwd=place.plain)
        if place.fs == "btrfs" and times.command("btrfs snapshot", "btrfs", "subvolume", "snapshot", place.plain, at):
            times.command("btrfs snapshot, rm", "btrfs", "subvolume", "delete", at)


def branchfs(place, times, rounds):
    """BranchFS: branches are made below its own mount, of a plain directory."""
    if not os.access(BRANCHFS, os.X_OK):
        return
    at, store = f"{place.dir}/branchfs", f"{place.dir}/branchfs-store"
    os.makedirs(at)
    program = os.path.realpath(BRANCHFS)
    if not times.command("branchfs mount", program, "mount", "--base", place.plain, "--storage", store, at):
        return
    for number in range(rounds):
        if times.command("branchfs", program, "create", f"b{number}", at, "--storage", store):
            times.command("branchfs, first write", "sh", "-c", 'echo x >>"$1"', "sh", path(at, number))
            times.command("branchfs, rm", program, "abort", at, "--storage", store)
    run(program, "unmount", at, "--storage", store, check=False)


def first_writes(place, times, rounds):
    """Open, append, close: of files that the branch has from its base; of live ones after a checkpoint; and both once more."""
    for number in range(rounds):
        branch = place.branch(f"write-{number}")
        place.ckptfs("checkpoint")
        of = [(number * TOUCHED + n) % place.files for n in range(TOUCHED)]
        for n in of:
            times.of("first write, branch", lambda: append(path(branch, n)))
            times.of("first write, live", lambda: append(path(place.tree, n)))
        for n in of:
            times.of("second write, branch", lambda: append(path(branch, n)))
            times.of("second write, live", lambda: append(path(place.tree, n)))
        place.ckptfs("branch", "drop", f"write-{number}")


def reads(place, times, rounds):
    """A fresh branch beside a view and the live tree, with cold caches and warm ones."""
    jobs = {
        "read all": ["sh", "-c", "find . -path ./.git -prune -o -type f -print0 | xargs -0 -n 200 -P 2 cat | wc -c"],
        "find": ["find", ".", "-printf", "%s\n"],
    }
    # A search as agents do it, by several threads.
    jobs[SEARCH] = ["sh", "-c", f"{'rg -l' if SEARCH == 'rg' else 'grep -rl --exclude-dir=.git'} 'def first_writes' . | wc -l"]
    if place.git:
        jobs["git status"] = [*GIT, "--no-optional-locks", "status", "--porcelain"]
    last = place.ckptfs("checkpoint").stdout.strip()
    for number in range(rounds):
        branch = place.branch(f"read-{number}")
        for job, command in jobs.items():
            for kind in ["cold", "warm"]:
                for where, at in [("branch", branch), ("view", f"{place.tree}/.snapshots/{last}"), ("live", place.tree)]:
                    if kind == "cold":
                        cold()
                    else:
                        run(*command, cwd=at, check=False)
                    times.command(f"{job}, {kind}, {where}", *command, cwd=at)
        place.ckptfs("branch", "drop", f"read-{number}")


class Waits:
    """The longest time that somebody waited who changed a file again and again meanwhile."""

    def __init__(self, tree, longest):
        self.name, self.longest, self.on = f"{tree}/waits", longest, True
        self.thread = threading.Thread(target=self.change)

    def change(self):
        longest = 0
        while self.on:
            begun = time.perf_counter()
            os.utime(self.name)
            longest = max(longest, time.perf_counter() - begun)
            time.sleep(0.0005)
        self.longest.append(longest * 1000)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.on = False
        self.thread.join()


def merges(place, times, rounds):
    for number in range(rounds):
        name = f"merge-{number}"
        branch = place.branch(name)
        for n in range(TOUCHED):
            append(path(branch, (number * 997 + n * 13) % place.files))
            append(path(place.tree, (number * 991 + n * 17 + 5) % place.files))
        place.ckptfs("checkpoint")
        with Waits(branch, times["update, wait"]):
            times.command("update", BIN, "-C", place.tree, "branch", "update", name)
        with Waits(place.tree, times["merge, wait"]):
            merged = times.command("merge", BIN, "-C", place.tree, "merge", name)
        if merged:
            times.command("undo", BIN, "-C", place.tree, "undo")
        place.ckptfs("branch", "drop", name)


def table(head, rows):
    print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def tell(place, times, taken):
    print(f"\n### {place.fs}, {place.files:,} files")
    made = [(f"`branch create`, {n} present", f"create {n}", f"drop {n}") for n in [0, PRESENT]]
    made += [(f"`branch create --no-git`, {n} present", f"create plain {n}", f"drop plain {n}") for n in [0, PRESENT]]
    made += [(f"`{name}`", name, f"{name}, rm") for name in ["git worktree add", "cp -a --reflink", "ckptfs fork", "btrfs snapshot", "branchfs"]]
    table(["a second tree", "make", "to `branch create`", "remove"], [[told, times.cell(make), times.ratio(make, "create 0"), times.cell(drop)] for told, make, drop in made])
    print(f"\nA program that does nothing takes {times.cell('/bin/true')}. A branch takes {taken[0] / 1024:.0f} KiB and {taken[1]:.0f} inodes. BranchFS: first write (with a shell) {times.cell('branchfs, first write')}.")
    table(
        ["open, append, close", "inherited, in a branch", "live, after a checkpoint", "ratio"],
        [[name, times.cell(f"{name} write, branch"), times.cell(f"{name} write, live"), times.ratio(f"{name} write, branch", f"{name} write, live")] for name in ["first", "second"]],
    )
    rows = []
    for job in ["read all", "find", SEARCH, "git status"]:
        for kind in ["cold", "warm"]:
            of = [f"{job}, {kind}, {where}" for where in ["branch", "view", "live"]]
            rows.append([f"{job}, {kind}", *map(times.cell, of), times.ratio(of[0], of[1]), times.ratio(of[0], of[2])])
    table(["", "fresh branch", "view", "live", "branch / view", "branch / live"], rows)
    rows = [[f"`{name}`", times.cell(name), times.cell(f"{name}, wait")] for name in ["merge", "update", "undo"]]
    table([f"{TOUCHED} files", "milliseconds", "longest wait of who changes a file there"], rows)
    for name, why in times.failed.items():
        print(f"\n`{name}` has no time: {why}")


def measure(fs, work, rounds, files):
    place = Place(fs, work, files)
    times, once = Times(), 1 if files > MANY else rounds
    times.failed = {}
    try:
        create_and_drop(place, times, rounds, 0)
        before = place.used()
        for number in range(PRESENT):
            place.branch(f"there-{number}")
        after = place.used()
        create_and_drop(place, times, rounds, PRESENT)
        for number in range(PRESENT):
            place.ckptfs("branch", "drop", f"there-{number}")
        first_writes(place, times, rounds)
        merges(place, times, rounds)
        reads(place, times, once)
        others(place, times, once)
        branchfs(place, times, once)
        tell(place, times, [(a - b) / PRESENT for a, b in zip(after, before)])
    finally:
        place.close()


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    sizes = [int(size) for size in sys.argv[2:]] or [1000, 36000]
    load = os.getloadavg()
    for size in sizes:
        for fs in os.environ.get("FS", "xfs btrfs").split():
            work = tempfile.mkdtemp(prefix="ckptfs-branches-", dir=os.environ.get("CKPTFS_BENCH_DIR", "/var/tmp"))
            try:
                measure(fs, work, rounds, size)
            finally:
                # Never through a mount.
                if not os.path.ismount(f"{work}/mnt"):
                    shutil.rmtree(work)
    commit = run("git", "rev-parse", "--short=10", "HEAD").stdout.strip()
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    print(f"\nMeasured {when} at commit {commit}, {rounds} rounds, {os.cpu_count()} cores, Linux {os.uname().release}; load average {load[0]:.1f} before and {os.getloadavg()[0]:.1f} after.")


main()
