"""The scripted model server is what our agent tests talk to. The official `openai` and `anthropic` clients
show that it answers like the real APIs, and their request types that `toolwright run` asks like them."""

import contextlib
import http.client
import http.server
import json
import subprocess
import threading

from harness import CALL_TIMEOUT, ROOT, SCRIPTED_MODEL, TOOLWRIGHT, Process, cases, environment, workspace

API_KEY = "test-key"
CITY = {"type": "string"}
SCHEMA = {"type": "object", "properties": {"city": CITY}, "required": ["city"], "additionalProperties": False}
CITIES, RESULT, ANSWER = [{"city": "Zürich"}, {"city": "Oslo"}], "21 °C, föhn", "In Zürich: 21 °C, föhn"
WEATHER = [
    {"text": "Let me look.", "calls": [{"name": "weather", "arguments": city} for city in CITIES]},
    {"text": "In Zürich: {{results}}"},
]


@contextlib.contextmanager
def scripted_model(folder, turns):
    """The root URL of a server that says these turns, over and over."""
    script = folder / "script.json"
    script.write_text(json.dumps({"turns": turns, "loop": True}))
    command = [SCRIPTED_MODEL, "--port", "0", "--script", script]
    with Process(command, r"(http://127\.0\.0\.1:\d+)", environment(folder)) as server:
        yield server.ready[1]


# ---- the server answers like the real ones -------------------------------------------------------

@cases(("whole",), ("streamed",))
def test_openai_client_understands(way):
    import openai

    with workspace() as folder, scripted_model(folder, WEATHER) as root:
        client = openai.OpenAI(base_url=f"{root}/v1", api_key=API_KEY, max_retries=0)
        function = {"name": "weather", "description": "Weather", "parameters": SCHEMA, "strict": True}
        tools = [{"type": "function", "function": function}]
        messages = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "Weather?"}]

        def ask():
            request = {"model": "scripted", "messages": messages, "tools": tools}
            if way == "whole":
                return client.chat.completions.create(**request)
            with client.chat.completions.stream(**request, stream_options={"include_usage": True}) as stream:
                for _ in stream:
                    pass
                return stream.get_final_completion()

        first = ask()
        message = first.choices[0].message
        assert first.choices[0].finish_reason == "tool_calls" and message.content == "Let me look.", first
        assert [json.loads(call.function.arguments) for call in message.tool_calls] == CITIES, first
        assert len({call.id for call in message.tool_calls}) == 2, first
        assert first.usage.total_tokens == first.usage.prompt_tokens + first.usage.completion_tokens > 0, first.usage
        said = message.model_dump(include={"role", "content", "tool_calls"}) if way == "streamed" else message
        messages.append(said)
        messages += [{"role": "tool", "tool_call_id": call.id, "content": RESULT} for call in message.tool_calls]
        last = ask()
        assert last.choices[0].finish_reason == "stop", last
        assert last.choices[0].message.content.startswith(ANSWER), last


@cases(("whole",), ("streamed",))
def test_anthropic_client_understands(way):
    import anthropic

    with workspace() as folder, scripted_model(folder, WEATHER) as root:
        client = anthropic.Anthropic(base_url=root, api_key=API_KEY, max_retries=0)
        tools = [{"name": "weather", "description": "Weather", "input_schema": SCHEMA}]
        messages = [{"role": "user", "content": "Weather?"}]

        def ask():
            request = {"model": "scripted", "max_tokens": 256, "messages": messages, "tools": tools}
            if way == "whole":
                return client.messages.create(**request)
            with client.messages.stream(**request) as stream:
                return stream.get_final_message()

        first = ask()
        text, *uses = first.content
        assert first.stop_reason == "tool_use" and text.text == "Let me look.", first
        assert [use.input for use in uses] == CITIES, first
        assert first.usage.input_tokens > 0 and first.usage.output_tokens > 0, first.usage
        messages.append({"role": "assistant", "content": first.content})
        results = [{"type": "tool_result", "tool_use_id": use.id, "content": RESULT} for use in uses]
        messages.append({"role": "user", "content": results})
        last = ask()
        assert last.stop_reason == "end_turn" and last.content[0].text.startswith(ANSWER), last


GOLDEN = ROOT / "crates/models/tests/golden"


def deferred(api):
    """The requests of a conversation that loads deferred tools, as our encoder writes them."""
    files = sorted(GOLDEN.glob(f"{api}.deferred.*.json"))
    assert len(files) == 3, files
    return [json.loads(file.read_text()) for file in files]


@cases(("whole",), ("streamed",))
def test_openai_client_knows_deferred_tools(way):
    import openai
    from openai.types.responses import response_create_params as params
    from pydantic import TypeAdapter

    turns = [{"calls": [{"name": "find", "arguments": {"query": "x"}}]},
             {"calls": [{"name": "hub__issue", "arguments": {"title": "x"}}]}, {"text": "Done."}]
    with workspace() as folder, scripted_model(folder, turns) as root:
        client = openai.OpenAI(base_url=f"{root}/v1", api_key=API_KEY, max_retries=0)
        adapter = TypeAdapter(params.ResponseCreateParamsStreaming)
        expected = ("tool_search_call", "find"), ("function_call", "hub__issue"), ("message", None)
        for body, (kind, name) in zip(deferred("openai_responses"), expected):
            assert plain(adapter.validate_python(body)) == body, f"unknown keys in {json.dumps(body)[:2000]}"
            answer = client.responses.create(**body | {"stream": way == "streamed"})
            if way == "streamed":
                answer = [event for event in answer if event.type == "response.completed"][0].response
            item, = answer.output
            assert item.type == kind, item
            if kind == "tool_search_call":
                assert item.execution == "client" and item.arguments == {"query": "x"} and item.call_id, item
            if kind == "function_call":
                assert (item.name, item.namespace) == (name, "hub"), item


def test_anthropic_client_knows_deferred_tools():
    import anthropic
    from anthropic.types.message_create_params import MessageCreateParamsStreaming as Params
    from pydantic import TypeAdapter

    with workspace() as folder, scripted_model(folder, [{"text": "Done."}]) as root:
        client = anthropic.Anthropic(base_url=root, api_key=API_KEY, max_retries=0)
        adapter = TypeAdapter(Params)
        for body in deferred("anthropic"):
            assert plain(adapter.validate_python(body)) == body, f"unknown keys in {json.dumps(body)[:2000]}"
            for _ in client.messages.create(**body):
                pass


def test_errors_are_the_clients_own():
    import anthropic
    import openai

    turns = [{"error": {"status": status, "message": "not now"}} for status in (429, 400, 500)]
    hello = {"model": "scripted", "messages": [{"role": "user", "content": "Hello"}]}
    with workspace() as folder, scripted_model(folder, turns) as root:
        for sdk, ask in (
            (openai, openai.OpenAI(base_url=f"{root}/v1", api_key=API_KEY, max_retries=0).chat.completions.create),
            (anthropic, anthropic.Anthropic(base_url=root, api_key=API_KEY, max_retries=0).messages.create),
        ):
            limit = {"max_tokens": 16} if sdk is anthropic else {}
            for expected in (sdk.RateLimitError, sdk.BadRequestError, sdk.InternalServerError):
                try:
                    raise AssertionError(f"{ask(**hello, **limit)} in place of {expected}")
                except sdk.APIStatusError as error:
                    assert isinstance(error, expected) and "not now" in str(error), error


# ---- and `toolwright run` asks like them -------------------------------------------------------------

class Relay(http.server.ThreadingHTTPServer):
    """Hands requests on to a server and keeps them."""

    daemon_threads = True

    def __init__(self, root):
        super().__init__(("127.0.0.1", 0), RelayHandler)
        self.upstream, self.seen = root.removeprefix("http://"), []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
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
            self.server.seen.append((self.path, headers, json.loads(body)))
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


def plain(value):
    """Validated values with their lazy sequences unrolled."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        return value
    return [plain(item) for item in value]


def sdk_of(api, root):
    """(request type, how to send a request, path, headers with which the client is known)."""
    if api == "openai":
        import openai
        from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming as Params

        send = openai.OpenAI(base_url=f"{root}/v1", api_key=API_KEY, max_retries=0).chat.completions.create
        return Params, send, "/v1/chat/completions", ()
    import anthropic
    from anthropic.types.message_create_params import MessageCreateParamsStreaming as Params

    send = anthropic.Anthropic(base_url=root, api_key=API_KEY, max_retries=0).messages.create
    return Params, send, "/v1/messages", ("anthropic-version",)


@cases(("openai",), ("anthropic",))
def test_run_asks_as_the_client_does(api):
    from pydantic import TypeAdapter

    report = {"path": "report.txt", "content": "alpha was read\n"}
    turns = [
        {"text": "Two.", "calls": [{"name": "fs__read", "arguments": {"path": name}} for name in ("a.txt", "no.txt")]},
        {"calls": [{"name": "fs__write", "arguments": report}]},
        {"text": "The report is written."},
    ]
    with workspace() as folder, scripted_model(folder, turns) as root, Relay(root) as relay:
        (folder / "a.txt").write_text("alpha\n")
        (folder / "toolwright.yaml").write_text("{}\n")
        base = {"OPENAI_BASE_URL": f"{relay.url}/v1", "OPENAI_API_KEY": API_KEY}
        if api == "anthropic":
            base = {"ANTHROPIC_BASE_URL": relay.url, "ANTHROPIC_API_KEY": API_KEY}
        options = ["--model", f"{api}/scripted", "--policy", "workspace", "--json"]
        done = subprocess.run(
            [str(TOOLWRIGHT), "run", "Read a.txt and write a report", *options], cwd=folder,
            env=environment(folder, **base), capture_output=True, text=True, timeout=CALL_TIMEOUT,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, f"exit code {done.returncode}: {done.stdout[-1000:]}\n{done.stderr[-2000:]}"
        outcome = json.loads(done.stdout)
        assert outcome["answer"] == "The report is written." and len(outcome["calls"]) == 3, outcome
        assert (folder / "report.txt").read_text() == report["content"]

        ours = list(relay.seen)
        assert len(ours) == 3, f"{len(ours)} requests for three turns"
        params, send, path, known_by = sdk_of(api, relay.url)
        adapter = TypeAdapter(params)
        for was_path, headers, body in ours:
            assert was_path == path, was_path
            keys = headers.get("authorization", "").removeprefix("Bearer "), headers.get("x-api-key")
            assert API_KEY in keys, headers
            assert headers["content-type"] == "application/json" and set(known_by) <= headers.keys(), headers
            # The client's own types take the request and know every key in it.
            assert plain(adapter.validate_python(body)) == body, f"unknown keys in {json.dumps(body)[:2000]}"
            # The client sends the very same when it is asked for the same.
            for _ in send(**body):
                pass
            assert relay.seen[-1][0] == path and relay.seen[-1][2] == body, relay.seen[-1]
