"""What the interop suite shares: where things are, the gateway as a process, real clients, and cases."""

import asyncio
import contextlib
import json
import os
import pathlib
import queue
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
PEERS = pathlib.Path(os.environ.get("TOOLWRIGHT_INTEROP_DIR", ROOT / "target/interop")).resolve()
BINARIES = pathlib.Path(os.environ.get("TOOLWRIGHT_BIN_DIR", ROOT / "target/debug")).resolve()

NODE = PEERS / "bin/node"
NODE_MODULES = PEERS / "node/node_modules"
VENV_BIN = PEERS / "venv/bin"
TOOLWRIGHT = BINARIES / "toolwright"
BENCH = BINARIES / "toolwright-bench"
MISBEHAVING = BINARIES / "misbehaving-mcp"
CONFORMANCE_FIXTURE = BINARIES / "conformance-fixture"
SCRIPTED_MODEL = BINARIES / "scripted-model"
EVERYTHING_SERVER = PEERS / "everything-server"

# Seconds. Generous: they are there to end a hung suite, not to measure.
START_TIMEOUT = 60
CALL_TIMEOUT = 60
STOP_TIMEOUT = 20


# ---- cases -------------------------------------------------------------------------------------

def cases(*parameters):
    """Runs the decorated test once for each tuple of parameters."""

    def mark(test):
        test.cases = parameters
        return test

    return mark


async def eventually(probe, what, timeout=30):
    """Waits until `probe()` (plain or async) returns something true, and returns that."""
    deadline = time.monotonic() + timeout
    while True:
        value = probe()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        await asyncio.sleep(0.1)


# ---- processes ---------------------------------------------------------------------------------

@contextlib.contextmanager
def workspace():
    """A folder for one test: configuration, state and files."""
    with tempfile.TemporaryDirectory(prefix="toolwright-interop-") as folder:
        yield pathlib.Path(folder)


def environment(folder, **extra):
    """The surroundings of a Toolwright process: its own state, the right node, no model of the user's."""
    inherited = {k: v for k, v in os.environ.items() if not re.match(r"(OPENAI|ANTHROPIC|OLLAMA|TOOLWRIGHT)_", k)}
    return {
        **inherited,
        "PATH": f"{PEERS / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "TOOLWRIGHT_STATE_DIR": str(folder / "state"),
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        **extra,
    }


def configure(folder, servers, **sections):
    """Writes a configuration with these MCP servers and returns its path."""
    path = folder / "toolwright.yaml"
    path.write_text(json.dumps({"mcpServers": servers, **sections}, indent=1))
    return path


def real_servers(folder):
    """The five reference servers, over a small folder, a small repository and an empty memory."""
    files, repository = folder / "files", folder / "repository"
    files.mkdir()
    (files / "hello.txt").write_text("hello from a real file\n")
    repository.mkdir()
    identity = ["-c", "user.name=Interop", "-c", "user.email=interop@example.org", "-c", "commit.gpgsign=false"]
    for command in (["init", "--quiet"], [*identity, "commit", "--quiet", "--allow-empty", "-m", "first commit"]):
        subprocess.run(["git", *command], cwd=repository, check=True)
    script = lambda package: str(NODE_MODULES / "@modelcontextprotocol" / package / "dist/index.js")
    return {
        "everything": {"command": str(NODE), "args": [script("server-everything"), "stdio"]},
        "filesystem": {"command": str(NODE), "args": [script("server-filesystem"), str(files)]},
        "graph": {
            "command": str(NODE), "args": [script("server-memory")],
            "env": {"MEMORY_FILE_PATH": str(folder / "memory.jsonl")},
        },
        "git": {"command": str(VENV_BIN / "mcp-server-git"), "args": ["--repository", str(repository)]},
        "time": {"command": str(VENV_BIN / "mcp-server-time"), "args": ["--local-timezone", "UTC"]},
    }


class Process:
    """A process that announces on standard error that it is ready. Its output is drained and kept."""

    def __init__(self, command, ready, env=None, cwd=None):
        self.log = []
        self.child = subprocess.Popen(
            [str(part) for part in command], env=env, cwd=cwd, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        lines = queue.Queue()
        for pipe in (self.child.stdout, self.child.stderr):
            threading.Thread(target=self._drain, args=(pipe, lines), daemon=True).start()
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                line = lines.get(timeout=0.2)
            except queue.Empty:
                if self.child.poll() is None and time.monotonic() < deadline:
                    continue
                self.stop()
                raise AssertionError(f"{command[0]} did not get ready:\n{self.tail()}") from None
            if found := re.search(ready, line):
                self.ready = found
                return

    def _drain(self, pipe, lines):
        for line in pipe:
            self.log.append(line)
            del self.log[:-200]
            lines.put(line)

    def tail(self):
        return "".join(self.log[-40:])

    def stop(self):
        """Asks it to end, then makes it end. Returns its exit code."""
        if self.child.poll() is None:
            self.child.terminate()
            try:
                self.child.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self.child.kill()
        return self.child.wait()

    def kill(self):
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Gateway(Process):
    """`toolwright serve` on a free port, with these MCP servers."""

    def __init__(self, folder, servers, arguments=(), **sections):
        config = configure(folder, servers, **sections)
        command = [TOOLWRIGHT, "serve", "--http", "127.0.0.1:0", "--config", config, *arguments]
        if "profile" not in sections.get("policy", {}):
            # Nobody is there to be asked.
            command += ["--policy", "client"]
        super().__init__(command, r"toolwright: ready (http://\S+/mcp) (\d+) tools", environment(folder), folder)
        self.url = self.ready[1]


# ---- clients -----------------------------------------------------------------------------------

def stdio_gateway(folder, servers):
    """The parameters with which a client starts the gateway itself."""
    from mcp import StdioServerParameters

    config = configure(folder, servers)
    return StdioServerParameters(
        command=str(TOOLWRIGHT), args=["serve", "--stdio", "--config", str(config)],
        env=environment(folder), cwd=str(folder),
    )


def python_client(target, mode="auto", **options):
    """The official Python client, for a URL or for stdio parameters."""
    from mcp import Client

    return Client(target, mode=mode, read_timeout_seconds=CALL_TIMEOUT, **options)


def obliging():
    """What makes a client answer everything that servers ask: forms, pages to open, models, roots."""
    from mcp import types

    async def elicit(_context, params):
        if getattr(params, "mode", "form") == "url":
            return types.ElicitResult(action="accept")
        properties = params.requested_schema.get("properties", {})
        return types.ElicitResult(action="accept", content={name: fill(field) for name, field in properties.items()})

    async def sample(_context, _params):
        content = types.TextContent(type="text", text="sampled by the client")
        return types.CreateMessageResult(role="assistant", content=content, model="none", stop_reason="endTurn")

    async def roots(_context):
        return types.ListRootsResult(roots=[types.Root(uri="file:///roots/of/the/client", name="client")])

    return {"elicitation_callback": elicit, "sampling_callback": sample, "list_roots_callback": roots}


def fill(field):
    """A value that this field of a form takes."""
    if "default" in field:
        return field["default"]
    if options := field.get("enum") or [option["const"] for option in field.get("oneOf", [])]:
        return options[0]
    if field.get("type") == "array":
        items = field.get("items", {})
        return [(items.get("enum") or [option["const"] for option in items.get("anyOf", [])])[0]]
    formats = {
        "email": "somebody@example.org", "uri": "https://example.org/", "date": "2026-01-31",
        "date-time": "2026-01-31T12:00:00Z",
    }
    text = formats.get(field.get("format"), "some text")
    return {"boolean": True, "integer": 42, "number": 42}.get(field.get("type"), text)


async def all_tools(client):
    tools, cursor = [], None
    while True:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if not cursor:
            return {tool.name: tool for tool in tools}


async def tools_with(client, *names):
    """The list of tools once these are in it: the gateway answers before its slowest server does."""

    async def probe():
        tools = await all_tools(client)
        return tools if set(names) <= tools.keys() else None

    return await eventually(probe, f"a list with {', '.join(names)}", START_TIMEOUT)


async def outcome(client, tool, arguments, **options):
    """(ok, text): a JSON-RPC error and an error result count alike."""
    from mcp import MCPError

    try:
        result = await client.call_tool(tool, arguments, **options)
    except (MCPError, RuntimeError) as error:
        return False, str(error)
    return not result.is_error, "\n".join(block.text for block in result.content if block.type == "text")


def beside_packages(script):
    """Copies a script of this folder to where Node finds its packages; returns the path. Tests side by side
    copy the same script, so that the copy takes its place whole."""
    path = PEERS / "node" / script
    copy = path.with_name(f"{threading.get_ident()}-{os.getpid()}-{script}")
    shutil.copy(HERE / script, copy)
    os.replace(copy, path)
    return str(path)


def typescript_client(folder, request):
    """Runs ts_client.mjs with one request; returns its answer."""
    done = subprocess.run(
        [str(NODE), beside_packages("ts_client.mjs")], input=json.dumps(request), env=environment(folder), capture_output=True, text=True,
        timeout=2 * CALL_TIMEOUT,
    )
    assert done.returncode == 0, f"the TypeScript client failed:\n{done.stderr[-3000:]}"
    return json.loads(done.stdout)


# ---- the process table -------------------------------------------------------------------------

def processes():
    """{pid: (parent, state, start time, command line)} of what /proc shows."""
    table = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(") ")[2].split()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            table[int(entry.name)] = (int(fields[1]), fields[0], fields[19], command)
    return table


def descendants(pid):
    """{(pid, start time): command line} of everything below a process."""
    table, below = processes(), {pid}
    while more := {child for child, (parent, *_) in table.items() if parent in below and child not in below}:
        below |= more
    return {(child, table[child][2]): table[child][3] for child in below - {pid}}


def still_running(wanted):
    """Those of `descendants` that are neither gone nor dead and waiting to be reaped."""
    table = processes()
    return {
        key: command for key, command in wanted.items()
        if key[0] in table and table[key[0]][2] == key[1] and table[key[0]][1] not in "ZX"
    }
