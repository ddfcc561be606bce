"""Both sides of a model API for the tests: the scripted server, a relay that keeps what it is sent, our own client
as a process, and conversations."""

import base64
import contextlib
import http.client
import http.server
import json
import subprocess
import threading

import yaml

from harness import BINARIES, CALL_TIMEOUT, HERE, SCRIPTED_MODEL, Process, environment

API_KEY = "test-key"
MODELS = {
    "openai_chat": "gpt-5", "openai_responses": "gpt-5", "anthropic": "claude-sonnet-4-5", "gemini": "gemini-3-pro",
    "ollama": "qwen3",
}
APIS = tuple(MODELS)


@contextlib.contextmanager
def scripted_model(folder, turns):
    """The root URL of a server that says these turns, over and over."""
    script = folder / "script.json"
    script.write_text(json.dumps({"turns": turns, "loop": True}))
    command = [SCRIPTED_MODEL, "--port", "0", "--script", script]
    with Process(command, r"(http://127\.0\.0\.1:\d+)", environment(folder)) as server:
        yield server.ready[1]


class Relay(http.server.ThreadingHTTPServer):
    """Hands requests on to a server and keeps them: (method, path with query, headers, body)."""

    daemon_threads = True

    def __init__(self, root):
        super().__init__(("127.0.0.1", 0), RelayHandler)
        self.upstream, self.seen = root.removeprefix("http://"), []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class RelayHandler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def hand_on(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.command == "POST":
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.server.seen.append((self.command, self.path, headers, json.loads(body)))
        upstream = http.client.HTTPConnection(self.server.upstream, timeout=CALL_TIMEOUT)
        upstream.request(self.command, self.path, body, dict(self.headers))
        response = upstream.getresponse()
        answer = response.read()
        self.send_response(response.status)
        self.send_header("content-type", response.getheader("content-type", ""))
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_GET = hand_on


def base_url(api, root):
    """The base URL that a client of this API is given, ours as well as OpenAI's own."""
    return f"{root}/v1" if api.startswith("openai") else root


# ---- conversations ---------------------------------------------------------------------------------

class Conversation:
    """One entry of model_conversations.yaml, with everything it names in its place."""

    def __init__(self, name, written, shared):
        self.name = name
        self.apis = written.get("apis", APIS)
        self.models = MODELS | written.get("models", {})
        self.system = written.get("system", "")
        self.tools = [{"name": tool, **shared["tools"][tool]} for tool in written.get("tools", [])]
        self.natives = written.get("natives", [])
        self.tool_choice = written.get("tool_choice", "auto")
        self.parallel = written.get("parallel")
        self.output = shared["outputs"][written["output"]] if "output" in written else None
        self.max_tokens, self.temperature = written.get("max_tokens"), written.get("temperature")
        self.settings, self.keep = written.get("settings", {}), written.get("keep", "once")
        self.turns = []
        for turn in written["turns"]:
            (kind, said), = turn.items()
            if kind == "user":
                said = self._parts(said, shared, written.get("repeat", 1))
            elif kind == "results":
                said = [self._result(result, shared) for result in said]
            self.turns.append((kind, said))

    @staticmethod
    def _parts(said, shared, repeat=1):
        """Texts as they are, images as their bytes."""
        said = [said] if isinstance(said, str) else said
        return [part * repeat if isinstance(part, str) else base64.b64decode(shared["images"][part["image"]])
                for part in said]

    @classmethod
    def _result(cls, result, shared):
        """(parts, whether the call failed)"""
        failed = isinstance(result, dict)
        return cls._parts(result["error"] if failed else result, shared), failed

    @property
    def script(self):
        """What the server says."""
        return [said for kind, said in self.turns if kind == "model"]

    def hold(self, side):
        """Says the whole of it to a model, as this side does."""
        for kind, said in self.turns:
            if kind == "user":
                side.user(said)
            elif kind == "model":
                side.ask()
            else:
                side.results(said)


def conversations():
    written = yaml.safe_load((HERE / "model_conversations.yaml").read_text())
    return {name: Conversation(name, one, written) for name, one in written["conversations"].items()}


# ---- our side ----------------------------------------------------------------------------------------

class OurClient:
    """`model-client`: requests as the crates know them go in, responses come out."""

    def __init__(self, api, root, model):
        command = [BINARIES / "model-client", "--api", api, "--base-url", base_url(api, root), "--key", API_KEY,
                   "--model", model]
        self.child = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.communicate(timeout=CALL_TIMEOUT)
        self.child.kill()

    def answer(self, request):
        """`{"response"}` or `{"error"}`."""
        self.child.stdin.write(json.dumps(request) + "\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        assert line, f"model-client ended: {self.child.communicate()[1][-2000:]}"
        return json.loads(line)


# As `native_tools` of the configuration declares them.
NATIVES = {
    "web_search": {
        "anthropic": {"type": "web_search_20250305", "name": "web_search"},
        "openai_responses": {"type": "web_search"},
        "gemini": {"googleSearch": {}},
    },
    "code_execution": {
        "anthropic": {"type": "code_execution_20250825", "name": "code_execution"},
        "openai_responses": {"type": "code_interpreter", "container": {"type": "auto"}},
        "gemini": {"codeExecution": {}},
    },
    "file_search": {"openai_responses": {"type": "file_search", "vector_store_ids": ["vs_1"]}},
    "image_gen": {"openai_responses": {"type": "image_generation"}},
}


class OurSide:
    """Holds a conversation with our client: what it answers goes back as it came."""

    def __init__(self, client, conversation):
        self.client = client
        choice = conversation.tool_choice
        natives = [{"name": name, "description": "", "parameters": {}, "native": NATIVES[name]}
                   for name in conversation.natives]
        self.request = {
            "system": conversation.system, "messages": [], "tools": natives + conversation.tools, "tool_choice": choice,
            "max_tokens": conversation.max_tokens, "temperature": conversation.temperature,
        }
        if conversation.parallel is not None:
            self.request["parallel_calls"] = conversation.parallel
        if conversation.settings:
            self.request["settings"] = conversation.settings
        if conversation.keep != "once":
            self.request["reuse"] = conversation.keep
        if conversation.output:
            self.request["output"] = conversation.output

    @staticmethod
    def _content(parts):
        image = lambda data: {"type": "image", "data": base64.b64encode(data).decode(), "mimeType": "image/png"}
        return [{"type": "text", "text": part} if isinstance(part, str) else image(part) for part in parts]

    def user(self, parts):
        self.request["messages"].append({"role": "user", "content": self._content(parts)})

    def ask(self):
        answer = self.client.answer(self.request)
        assert "response" in answer, answer
        response = answer["response"]
        self.calls = response["calls"]
        said = {key: response[key] for key in ("text", "calls", "opaque")}
        self.request["messages"].append({"role": "assistant", **said})

    def results(self, results):
        written = [
            {"call_id": call["id"], "name": call["name"], "content": self._content(parts), "is_error": failed}
            for call, (parts, failed) in zip(self.calls, results, strict=True)
        ]
        self.request["messages"].append({"role": "tool", "results": written})
