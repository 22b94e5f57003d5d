"""A person at a terminal: `shell.py LINES SHELL...` starts the shell, types each line of LINES (a tab
is the key), waits until nothing more is shown, presses Enter, and prints all that was on the screen."""

import os
import pty
import select
import sys
import time

lines, shell = sys.argv[1].split("\n"), sys.argv[2:]
QUIET, LIMIT = 0.7, 20.0


def shown(fd):
    """What comes until it is quiet."""
    text, began = b"", time.monotonic()
    while time.monotonic() - began < LIMIT:
        if not select.select([fd], [], [], QUIET)[0]:
            return text
        try:
            more = os.read(fd, 65536)
        except OSError:
            more = b""
        if not more:
            return text
        text += more
    sys.exit("the shell is never quiet: " + repr(text[-500:]))


child, fd = pty.fork()
if child == 0:
    os.execvp(shell[0], shell)
text = shown(fd)
for line in lines:
    for key in line:
        os.write(fd, key.encode())
        if key == "\t":
            text += shown(fd)
    text += shown(fd)
    os.write(fd, b"\r")
    text += shown(fd)
os.close(fd)
os.waitpid(child, 0)
sys.stdout.buffer.write(text)
