#!/usr/bin/env python3
"""How long a hook of an agent takes: the whole process of `ckptfs agent hook`, alone and beside many others.

  hooks.py [ROUNDS] [AGENTS] [FILES]     500 50 36000; BIN=target/release/ckptfs, CKPTFS_BENCH_DIR=/var/tmp

On XFS with reflink. Each event is told to a new process through a shell, as agents do it; `/bin/true` through the same shell is what a hook costs that does
nothing. In milliseconds: median, 99th percentile, most. Prints a table in Markdown. A median above the bound (6 alone, 10 beside others) is status 1.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time

BIN = os.path.realpath(os.environ.get("BIN", "target/release/ckptfs"))
BOUND_ALONE_MS = 6
BOUND_BESIDE_MS = 10
PER_DIR = 35
# Between two rounds of one agent: the machine is to be busy, not to have a queue that grows.
PAUSE_S = 4
HOOK = [BIN, "agent", "hook", "--agent", "claude-code"]


def run(*command, **more):
    return subprocess.run(command, check=True, capture_output=True, text=True, **more)


def fill(tree, files):
    for number in range(files):
        if number % PER_DIR == 0:
            where = f"{tree}/d{number // PER_DIR // 100}/d{number // PER_DIR % 100}"
            os.makedirs(where)
        with open(f"{where}/f{number}", "w") as file:
            file.write(f"{number}\n" * (1 + number % 50))


class Session:
    """One agent, which tells of events one after the other; each of its tools changes a file of its own."""

    def __init__(self, tree, number):
        self.tree, self.number, self.calls, self.times = tree, number, 0, {}

    def payload(self, event, **fields):
        return json.dumps({"session_id": f"s{self.number}", "cwd": self.tree, "hook_event_name": event, **fields}).encode()

    def tell(self, name, event, command=HOOK, **fields):
        said = self.payload(event, **fields)
        begun = time.perf_counter()
        # As agents do; exec keeps the shell from being one more process to wait for, as dash does by itself.
        ran = subprocess.run(["/bin/sh", "-c", 'exec "$@"', "sh", *command], input=said, capture_output=True, cwd=self.tree)
        self.times.setdefault(name, []).append((time.perf_counter() - begun) * 1000)
        if ran.returncode != 0:
            raise SystemExit(f"{name}: {ran.stderr.decode()}")
        return ran.stdout

    def round(self):
        self.calls += 1
        tool = {"tool_name": "Bash", "tool_use_id": f"{self.number}-{self.calls}", "tool_input": {"command": "make"}}
        own = f"{self.tree}/own-{self.number}"
        self.tell("nothing (`/bin/true`)", "Stop", command=["/bin/true"])
        self.tell("a prompt", "UserPromptSubmit", prompt="Fix the login", prompt_id=f"{self.calls}")
        with open(own, "a") as file:
            file.write("more\n")
        self.tell("before a tool, something changed", "PreToolUse", **tool)
        self.tell("behind a tool, nothing changed", "PostToolUse", **tool)
        self.tell("before a tool, nothing changed", "PreToolUse", **tool)
        with open(own, "a") as file:
            file.write("more\n")
        self.tell("behind a tool that changed a file", "PostToolUse", **tool)
        self.tell("the end of a turn", "Stop")


def together(tree, rounds, agents):
    """All at once, as far as the CPUs go; a pause between two events keeps them from being one long queue, as tools do."""
    sessions = [Session(tree, number) for number in range(agents)]

    def work(session):
        for _ in range(rounds):
            session.round()
            time.sleep(PAUSE_S)

    threads = [threading.Thread(target=work, args=(session,)) for session in sessions]
    for number, thread in enumerate(threads):
        thread.start()
        time.sleep(PAUSE_S / agents)
    for thread in threads:
        thread.join()
    times = {}
    for session in sessions:
        for name, of in session.times.items():
            times.setdefault(name, []).extend(of)
    return times


def cell(times):
    times = sorted(times)
    return times[len(times) // 2], times[min(len(times) - 1, len(times) * 99 // 100)], times[-1]


def measure(work, rounds, agents, files):
    image, mount = f"{work}/image", f"{work}/mnt"
    tree = f"{mount}/tree"
    run("truncate", "-s", "8G", image)
    run("mkfs.xfs", "-q", "-m", "reflink=1", image)
    os.makedirs(mount)
    run("mount", "-o", "loop", image, mount)
    try:
        os.makedirs(tree)
        fill(tree, files)
        run(BIN, "mount", tree)
        run(BIN, "-C", tree, "checkpoint")
        alone = Session(tree, "alone")
        for _ in range(rounds):
            alone.round()
        beside = together(tree, max(1, rounds // agents), agents)
    finally:
        # The command waits for the end of the daemon, which has files of the image open.
        subprocess.run([BIN, "umount", tree], capture_output=True)
        subprocess.run(["umount", "-l", tree], capture_output=True)
        subprocess.run(["umount", mount], capture_output=True)
    print(f"\n| a hook, {files:,} files | alone: p50 | p99 | most | {agents} agents: p50 | p99 | most |\n|{'---|' * 7}")
    late = False
    for name, times in alone.times.items():
        one, many = cell(times), cell(beside[name])
        print(f"| {name} | {' | '.join(f'{ms:.1f}' for ms in (*one, *many))} |")
        late |= one[0] > BOUND_ALONE_MS or many[0] > BOUND_BESIDE_MS
    return late


def main():
    numbers = [int(given) for given in sys.argv[1:]]
    rounds, agents, files = (numbers + [500, 50, 36000][len(numbers):])[:3]
    load = os.getloadavg()[0]
    work = tempfile.mkdtemp(prefix="ckptfs-hooks-", dir=os.environ.get("CKPTFS_BENCH_DIR", "/var/tmp"))
    try:
        late = measure(work, rounds, agents, files)
    finally:
        # Never through a mount.
        if not os.path.ismount(f"{work}/mnt"):
            shutil.rmtree(work)
    commit = run("git", "rev-parse", "--short=10", "HEAD").stdout.strip()
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    print(f"\nMeasured {when} at commit {commit}, {rounds} rounds, {os.cpu_count()} cores, Linux {os.uname().release}; load average {load:.1f} before and {os.getloadavg()[0]:.1f} after.")
    sys.exit(1 if late else 0)


main()
