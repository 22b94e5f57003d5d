#!/usr/bin/env python3
"""Runs checks and tests; the last line is `N passed, N failed, N skipped`.

    run.py test           what to run before each commit: each body on one variant, short forms
    run.py all            everything: all bodies on all their variants, module by module
    run.py check          format, lints, documentation, feature sets, licences, macOS
    run.py ci             check, test, then modules of `all` for as long as CKPTFS_CI_MINUTES allow
    run.py STEP...        checks by name (see CHECKS), `unit`, `tidy`, or modules of tests/it
    run.py --bodies test  the bodies that `test` covers, with the variant of each, one a line

A step never stops the steps after it. The output of step X is in target/test-logs/X.log. Files that
a test makes are in one run directory, and tests/cleanup.sh removes the rest of it after each step.
CKPTFS_LONG=1 also runs the long forms; LIMIT=SECONDS replaces the time limit of each step.
"""

import collections
import concurrent.futures
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOGS = os.path.join(ROOT, "target/test-logs")
IS_ROOT = os.geteuid() == 0

# The features of the released program.
FEATURES = ["--workspace", "--features", "remote"]

DOC = (
    "RUSTDOCFLAGS='-D warnings -A rustdoc::private_intra_doc_links' "
    "cargo doc --workspace --features remote --no-deps --lib --document-private-items"
)
CHECKS = {
    "deps": "tests/deps.sh",
    "tools": "tests/tools.sh",
    "suites": "tests/tools.sh test",
    "kubernetes": "tests/tools.sh kubernetes",
    "fmt": "cargo fmt --all --check",
    "clippy": "cargo clippy --workspace --features remote --all-targets -- -D warnings"
    # Without features and debug assertions, as the demo builds it.
    " && cargo clippy --profile quick -p ckptfs-cli -- -D warnings"
    " && cargo check --profile quick --benches",
    "doc": DOC,
    "macos": "tests/check-macos.sh",
    "deny": "tests/deny.sh",
}
# Why a check cannot run here: a toolchain without a component is no failure of the code.
NEEDS = {
    "fmt": ("cargo fmt --version", "this toolchain has no rustfmt"),
    "clippy": ("cargo clippy --version", "this toolchain has no clippy"),
    "deny": ("PATH=target/tools/bin:$PATH cargo deny --version", "cargo-deny is not installed (make deny installs it)"),
    "macos": ("command -v rustup || test -e /var/tmp/ckptfs-macos/.complete", "no toolchain for macOS (make check-macos installs one)"),
}

# Modules whose tests disturb others or are disturbed: each runs alone, with so many threads.
# volumes: some tests copy the table of mounts, and volumes of other tests are then in use.
# cluster: a dozen programs of Kubernetes, with leases and limits of their own.
ALONE = {"concurrent": 1, "cluster": 1, "cut": 1, "volumes": 1, "endurance": 2, "csi": 3}
THREADS = 6
# Waits more than it works; unit tests mount nothing.
BESIDE_UNIT = ["volumes"]
# Left to `all`: real servers, a cluster, conformance suites of volumes, measurements, soaks.
NOT_IN_TEST = re.compile(
    r"^(remote::|cluster::|csi::remote::|csi::conformance::csi_sanity|endurance::|posix::fsx::"
    r"|posix::pjdfstest::(on_branch|every_case_while)|engine::(?!engines::|lifecycle::volumes_come_and_go))"
)

# Directories -> modules that `ci` runs first when a commit of the last day touched them.
TOUCHED = [
    ("src/core/live", "mounted cut takeover integrity"),
    ("src/store", "crash gc integrity"),
    ("src/core/history", "mounted gc counts"),
    ("src/core/engine/merge", "merge branch_model"),
    ("src/core/engine/branches", "branch branch_model"),
    ("src/core/engine/export", "export"),
    ("src/core/engine/import", "import"),
    ("src/core/engine", "mounted gc runs"),
    ("src/fuse", "mounted posix"),
    ("src/cli/agent", "agents"),
    ("src/cli/mcp", "mcp"),
    ("src/cli", "cli who"),
    ("src/volumes", "volumes engine"),
    ("src/volumes/csi", "csi cluster"),
    ("src/remote", "remote"),
    ("src/sys", "mounted faults"),
]

VARIANT = re.compile(r"(xfs|btrfs|ext4|tmpfs)_(passthrough|daemon)$")


def say(text):
    print(text, flush=True)


def clock(seconds):
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


class Run:
    """The results of all steps."""

    def __init__(self, anew=True):
        self.started = time.monotonic()
        self.steps = []
        self.passed = self.failed = 0
        self.skips = collections.Counter()
        self.failures = []
        self.times = []
        if anew:
            shutil.rmtree(LOGS, ignore_errors=True)
        os.makedirs(LOGS, exist_ok=True)
        cleanup("--dead")

    def elapsed(self):
        return time.monotonic() - self.started

    def add(self, step, seconds, passed, failed, skipped):
        self.passed += passed
        self.failed += failed
        self.steps.append((step, seconds, passed, failed, skipped))

    def end(self):
        """Prints the summary; returns the exit status."""
        if self.times:
            say("\nslowest tests:")
            for seconds, name in sorted(self.times, reverse=True)[:20]:
                say(f"  {seconds:7.1f} s  {name}")
        say("")
        for step, seconds, passed, failed, skipped in self.steps:
            say(f"{step:12} {passed:5} passed {failed:4} failed {skipped:4} skipped {seconds:6.0f} s")
        for reason, count in sorted(self.skips.items()):
            say(f"skipped {count}x: {reason}")
        for name, text in self.failures:
            say(f"\nFAILED {name}\n{text}")
        say(f"{self.passed} passed, {self.failed} failed, {sum(self.skips.values())} skipped")
        return 1 if self.failed else 0


def cleanup(*args):
    subprocess.run([f"{ROOT}/tests/cleanup.sh", *args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def tail(path, lines=60):
    with open(path, errors="replace") as log:
        return "".join(collections.deque(log, lines))


def start_of(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(") ", 1)[1].split()[19]


def heed_signals():
    """Tests send these signals, which a background job or nohup(1) has ignored."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def limited(name, command, seconds, run_dir=None, on_line=None, env=None):
    """Runs a command with its output in the log of step `name`; returns its status, or None if it
    had to be killed after `seconds`. A process that is stuck in a FUSE request ignores even SIGKILL
    until the connection is aborted, which cleanup.sh does."""
    seconds = int(os.environ.get("LIMIT", seconds))
    log = open(f"{LOGS}/{name}.log", "a")
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if on_line else log,
        stderr=log if on_line else subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=heed_signals,
    )
    if on_line:
        def read():
            for line in process.stdout:
                on_line(line, log)
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
    try:
        status = process.wait(seconds)
    except BaseException as error:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except PermissionError:
            subprocess.run(["sudo", "kill", "-KILL", f"-{process.pid}"])
        if run_dir:
            cleanup(run_dir)
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        status = None
    if on_line:
        reader.join(10)
    log.close()
    return status


def check(run, name):
    """Runs one of CHECKS, which counts as one test."""
    started = time.monotonic()
    needs, reason = NEEDS.get(name, ("true", ""))
    if subprocess.run(["sh", "-c", needs], capture_output=True).returncode:
        run.skips[f"{name}: {reason}"] += 1
        return run.add(name, 0, 0, 0, 1)
    say(f"== {name}: {CHECKS[name]}")
    status = limited(name, ["sh", "-c", CHECKS[name]], 1200)
    if status != 0:
        why = "did not end in time" if status is None else f"exit {status}"
        run.failures.append((f"{name} ({why})", tail(f"{LOGS}/{name}.log")))
    run.add(name, time.monotonic() - started, int(status == 0), int(status != 0), 0)


def build(run):
    """Builds all test programs; returns their paths by target name, or None."""
    started = time.monotonic()
    say(f"== build: cargo build {' '.join(FEATURES)} --lib --bins --tests")
    command = ["cargo", "build", *FEATURES, "--lib", "--bins", "--tests", "--message-format=json-render-diagnostics"]
    programs = {}

    def on_line(line, log):
        if line.startswith("{"):
            message = json.loads(line)
            kinds = message.get("target", {}).get("kind", [])
            if message.get("executable") and message["profile"]["test"] and "bin" not in kinds:
                programs[message["target"]["name"]] = message["executable"]
        else:
            log.write(line)

    status = limited("build", command, 1800, on_line=on_line)
    if status != 0:
        run.failures.append(("build", tail(f"{LOGS}/build.log")))
    run.add("build", time.monotonic() - started, int(status == 0), int(status != 0), 0)
    return programs if status == 0 else None


def names_of(program, *args):
    listed = subprocess.run([program, "--list", "--format", "terse", *args], cwd=ROOT, capture_output=True, text=True, check=True)
    return [line.removesuffix(": test") for line in listed.stdout.splitlines() if line.endswith(": test")]


def one_variant(names):
    """Of each body that has several variants, the one that a hash of its name chooses."""
    bodies = collections.defaultdict(list)
    for name in names:
        body, _, last = name.rpartition("::")
        bodies[body if VARIANT.match(last) else name].append(name)
    return [sorted(variants)[zlib.crc32(body.encode()) % len(variants)] for body, variants in bodies.items()]


def groups(names, by_module):
    """Splits tests into groups that run one after another: (name, tests, threads)."""
    found = collections.defaultdict(list)
    for name in names:
        module = name.split("::")[0]
        found[module if by_module or module in ALONE else "it"].append(name)
    order = sorted(found, key=lambda module: (module in ALONE, module))
    return [(module, found[module], ALONE.get(module, THREADS)) for module in order]


class Progress:
    """Follows the JSON events of a test program."""

    def __init__(self, run, step, total):
        self.run, self.step, self.total = run, step, total
        self.running, self.done, self.failed = {}, 0, []

    def event(self, line, log):
        try:
            event = json.loads(line)
        except ValueError:
            log.write(line)
            return
        if event.get("type") != "test":
            return
        name, what = event["name"], event["event"]
        if what == "started":
            self.running[name] = time.monotonic()
        elif what in ("ok", "failed", "ignored", "timeout"):
            if what == "timeout":
                return
            self.running.pop(name, None)
            self.done += 1
            seconds = event.get("exec_time", 0)
            self.run.times.append((seconds, name))
            line = f"[{self.done:4}/{self.total}  {clock(self.run.elapsed())}] {what:6} {seconds:6.1f} s  {name}"
            say(line)
            log.write(line + "\n")
            if what == "failed":
                self.failed.append(name)
                log.write(event.get("stdout", "") + "\n")
                self.run.failures.append((f"{self.step}: {name}", relevant(event.get("stdout", ""))))
            if what == "ignored":
                self.run.skips[event.get("message", "ignored")] += 1
            log.flush()


def relevant(text):
    """The output of a failed test without its backtrace, of a long one the end."""
    text = re.sub(r"stack backtrace:\n(?: .*\n)*", "", text)
    return text[-3000:]


def test(run, step, program, names, threads, seconds):
    """Runs tests of one program in one process."""
    started = time.monotonic()
    run_dir = tempfile.mkdtemp(prefix="ckptfs-run-", dir=os.environ.get("CKPTFS_TEST_BASE", "/var/tmp"))
    os.chmod(run_dir, 0o755)
    with open(f"{run_dir}/owner", "w") as owner:
        owner.write(f"{os.getpid()} {start_of(os.getpid())}\n")
    skipped = f"{LOGS}/{step}.skipped"
    # Events and times of single tests are not stable yet.
    env = {"CKPTFS_TEST_DIR": run_dir, "CKPTFS_SKIPPED": skipped, "RUSTC_BOOTSTRAP": "1"}
    open(skipped, "w").close()
    say(f"== {step}: {len(names)} tests, {threads} at once")
    progress = Progress(run, step, len(names))
    arguments = ["-Zunstable-options", "--format=json", "--report-time", f"--test-threads={threads}", "--exact", *names]
    if os.environ.get("CKPTFS_LONG") == "1":
        arguments.append("--include-ignored")
    # An ordinary user builds, root runs: to mount an image needs root.
    command = [program, *arguments] if IS_ROOT or step == "tidy" or step.startswith("unit-") else ["sudo", "-E", program, *arguments]
    status = limited(step, command, seconds, run_dir, progress.event, env)
    cleanup(run_dir)
    with open(skipped) as lines:
        reasons = [line.rstrip("\n") for line in lines]
    for reason in reasons:
        run.skips[reason] += 1
    failed = len(progress.failed)
    if status is None or (status != 0 and not failed):
        why = f"did not end in {seconds} s" if status is None else f"exit {status}"
        failed += 1
        run.failures.append((f"{step}: {why}", "running: " + ", ".join(progress.running) + "\n" + tail(f"{LOGS}/{step}.log", 20)))
    ignored = sum(1 for line in open(f"{LOGS}/{step}.log") if re.match(r"\[.*\] ignored", line))
    passed = max(progress.done - len(progress.failed) - ignored - len(reasons), 0)
    run.add(step, time.monotonic() - started, passed, failed, len(reasons) + ignored)


def tests(run, programs, wanted=None, short=False, limit=1800):
    """Runs the unit tests and the integration tests; `wanted`: these modules only."""
    it = names_of(programs["it"])
    chosen = [name for name in it if wanted is None or name.split("::")[0] in wanted]
    if short:
        chosen = in_short(chosen)
    steps = groups(chosen, by_module=not short)
    beside = [step for step in steps if step[0] in BESIDE_UNIT] if wanted is None else []

    def pure():
        if wanted is None or "unit" in wanted:
            for name, program in sorted(programs.items()):
                if name.startswith("ckptfs_"):
                    test(run, name.replace("ckptfs_", "unit-"), program, names_of(program), THREADS, 900)
        if wanted is None or "tidy" in wanted:
            test(run, "tidy", programs["tidy"], names_of(programs["tidy"]), THREADS, 300)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        unit = pool.submit(pure)
        for step, names, threads in beside:
            test(run, step, programs["it"], names, threads, limit)
        # An exception in it ends the run.
        unit.result()
    for step, names, threads in [step for step in steps if step not in beside]:
        test(run, step, programs["it"], names, threads, limit)


def in_short(names):
    return one_variant([name for name in names if not NOT_IN_TEST.search(name)])


def touched():
    """Modules by the commits of the last day, then the others, another one first on each day."""
    log = subprocess.run(["git", "log", "--since=1.day", "--name-only", "--format="], cwd=ROOT, capture_output=True, text=True)
    files = set(log.stdout.split("\n"))
    modules = sorted(name for name in os.listdir(f"{ROOT}/tests/it") if os.path.exists(f"{ROOT}/tests/it/{name}/mod.rs") and name != "common")
    first = []
    for name in sorted(files):
        own = re.match(r"tests/it/(\w+)/", name)
        if own and own[1] in modules:
            first.append(own[1])
        first += next((of.split() for prefix, of in TOUCHED if name.startswith(prefix)), [])
    first = list(dict.fromkeys(first))
    rest = [module for module in modules if module not in first]
    turn = datetime.date.today().toordinal() % max(len(rest), 1)
    return first + rest[turn:] + rest[:turn]


def ci(run):
    """What continuous integration runs."""
    budget = 60 * float(os.environ.get("CKPTFS_CI_MINUTES", 60))
    for name in ["deps", "fmt", "clippy", "doc", "macos", "deny", "tools"]:
        check(run, name)
    programs = build(run)
    if programs is None:
        return
    tests(run, programs, short=True)
    done, left = [], []
    for module in touched():
        # A module that begins may take as long as the longest one does.
        if run.elapsed() > budget - 240:
            left.append(module)
            continue
        tests(run, programs, wanted=[module], limit=900)
        done.append(module)
    say(f"\nmodules in full: {' '.join(done) or 'none'}\nnot run in full: {' '.join(left) or 'none'}")


def main(arguments):
    os.chdir(ROOT)
    os.umask(0o022)
    os.environ.update(LC_ALL="C", CARGO_TERM_COLOR="never", RUST_BACKTRACE="1")
    # Incremental compilation makes a first build a quarter slower, and in CI there is no second one.
    if not os.path.exists(os.path.join(os.environ.get("CARGO_TARGET_DIR", "target"), "debug")):
        os.environ.setdefault("CARGO_INCREMENTAL", "0")
    if arguments[:1] == ["--bodies"]:
        program = build(Run(anew=False))["it"]
        names = names_of(program)
        print("\n".join(sorted(in_short(names) if "test" in arguments else names)))
        return 0
    run = Run()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    steps = list(arguments)
    if steps == ["check"]:
        steps = ["deps", "fmt", "clippy", "doc", "macos", "deny"]
    if steps == ["ci"]:
        ci(run)
        return run.end()
    whole = steps in (["test"], ["all"])
    if whole:
        steps = ["deps", "suites"] if arguments == ["test"] else ["deps", "tools", "kubernetes"]
    for name in [name for name in steps if name in CHECKS]:
        check(run, name)
    others = [name for name in steps if name not in CHECKS]
    if whole or others:
        programs = build(run)
        if programs and whole:
            tests(run, programs, short=arguments == ["test"])
        elif programs:
            unknown = [name for name in others if name not in ("unit", "tidy") and not os.path.exists(f"tests/it/{name}/mod.rs")]
            run.failures += [(name, "there is no such step or module") for name in unknown]
            run.failed += len(unknown)
            tests(run, programs, wanted=others, limit=int(os.environ.get("LIMIT", 3600)))
    return run.end()


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
