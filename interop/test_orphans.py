"""`kill -9` of the gateway leaves no process behind, whatever its children did to get away."""

import asyncio
import os
import signal

from harness import MISBEHAVING, PEERS, Gateway, cases, descendants, eventually, outcome, processes, python_client
from harness import still_running, tools_with, workspace

GRACE = 2  # seconds that the watcher has


def running(command):
    return [pid for pid, (_, state, _, line) in processes().items() if line == command and state not in "ZX"]


@cases(("npx",), ("setsid from a server",), ("shell__bash",))
async def test_nothing_survives(way):
    # A length that is nobody else's tells our sleepers from others.
    sleeper = f"sleep 600.{os.getpid()}"
    local = ["--no-install", "--prefix", str(PEERS / "node")]
    npx = {"command": "npx", "args": [*local, "mcp-server-everything", "stdio"]}
    with workspace() as folder, Gateway(folder, {"npx": npx, "bad": {"command": str(MISBEHAVING)}}) as gateway:
        family = None
        try:
            async with python_client(gateway.url) as client:
                family = await start_family(client, way, sleeper, gateway.child.pid)
                gateway.kill()
        except Exception:
            # The client is cut off in the middle of its work, and says so.
            if family is None:
                raise
        await asyncio.sleep(GRACE)
        left, strays = still_running(family), running(sleeper)
        for pid in {pid for pid, _ in left} | set(strays):
            os.kill(pid, signal.SIGKILL)
        assert not left and not strays, f"left behind: {left or strays}"


async def start_family(client, way, sleeper, gateway):
    """Has the gateway start processes; returns all that are below it."""
    await tools_with(client, "npx__echo", "bad__spawn_child", "shell__bash")
    assert (await outcome(client, "npx__echo", {"message": "started"}))[0]
    if way == "setsid from a server":
        assert (await outcome(client, "bad__spawn_child", {}))[0]
    elif way == "shell__bash":
        asyncio.create_task(outcome(client, "shell__bash", {"command": f"setsid {sleeper} & {sleeper}"}))
        await eventually(lambda: len(running(sleeper)) == 2, "both sleepers run")
    family = descendants(gateway)
    lines = "\n".join(family.values())
    assert "mcp-server-everything" in lines and "misbehaving-mcp" in lines, lines
    assert "sleep 600" in lines or way == "npx", lines
    return family
