#!/usr/bin/env python3
"""What it costs to push a checkpoint, to pull one, and to mount one whose content comes later, beside rustic's backup of the same directory by the same library, and restic's.

  remote.py [ROUNDS] [FILES]     3, 36000; BIN=target/release/ckptfs, RUSTIC=the program of benches/rustic.rs, CKPTFS_BENCH_DIR=/var/tmp

Everything is measured in turn in each round: seconds, median (least, most), and bytes that were added to the repository. Prints a table in Markdown.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

BIN = os.path.realpath(os.environ.get("BIN", "target/release/ckptfs"))
RUSTIC = os.path.realpath(os.environ["RUSTIC"]) if "RUSTIC" in os.environ else None
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
FILES = int(sys.argv[2]) if len(sys.argv) > 2 else 36000
TOUCHED = 60


def run(*command, cwd=None, env=None):
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=cwd, env=env)


def size(path):
    return sum(os.lstat(os.path.join(at, name)).st_size for at, _, names in os.walk(path) for name in names)


class Bench:
    def __init__(self, base):
        self.base, self.seconds, self.bytes = base, {}, {}
        self.env = dict(os.environ, XDG_CONFIG_HOME=f"{base}/config", XDG_CACHE_HOME=f"{base}/cache", CKPTFS_REMOTE_PASSWORD="bench", RESTIC_PASSWORD="bench")

    def of(self, name, repository, *command, cwd=None):
        before = size(repository) if repository and os.path.exists(repository) else 0
        subprocess.run(["sync"], check=True)
        begun = time.perf_counter()
        run(*command, cwd=cwd, env=self.env)
        self.seconds.setdefault(name, []).append(time.perf_counter() - begun)
        if repository:
            self.bytes.setdefault(name, []).append(size(repository) - before)

    def round(self, number, project, plain):
        repositories = {name: f"{self.base}/{name}-{number}" for name in ("ckptfs", "rustic", "restic")}
        run(BIN, "remote", "add", "bench", repositories["ckptfs"], "--force", cwd=project, env=self.env)
        run("restic", "-r", repositories["restic"], "init", env=self.env)
        for step in ("first", "second"):
            if step == "second":
                for n in range(TOUCHED):
                    for tree in (project, plain):
                        path = sorted(self.paths)[n * len(self.paths) // TOUCHED]
                        with open(os.path.join(tree, path), "a") as file:
                            file.write(f"round {number}\n")
            run(BIN, "checkpoint", cwd=project, env=self.env)
            # Of a pin of the round before nothing is wanted.
            self.of(f"ckptfs push, {step}", repositories["ckptfs"], BIN, "push", "bench", "latest", cwd=project)
            if RUSTIC:
                self.of(f"rustic backup, {step}", repositories["rustic"], RUSTIC, repositories["rustic"], plain)
            self.of(f"restic backup, {step}", repositories["restic"], "restic", "-q", "-r", repositories["restic"], "backup", plain)
        self.of("ckptfs pull", None, BIN, "pull", "bench", "--into", f"{self.base}/m/pulled", cwd=project)
        self.of("ckptfs mount --from", None, BIN, "mount", "--no-fetch", "--from", "bench", f"{self.base}/m/lazy", cwd=project)
        run(BIN, "umount", f"{self.base}/m/lazy", env=self.env)
        self.of("restic restore", None, "restic", "-q", "-r", repositories["restic"], "restore", "latest", "--target", f"{self.base}/m/restored")
        for gone in [*repositories.values(), f"{self.base}/m/pulled", f"{self.base}/m/lazy", f"{self.base}/m/restored"]:
            shutil.rmtree(gone, ignore_errors=True)

    def tell(self):
        print("| | seconds | bytes added |\n|---|---|---|")
        for name, times in self.seconds.items():
            added = f"{statistics.median(self.bytes[name]):,.0f}" if name in self.bytes else ""
            print(f"| {name} | {statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f}) | {added} |")


def main():
    with tempfile.TemporaryDirectory(dir=os.environ.get("CKPTFS_BENCH_DIR", "/var/tmp"), prefix="ckptfs-remote-") as base:
        run("truncate", "-s", "12G", f"{base}/image")
        run("mkfs.xfs", "-q", "-m", "reflink=1", f"{base}/image")
        os.mkdir(f"{base}/m")
        run("mount", "-o", "loop", f"{base}/image", f"{base}/m")
        bench, project = Bench(base), f"{base}/m/project"
        try:
            os.mkdir(project)
            here = os.path.dirname(os.path.abspath(__file__))
            run(f"{here}/tree.sh", project, str(FILES))
            run("cp", "-a", "--reflink=always", project, f"{base}/m/plain")
            run(BIN, "mount", project, env=bench.env)
            bench.paths = [os.path.relpath(os.path.join(at, name), f"{base}/m/plain") for at, _, names in os.walk(f"{base}/m/plain") for name in names if not os.path.islink(os.path.join(at, name))]
            for number in range(ROUNDS):
                bench.round(number, project, f"{base}/m/plain")
            bench.tell()
        finally:
            subprocess.run([BIN, "umount", project], env=bench.env, capture_output=True)
            subprocess.run(["umount", "-l", f"{base}/m"], capture_output=True)


main()
