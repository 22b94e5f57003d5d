#!/usr/bin/env python3
"""An agent without a model: it calls the hooks that stand in the settings of Claude Code, with the payloads of Claude Code, around what a test tells it
to do. Reads one JSON object a line, and answers each with one.

  agent.py SESSION
"""

import json
import re
import subprocess
import sys

SESSION = sys.argv[1]
calls = 0


def hooks(event, **fields):
    """Calls the hooks of an event as Claude Code does, each through a shell; what the last one said."""
    with open(".claude/settings.json") as file:
        groups = json.load(file).get("hooks", {}).get(event, [])
    payload = {"session_id": SESSION, "transcript_path": "/nowhere", "cwd": CWD, "permission_mode": "default", "hook_event_name": event, **fields}
    answer = {"status": None, "stdout": "", "stderr": ""}
    for group in groups:
        if "matcher" in group and not re.fullmatch(group["matcher"], fields.get("tool_name", "")):
            continue
        for hook in group["hooks"]:
            ran = subprocess.run(["/bin/sh", "-c", hook["command"]], input=json.dumps(payload), text=True, capture_output=True, timeout=hook["timeout"])
            answer = {"status": ran.returncode, "stdout": ran.stdout, "stderr": ran.stderr}
    return answer


def tool(name, does, **given):
    global calls
    calls += 1
    call = {"tool_name": name, "tool_input": given, "tool_use_id": f"{SESSION}-{calls}"}
    before = hooks("PreToolUse", **call)
    failed = does()
    after = hooks("PostToolUseFailure" if failed else "PostToolUse", **call)
    return {"before": before, "after": after}


def bash(command):
    return tool("Bash", lambda: subprocess.run(["/bin/bash", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).returncode, command=command)


def write(path, text):
    def does():
        with open(path, "w") as file:
            file.write(text)

    return tool("Write", does, file_path=f"{CWD}/{path}", content=text)


DOES = {
    "prompt": lambda text, id: hooks("UserPromptSubmit", prompt=text, prompt_id=id),
    "bash": bash,
    "write": write,
    "stop": lambda: hooks("Stop", stop_hook_active=False),
}
CWD = subprocess.run(["pwd"], text=True, capture_output=True).stdout.strip()
for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps(DOES[asked.pop("do")](**asked)), flush=True)
