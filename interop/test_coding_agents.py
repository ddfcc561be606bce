"""Real Claude Code, codex and opencode with the gateway as their MCP server: what they list, read, are asked, wait for,
cancel and find. The model is scripted and puts what it was shown into what it says last."""

import asyncio
import json
import threading
import time

from coding_agents import AGENTS, CLAUDE_CODE, CODEX, OPENCODE, AppServer, said, setting
from harness import NODE, NODE_MODULES, cases, descendants, eventually, still_running, workspace

SEEN = {"text": "RESULT {{results}} END; TOOLS {{tools}} END"}
EVERYTHING = {
    "command": str(NODE), "args": [str(NODE_MODULES / "@modelcontextprotocol/server-everything/dist/index.js"), "stdio"],
}
# The handle in a notice, be it its text or its structure that the client shows.
HANDLE = '{{results:[Hh]andle(?:: |": ?")(o[0-9a-z]{8})}}'
ASKS = {"rules": [{"effect": "ask", "tool": "fs:write"}]}
each_agent = cases(*((agent,) for agent in AGENTS))


@each_agent
def test_tools_are_listed_and_called(agent):
    with workspace() as folder, setting(folder, [agent.call("fs__read", path="a.txt"), SEEN]) as here:
        (here.root / "a.txt").write_text("the first line\n")
        with agent.start(here) as run:
            text = said(agent, run)
    assert "the first line" in text, text
    offered = text.partition("TOOLS ")[2]
    for tool in ("fs__read", "fs__edit", "output__read", "output__grep", "job__wait"):
        assert tool in offered, f"{tool}: {offered}"


@each_agent
def test_what_was_cut_is_read_on(agent):
    turns = [
        agent.call("shell__bash", command="seq -f 'line %.0f of the output' 60000"),
        agent.call("output__grep", handle=HANDLE, pattern="line 54321 of"),
        SEEN,
    ]
    with workspace() as folder, setting(folder, turns) as here, agent.start(here) as run:
        text = said(agent, run)
    assert "line 54321 of the output" in text, text


@each_agent
def test_an_unanswered_question_waits_for_a_person(agent):
    turns = [
        agent.call("fs__write", path="new.txt", content="written"),
        agent.call("job__wait"),
        SEEN,
    ]
    with workspace() as folder, setting(folder, turns, policy=ASKS) as here, agent.start(here) as run:

        def approve():
            while run.child.poll() is None:
                for question in here.toolwright("approvals", "ls"):
                    here.toolwright("approvals", "approve", question["id"])
                    return
                time.sleep(0.2)

        person = threading.Thread(target=approve)
        person.start()
        text = said(agent, run)
        person.join()
        assert (here.root / "new.txt").read_text() == "written", text
        assert "toolwright approvals" in str(run), run


def test_a_person_answers_claude_code():
    turns = [CLAUDE_CODE.call("fs__write", path="new.txt", content="written"), SEEN]
    with workspace() as folder, setting(folder, turns, policy=ASKS) as here:
        with CLAUDE_CODE.start(here, person={"action": "accept", "content": {}}) as run:
            text = said(CLAUDE_CODE, run)
        asked = json.loads((here.root / "asked.json").read_text())
        assert "new.txt" in asked["message"], asked
        assert (here.root / "new.txt").read_text() == "written", text


@cases(("accept", True), ("decline", False))
def test_a_person_answers_codex(action, runs):
    turns = [CODEX.call("fs__write", path="new.txt", content="written"), SEEN]
    with workspace() as folder, setting(folder, turns, policy=ASKS) as here:

        def person(_question):
            # Faster than this is a program.
            time.sleep(1)
            return {"action": action, "content": {} if runs else None}

        with AppServer(here, person) as server:
            text = server.turn("the task")
        assert len(server.asked) == 1 and "new.txt" in server.asked[0]["message"], server.asked
        assert (here.root / "new.txt").exists() == runs, text


@cases((CLAUDE_CODE, None), (CODEX, None), (OPENCODE, 17))
def test_a_long_call_outlives_the_timers_of_clients(agent, timeout):
    # The gateway sends progress every 15 s, whatever the tool does. opencode then begins to count anew; Claude Code and
    # codex do not, and wait long enough by themselves.
    turns = [agent.call("shell__bash", command="sleep 20; echo at last", timeout_ms=60000), SEEN]
    with workspace() as folder, setting(folder, turns) as here, agent.start(here, timeout=timeout) as run:
        text = said(agent, run)
    assert "at last" in text, text


@each_agent
async def test_a_cancelled_call_ends_what_it_started(agent):
    turns = [agent.call("shell__bash", command="echo $$ > pid; exec sleep 300"), SEEN]
    with workspace() as folder, setting(folder, turns) as here, agent.start(here) as run:
        pid = here.root / "pid"
        await eventually(lambda: pid.exists() and pid.read_text(), "the call runs")
        started = descendants(run.child.pid)
        assert any("sleep 300" in command for command in started.values()), started
        run.interrupt()
        await asyncio.to_thread(run.ended)
        await eventually(lambda: not still_running(started), "nothing of it is left")


@each_agent
async def test_a_server_that_is_added_is_found(agent):
    turns = [agent.call("shell__bash", command="touch ready; while [ ! -e go ]; do sleep 0.1; done"), SEEN]
    with workspace() as folder, setting(folder, turns) as here, agent.start(here) as run:
        await eventually((here.root / "ready").exists, "the call runs")
        here.config.write_text(json.dumps({"mcpServers": {"everything": EVERYTHING}}))
        await eventually(lambda: "everything" in json.dumps(here.toolwright("tools", "ls")), "the server is read")
        await asyncio.sleep(2)
        (here.root / "go").touch()
        text = await asyncio.to_thread(said, agent, run)
    # codex lists once.
    assert ("everything__echo" in text) == (agent is not CODEX), text


@each_agent
def test_hidden_tools_are_found_and_called(agent):
    turns = [
        agent.call("tools__search", query="read a text file"),
        agent.call("tools__call", name="{{results:(fs__read)}}", arguments={"path": "a.txt"}),
        SEEN,
    ]
    with workspace() as folder, setting(folder, turns, options=["--expose", "search"]) as here:
        (here.root / "a.txt").write_text("the first line\n")
        with agent.start(here) as run:
            text = said(agent, run)
    result, offered = text.split("TOOLS ")
    assert "the first line" in result and "fs__read" not in offered and "tools__search" in offered, text
