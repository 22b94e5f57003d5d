"""A program on a terminal: `terminal.py ROWS KEYS COMMAND...` runs the command on a terminal of ROWS
lines, presses each of KEYS once nothing more is shown, prints all that was on the screen, and ends
with the command's status."""

import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time

rows, keys, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
QUIET, LIMIT = 0.7, 20.0


def shown(fd, quiet):
    """What comes until it is quiet, or, if it need not be, to the end."""
    text, began = b"", time.monotonic()
    while time.monotonic() - began < LIMIT:
        if not select.select([fd], [], [], QUIET)[0]:
            if quiet and text:
                return text
            continue
        try:
            more = os.read(fd, 65536)
        except OSError:
            more = b""
        if not more:
            return text
        text += more
    sys.exit("it does not end: " + repr(text[-500:]))


child, fd = pty.fork()
if child == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 100, 0, 0))
    os.environ["TERM"] = "xterm"
    os.execvp(command[0], command)
text = b""
for key in keys:
    text += shown(fd, True)
    os.write(fd, key.encode())
text += shown(fd, False)
sys.stdout.buffer.write(text)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) % 256)
