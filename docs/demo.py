#!/usr/bin/env python3
"""Makes docs/demo.svg: a story of some seconds at a terminal, from a real run.

    docs/demo.py [--ckptfs PROGRAM] [--out FILE]

Each command below is run by a shell on a terminal, in a project made for it, and what it prints is
what the picture shows, with the real path of the project (in $TMPDIR) replaced by /home/me/project. In a browser the
lines appear one after the other; where nothing is animated the picture shows all of them. Needs what
`ckptfs mount` needs, and nothing of the network.
"""

import argparse
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from html import escape

STORY = [
    "ckptfs mount ~/project",
    "cd ~/project",
    'ckptfs checkpoint -m "it works"',
    "rm -rf src && sed -i s/1.0/2.0/ version",
    "ckptfs status src",
    "ckptfs restore src",
    "ls src",
    "ckptfs diff -p",
]
FILES = {
    "src/main.rs": 'fn main() {\n    println!("hello");\n}\n',
    "src/parser.rs": "pub fn parse() {}\n",
    "version": "release 1.0 of the parser\n",
}
HOME = "/home/me"
COLUMNS, LIMIT_S = 84, 30
COLORS = {"31": "#f85149", "32": "#3fb950", "33": "#d29922", "34": "#58a6ff", "36": "#39c5cf", "2": "#8b949e"}
TYPED_S, SHOWN_S, READ_S = 0.045, 0.25, 1.2
LINE_PX, CHAR_PX, FONT_PX, EDGE_PX = 20, 8.4, 14, 16


def run(command, cwd, env):
    """What a command prints on a terminal."""
    child, fd = pty.fork()
    if child == 0:
        os.chdir(cwd)
        os.execvpe("bash", ["bash", "-c", command], env)
    text, began = b"", time.monotonic()
    while time.monotonic() - began < LIMIT_S:
        if not select.select([fd], [], [], 0.2)[0]:
            continue
        try:
            more = os.read(fd, 65536)
        except OSError:
            more = b""
        if not more:
            break
        text += more
    os.close(fd)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0:
        sys.exit(f"{command}: status {status}\n{text.decode(errors='replace')}")
    return text.decode().replace("\r\n", "\n")


def recorded(program):
    """The commands, each with the lines that it printed."""
    home = tempfile.mkdtemp(prefix="ckptfs-picture-", dir=os.environ.get("TMPDIR", "/var/tmp"))
    project = os.path.join(home, "project")
    for name, content in FILES.items():
        path = os.path.join(project, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(content)
    bin = os.path.join(home, "bin")
    os.mkdir(bin)
    os.symlink(os.path.abspath(program), os.path.join(bin, "ckptfs"))
    path = f"{bin}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    env = {"HOME": home, "PATH": path, "TERM": "xterm", "LC_ALL": "C.UTF-8", "TZ": "UTC", "PAGER": "cat"}
    try:
        told, cwd = [], home
        for command in STORY:
            if command.startswith("cd "):
                cwd = command[3:].replace("~", home)
                told.append((command, []))
                continue
            told.append((command, run(command, cwd, env).replace(home, HOME).splitlines()))
        return told
    finally:
        subprocess.run([program, "umount", project], capture_output=True, env=env, timeout=LIMIT_S)
        if not os.path.ismount(project):
            shutil.rmtree(home)


def spans(line):
    """A line with SGR sequences, as tspans."""
    parts, style = [], ""
    for text in re.split(r"(\x1b\[[0-9;]*m)", line):
        if not text.startswith("\x1b"):
            if text:
                parts.append(f"<tspan{style}>{escape(text)}</tspan>")
            continue
        codes = text[2:-1].split(";")
        fill = next((COLORS[code] for code in codes if code in COLORS), None)
        bold = "1" in codes or "7" in codes
        style = (f' fill="{fill}"' if fill else "") + (' font-weight="bold"' if bold else "")
    return "".join(parts)


def picture(told):
    """The SVG."""
    lines, at = [], 0.5
    for command, printed in told:
        width = len(command) + 2
        lines.append((f'<tspan fill="#3fb950">$</tspan> {escape(command)}', at, width))
        at += TYPED_S * len(command) + SHOWN_S
        lines.extend((spans(line), at, 0) for line in printed)
        at += READ_S if printed else SHOWN_S
    height = LINE_PX * len(lines) + 2 * EDGE_PX
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {int(COLUMNS * CHAR_PX) + 2 * EDGE_PX} {height}" role="img" aria-label="ckptfs at a terminal">',
        "<style>",
        f"text {{ font: {FONT_PX}px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #e6edf3; white-space: pre; }}",
        "@media (prefers-reduced-motion: no-preference) {",
        "  .shown { animation: show .01s linear both; }",
        "  .typed { animation-name: type; animation-fill-mode: both; }",
        "}",
        "@keyframes show { from { opacity: 0; } to { opacity: 1; } }",
        "@keyframes type { from { clip-path: inset(0 100% 0 0); } to { clip-path: inset(0 0 0 0); } }",
        "</style>",
        '<rect width="100%" height="100%" rx="8" fill="#0d1117"/>',
    ]
    for number, (text, begins, width) in enumerate(lines):
        y = EDGE_PX + LINE_PX * number + FONT_PX
        how = f'class="shown" style="animation-delay: {begins:.2f}s"'
        if width:
            how = f'class="typed" style="animation-delay: {begins:.2f}s; animation-duration: {TYPED_S * width:.2f}s; animation-timing-function: steps({width})"'
        out.append(f'<text x="{EDGE_PX}" y="{y}" xml:space="preserve" {how}>{text}</text>')
    return "\n".join(out + ["</svg>", ""])


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--ckptfs", default=os.path.join(here, "../target/release/ckptfs"))
    asked.add_argument("--out", default=os.path.join(here, "demo.svg"))
    args = asked.parse_args()
    svg = picture(recorded(args.ckptfs))
    with open(args.out, "w") as file:
        file.write(svg)


main()
