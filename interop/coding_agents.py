"""Claude Code, codex and opencode as their users run them, behind a scripted model. Each run has a network namespace of
its own with nothing in it but loopback, a home of its own and a key that opens nothing."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading

from harness import NODE_MODULES, PEERS, SCRIPTED_MODEL, START_TIMEOUT, TOOLWRIGHT, Process, environment

# Seconds that one run of an agent may take.
RUN_TIMEOUT = 120

# Brings loopback up (SIOCSIFFLAGS with IFF_UP), says so, and keeps the namespace until it is ended.
HOLD = """
import fcntl, signal, socket, struct
with socket.socket() as s:
    fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", 1))
print("ready", flush=True)
signal.pause()
"""


@contextlib.contextmanager
def namespace():
    """The words before a command with which it runs in a network namespace of its own."""
    root = os.geteuid() == 0
    unshare = ["unshare", "--net"] if root else ["unshare", "--net", "--map-root-user"]
    with Process([*unshare, sys.executable, "-c", HOLD], "ready") as holder:
        enter = ["nsenter", "--target", str(holder.child.pid), "--net"]
        yield enter if root else [*enter, "--user", "--preserve-credentials"]


class Setting:
    """Where an agent runs: its namespace, its scripted model, its files, and the gateway that it starts."""

    def __init__(self, folder, enter, model, options, config):
        self.folder, self.enter, self.model = folder, enter, model
        self.root = folder / "workspace"
        self.home = folder / "home"
        self.config = config
        self.command = [str(TOOLWRIGHT), "serve", "--stdio", "--root", str(self.root), "--config", str(config), *options]
        self.gateway_env = {"TOOLWRIGHT_STATE_DIR": str(folder / "state")}

    def env(self, **extra):
        """Of the agent: nothing of the caller's but the path, and nothing that reaches out."""
        path = f"{PEERS / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return {"HOME": str(self.home), "PATH": path, "NO_PROXY": "127.0.0.1", **extra}

    def toolwright(self, *arguments):
        """The answer of a command of another terminal, as JSON."""
        done = subprocess.run(
            [str(TOOLWRIGHT), *arguments, "--json", "--config", str(self.config)],
            env=environment(self.folder), cwd=self.root, capture_output=True, text=True, timeout=60,
        )
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return json.loads(done.stdout)


@contextlib.contextmanager
def setting(folder, turns, options=(), servers=None, **sections):
    """A model that says these turns, and a gateway of these servers, for one agent to run in."""
    for name in ("workspace", "home", "state"):
        (folder / name).mkdir()
    config = folder / "gateway.yaml"
    config.write_text(json.dumps({"mcpServers": servers or {}, **sections}))
    script = folder / "script.json"
    script.write_text(json.dumps({"turns": turns, "aside": "A title"}))
    with namespace() as enter:
        command = [*enter, SCRIPTED_MODEL, "--script", script]
        with Process(command, r"(http://127\.0\.0\.1:\d+)", environment(folder)) as model:
            yield Setting(folder, enter, model.ready[1], options, config)


class Run:
    """One agent at work. What it prints is JSON, one event a line."""

    def __init__(self, setting, command, env):
        self.events, self.noise = [], []
        self.child = subprocess.Popen(
            [*setting.enter, *map(str, command)], env=env, cwd=setting.root, text=True, errors="replace",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        self.readers = [
            threading.Thread(target=self._read, args=(pipe,), daemon=True)
            for pipe in (self.child.stdout, self.child.stderr)
        ]
        for reader in self.readers:
            reader.start()

    def _read(self, pipe):
        for line in pipe:
            try:
                self.events.append(json.loads(line))
            except ValueError:
                self.noise.append(line)

    def ended(self):
        """Waits for its end, and returns all that it printed as one text."""
        try:
            self.child.wait(RUN_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.child.kill()
            raise AssertionError(f"the agent did not end:\n{self}") from None
        for reader in self.readers:
            reader.join(START_TIMEOUT)
        return str(self)

    def __str__(self):
        return "\n".join([*map(json.dumps, list(self.events)), *self.noise])

    def interrupt(self):
        """Control-C."""
        self.child.send_signal(signal.SIGINT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()


class Agent:
    """How one of them is started, and what it makes of the names of tools."""

    name, prefix = "", ""

    def __str__(self):
        return self.name

    def call(self, tool, **arguments):
        """A turn of the model that calls a tool of the gateway."""
        return {"calls": [{"name": f"{self.prefix}{tool}", "arguments": arguments}]}

    def answer(self, printed):
        """What the model said last, which is where scripts put what they saw."""
        raise NotImplementedError


class ClaudeCode(Agent):
    name, prefix = "claude code", "mcp__tw__"

    def start(self, setting, person=None, timeout=None):
        servers = {"tw": {"command": setting.command[0], "args": setting.command[1:], "env": setting.gateway_env}}
        config, settings = setting.folder / "mcp.json", setting.folder / "settings.json"
        config.write_text(json.dumps({"mcpServers": servers}))
        hooks = {}
        if person:
            said = {"hookSpecificOutput": {"hookEventName": "Elicitation", **person}}
            answer = setting.folder / "answer.json"
            answer.write_text(json.dumps(said))
            hooks = {"Elicitation": [{"hooks": [{"type": "command", "command": f"cat > asked.json; cat {answer}"}]}]}
        settings.write_text(json.dumps({"hooks": hooks}))
        command = [
            NODE_MODULES / ".bin/claude", "--print", "the task", "--mcp-config", config, "--strict-mcp-config",
            "--settings", settings, "--allowedTools", "mcp__tw", "--model", "claude-sonnet-4-5", "--output-format",
            "stream-json", "--verbose",
        ]
        env = setting.env(
            ANTHROPIC_BASE_URL=setting.model, ANTHROPIC_API_KEY="opens-nothing", DISABLE_AUTOUPDATER="1",
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", **({"MCP_TOOL_TIMEOUT": str(timeout * 1000)} if timeout else {}),
        )
        run = Run(setting, command, env)
        run.child.stdin.close()
        return run

    def answer(self, run):
        return next(event["result"] for event in run.events if event.get("type") == "result")


class Codex(Agent):
    name = "codex"

    def configure(self, setting, timeout):
        home = setting.home / ".codex"
        home.mkdir()
        quoted = lambda value: json.dumps(value)
        env = ", ".join(f"{name} = {quoted(value)}" for name, value in setting.gateway_env.items())
        (home / "config.toml").write_text(
            f'model = "scripted"\nmodel_provider = "scripted"\n'
            f'[model_providers.scripted]\nname = "scripted"\nbase_url = "{setting.model}/v1"\n'
            f'env_key = "SCRIPTED_KEY"\nwire_api = "responses"\n'
            # Else codex asks too, and refuses where it cannot.
            f'[mcp_servers.tw]\ndefault_tools_approval_mode = "approve"\n'
            f"command = {quoted(setting.command[0])}\nargs = {quoted(setting.command[1:])}\n"
            f"env = {{ {env} }}\n" + (f"tool_timeout_sec = {timeout}\n" if timeout else "")
        )
        return setting.env(SCRIPTED_KEY="opens-nothing")

    def start(self, setting, timeout=None):
        env = self.configure(setting, timeout)
        command = [NODE_MODULES / ".bin/codex", "exec", "--skip-git-repo-check", "--json", "the task"]
        run = Run(setting, command, env)
        run.child.stdin.close()
        return run

    def answer(self, run):
        said = [event["item"]["text"] for event in run.events if event.get("item", {}).get("type") == "agent_message"]
        return said[-1]


class OpenCode(Agent):
    name, prefix = "opencode", "tw_"

    def start(self, setting, timeout=None):
        config = setting.folder / "opencode.json"
        server = {"type": "local", "command": setting.command, "environment": setting.gateway_env}
        config.write_text(json.dumps({
            "model": "scripted/scripted", "small_model": "scripted/scripted", "autoupdate": False, "share": "disabled",
            "provider": {"scripted": {
                "npm": "@ai-sdk/openai-compatible", "name": "scripted",
                "options": {"baseURL": f"{setting.model}/v1", "apiKey": "opens-nothing"},
                "models": {"scripted": {"name": "scripted", "tool_call": True}},
            }},
            "mcp": {"tw": server | ({"timeout": timeout * 1000} if timeout else {})},
        }))
        env = setting.env(OPENCODE_CONFIG=str(config), OPENCODE_DISABLE_MODELS_FETCH="1", OPENCODE_DISABLE_AUTOUPDATE="1")
        command = [NODE_MODULES / "opencode-linux-x64-baseline/bin/opencode", "run", "--pure", "--auto", "--format", "json", "the task"]
        run = Run(setting, command, env)
        run.child.stdin.close()
        return run

    def answer(self, run):
        return [event["part"]["text"] for event in run.events if event.get("type") == "text"][-1]


CLAUDE_CODE, CODEX, OPENCODE = AGENTS = (ClaudeCode(), Codex(), OpenCode())


def said(agent, run):
    """What the model says last, once the agent has ended."""
    printed = run.ended()
    try:
        return agent.answer(run)
    except (IndexError, StopIteration):
        raise AssertionError(f"no answer: {printed}") from None


class AppServer:
    """codex as its desktop programs run it: a person sits before it, who answers what servers ask as `answer` says."""

    def __init__(self, setting, answer):
        self.said, self.asked, self.seen, self.number = answer, [], [], 0
        self.child = subprocess.Popen(
            [*setting.enter, str(NODE_MODULES / ".bin/codex"), "app-server"], env=CODEX.configure(setting, None),
            cwd=setting.root, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )
        # A read of its output has no time-out of its own.
        self.guard = threading.Timer(RUN_TIMEOUT, self.child.kill)
        self.guard.start()

    def send(self, message):
        self.child.stdin.write(json.dumps(message) + "\n")
        self.child.stdin.flush()

    def request(self, method, **params):
        self.number += 1
        self.send({"id": self.number, "method": method, "params": params})
        return self.until(lambda message: message.get("id") == self.number and "method" not in message)["result"]

    def until(self, wanted):
        """The next message of this kind; what comes before it is kept, and questions are answered."""
        for line in self.child.stdout:
            message = json.loads(line)
            self.seen.append(message)
            if message.get("method") == "mcpServer/elicitation/request":
                self.asked.append(message["params"])
                self.send({"id": message["id"], "result": self.said(message["params"])})
            if wanted(message):
                assert "error" not in message, message
                return message
        raise AssertionError(f"the app server ended: {self.seen[-5:]}")

    def turn(self, text):
        """What the agent says at the end of one turn."""
        self.request("initialize", clientInfo={"name": "interop", "version": "1"}, capabilities={})
        self.send({"method": "initialized"})
        thread = self.request("thread/start")["thread"]["id"]
        self.request("turn/start", threadId=thread, input=[{"type": "text", "text": text}])
        self.until(lambda message: message.get("method") == "turn/completed")
        items = [m["params"]["item"] for m in self.seen if m.get("method") == "item/completed"]
        return [item["text"] for item in items if item["type"] == "agentMessage"][-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.guard.cancel()
        self.child.kill()
        self.child.wait()
