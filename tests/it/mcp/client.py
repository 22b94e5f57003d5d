"""An agent: the client of the Python package `mcp`, which checks each answer against the schema that
the tool declares. Run in a mounted tree as `client.py CKPTFS MODE`; an assertion that fails is a
failure of the test."""

import asyncio
import os
import subprocess
import sys

import jsonschema
from mcp import Client, StdioServerParameters

CKPTFS, MODE = sys.argv[1:3]
TOOLS = {
    # name: (read only, destructive)
    "status": (True, None),
    "checkpoint": (False, False),
    "log": (True, None),
    "diff": (True, None),
    "read_past": (True, None),
    "find_version": (True, None),
    "restore": (False, True),
    "undo": (False, True),
    "branch_create": (False, False),
    "branch_list": (True, None),
    "branch_conflicts": (True, None),
    "branch_merge": (False, True),
    "branch_drop": (False, True),
}
called = set()
not_protocol = []


async def heard(message):
    if isinstance(message, Exception):
        not_protocol.append(message)


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def read(path):
    with open(path) as file:
        return file.read()


class Agent:
    def __init__(self, client, schemas):
        self.client, self.schemas = client, schemas

    async def ok(self, tool, **asked):
        told = await self.client.call_tool(tool, asked)
        assert not told.is_error, (tool, told.content[0].text)
        # The client has done so already; a client that did not would hide what it was to show.
        jsonschema.validate(told.structured_content, self.schemas[tool])
        called.add(tool)
        return told.structured_content

    async def refused(self, tool, **asked):
        told = await self.client.call_tool(tool, asked)
        assert told.is_error, (tool, told.structured_content)
        return told.content[0].text


def paths(changes):
    return {change["path"]: change["change"] for change in changes["changes"]}


async def what_is_offered(client):
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(tools) == set(TOOLS), set(tools) ^ set(TOOLS)
    for name, (read_only, destructive) in TOOLS.items():
        tool = tools[name]
        for schema in (tool.input_schema, tool.output_schema):
            assert schema["type"] == "object", (name, schema)
            jsonschema.Draft202012Validator.check_schema(schema)
        assert tool.description and tool.annotations.title, name
        assert tool.annotations.read_only_hint is read_only, name
        assert tool.annotations.destructive_hint is destructive, name
    return {name: tool.output_schema for name, tool in tools.items()}


async def looks(agent):
    made = await agent.ok("checkpoint", message="a start", tags=["start"])
    assert made["made"] and made["checkpoint"]["tags"] == ["start"], made
    again = await agent.ok("checkpoint", if_changed=True)
    assert not again["made"] and again["checkpoint"]["id"] == made["checkpoint"]["id"], again
    start = made["checkpoint"]["id"]
    write("src/a", "one\nmore\n")
    os.remove("gone")
    status = await agent.ok("status")
    assert status["since"] == start and paths(status) == {"gone": "deleted", "src/a": "modified"}, status
    assert (await agent.ok("status", limit=1))["changes_left_out"] == 1
    diff = await agent.ok("diff", **{"from": "start"}, paths=["src"], patch=True)
    assert paths(diff) == {"src/a": "modified"} and "+more" in diff["patch"] and not diff["patch_cut"], diff
    past = await agent.ok("read_past", checkpoint="start", path="gone")
    assert past["text"] == "it was here\n" and past["bytes_left_out"] == 0, past
    await agent.ok("checkpoint")
    versions = await agent.ok("find_version", path="src/a", containing="more")
    assert [version["contains"] for version in versions["versions"]] == [True, False], versions
    log = await agent.ok("log", limit=1)
    assert log["more"] and len(log["checkpoints"]) == 1, log
    older = await agent.ok("log", before=str(log["checkpoints"][0]["id"]), path="src")
    assert [one["id"] for one in older["checkpoints"]] == [start], older
    return start


async def bounds(agent):
    """What is large is cut, and the answer says so."""
    past = await agent.ok("read_past", checkpoint="latest", path="large")
    assert len(past["text"]) == 65536 and past["size"] == 65536 + past["bytes_left_out"] > 10_000_000, past["size"]
    rest = await agent.ok("read_past", checkpoint="latest", path="large", offset=past["next_offset"], max_bytes=4_000_000_000)
    assert len(rest["text"]) == 262144 and rest["offset"] == 65536, rest["offset"]
    end = await agent.ok("read_past", checkpoint="latest", path="large", offset=2**63)
    assert end["text"] == "" and end["bytes_left_out"] == 0 and "next_offset" not in end, end
    binary = await agent.ok("read_past", checkpoint="latest", path="binary")
    assert binary["base64"] == "AAEC/w==" and "text" not in binary, binary
    lines = (f"this is {'another ' if number < 20_000 else ''}line {number}\n" for number in range(600_000))
    write("large", "".join(lines))
    diff = await agent.ok("diff", patch=True)
    assert diff["patch_cut"] and len(diff["patch"]) <= 65536 and diff["patch"].startswith("diff --git"), diff["patch_cut"]
    for number in range(300):
        write(f"many-{number}", "x")
    assert (await agent.ok("status"))["changes_left_out"] == 101
    assert (await agent.ok("status", limit=4_000_000_000))["changes_left_out"] == 0


async def hostile(agent):
    """What is asked may be anything."""
    for path in ["../../etc/passwd", "/etc/passwd", "src/../../x", "a\0b"]:
        assert "unknown-path" in await agent.refused("read_past", checkpoint="latest", path=path), path
        assert "unknown-path" in await agent.refused("restore", to="latest", paths=[path], only_by_me=False), path
    assert "unknown-checkpoint" in await agent.refused("read_past", checkpoint="\x1b[31m", path="src/a")
    assert "\x1b" not in await agent.refused("read_past", checkpoint="\x1b[31m", path="src/a")
    assert "too many" in await agent.refused("diff", paths=["a"] * 5000)
    assert "whole tree" in await agent.refused("restore", only_by_me=False)
    assert "unknown field" in await agent.refused("restore", to="latest", dryrun=True)
    assert "1 to 100" in await agent.refused("undo", count=1_000_000)
    assert "bad-name" in await agent.refused("branch_create", name="../x")
    await agent.ok("checkpoint")
    with open(b"control\x01\xff", "w"):
        pass
    assert paths(await agent.ok("status")) == {"control\\x01\\xff": "added"}
    os.remove(b"control\x01\xff")


async def takes_back(agent):
    """What the agent and its children did goes, and what somebody else did stays."""
    await agent.ok("checkpoint", tags=["mine"])
    write("src/a", "by the agent\n")
    subprocess.run(["sh", "-c", "echo child >child; sh -c 'echo grandchild >grandchild'; echo child >both"], check=True)
    # This one is nobody's child.
    subprocess.run(["sh", "-c", "setsid -f sh -c 'sleep 0.3; echo other >other; echo other >>both; : >done'"], check=True)
    while not os.path.exists("done"):
        await asyncio.sleep(0.01)
    would = await agent.ok("restore", to="mine", dry_run=True)
    mine = {"child": "deleted", "grandchild": "deleted", "src/a": "modified"}
    assert would["dry_run"] and paths(would) == mine and "guard" not in would, would
    assert [kept["path"] for kept in would["kept"]] == ["both"], would
    some = await agent.ok("restore", paths=["src"], dry_run=True)
    assert paths(some) == {"src/a": "modified"} and some["kept"] == [], some
    assert read("child") == "child\n"
    done = await agent.ok("restore", paths=["child", "src"])
    assert paths(done) == {"child": "deleted", "src/a": "modified"} and done["guard"], done
    assert not os.path.exists("child") and read("grandchild") == "grandchild\n" and read("other") == "other\n"
    undone = await agent.ok("undo", dry_run=True)
    assert len(undone["steps"]) == 1 and undone["dry_run"] and not os.path.exists("child"), undone
    undone = await agent.ok("undo")
    assert undone["steps"][0]["what"].startswith("restore") and read("child") == "child\n", undone
    await agent.ok("restore", to="mine")
    assert not os.path.exists("grandchild") and read("other") == "other\n" and read("both") == "child\nother\n"
    every = await agent.ok("restore", to="mine", only_by_me=False)
    # What an undo has put back was put there by unknown processes.
    assert set(paths(every)) == {"both", "done", "other", "src/a"} and not os.path.exists("other"), every
    assert paths(await agent.ok("restore", to="mine")) == {}
    await agent.ok("checkpoint")
    subprocess.run(["sh", "-c", "setsid -f sh -c 'sleep 0.3; : >theirs'"], check=True)
    while not os.path.exists("theirs"):
        await asyncio.sleep(0.01)
    assert "changed by you" in await agent.refused("restore")
    assert os.path.exists("theirs")


async def branches(agent):
    made = await agent.ok("branch_create", name="twig")
    place = made["branch"]["path"]
    write(os.path.join(place, "src/a"), "in the branch\n")
    listed = await agent.ok("branch_list")
    assert [(one["name"], one["changed"]) for one in listed["branches"]] == [("twig", 1)], listed
    assert (await agent.ok("branch_conflicts"))["conflicts"] == []
    write("src/a", "in the tree\n")
    conflicts = await agent.ok("branch_conflicts", check=True)
    assert [(one["path"], one["this_tree"]) for one in conflicts["conflicts"]] == [("src/a", True)], conflicts
    assert conflicts["conflicts"][0]["clashes"], conflicts
    refused = await agent.ok("branch_merge", name="twig")
    assert refused["refused"] and refused["conflicts"][0]["path"] == "src/a", refused
    assert read("src/a") == "in the tree\n"
    merged = await agent.ok("branch_merge", name="twig", conflicts="theirs")
    assert not merged["refused"] and merged["guard"] and read("src/a") == "in the branch\n", merged
    dropped = await agent.ok("branch_drop", name="twig")
    assert dropped["branch"]["name"] == "twig" and dropped["unmerged"] == [], dropped
    assert (await agent.ok("branch_list"))["branches"] == []


async def main():
    server = StdioServerParameters(command=CKPTFS, args=["mcp"], cwd=os.getcwd())
    async with Client(server, message_handler=heard, mode=MODE, read_timeout_seconds=60) as client:
        schemas = await what_is_offered(client)
        agent = Agent(client, schemas)
        await looks(agent)
        await bounds(agent)
        await hostile(agent)
        await takes_back(agent)
        await branches(agent)
    elsewhere = StdioServerParameters(command=CKPTFS, args=["-C", "/", "mcp"])
    async with Client(elsewhere, message_handler=heard, mode=MODE) as client:
        said = await Agent(client, schemas).refused("status")
        assert "not-mounted" in said and "ckptfs mount DIR" in said, said
    assert called == set(TOOLS), set(TOOLS) - called
    assert not not_protocol, not_protocol


asyncio.run(main())
