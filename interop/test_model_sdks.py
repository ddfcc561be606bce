"""The official clients know what is sent to load deferred tools and to declare tools that providers run, and their request
types what `toolwright run` asks. Plain requests are judged in test_model_requests.py, answers in test_model_streams.py."""

import json
import subprocess

from harness import CALL_TIMEOUT, ROOT, TOOLWRIGHT, cases, environment, workspace
from model_peers import API_KEY, MODELS, NATIVES, Relay, scripted_model

# ---- deferred tools ----------------------------------------------------------------------------------

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


# ---- tools that the provider runs --------------------------------------------------------------------

@cases(("anthropic",), ("openai_responses",), ("gemini",))
def test_clients_know_tools_of_the_provider(api):
    body = json.loads((GOLDEN / f"{api}.native.json").read_text())
    if api == "gemini":
        from google.genai import types

        parts = [(types.Tool, tool) for tool in body["tools"]] + [(types.ToolConfig, body["toolConfig"])]
        for kind, part in parts:
            known = kind.model_validate(part).model_dump(mode="json", by_alias=True, exclude_none=True)
            assert known == part, f"unknown keys in {json.dumps(part)[:2000]}"
        return
    from pydantic import TypeAdapter

    if api == "anthropic":
        from anthropic.types.message_create_params import MessageCreateParamsStreaming as Params
    else:
        from openai.types.responses.response_create_params import ResponseCreateParamsStreaming as Params
    adapter = TypeAdapter(Params)
    assert plain(adapter.validate_python(body)) == body, f"unknown keys in {json.dumps(body)[:2000]}"


@cases(("anthropic",), ("openai_responses",), ("gemini",))
def test_configured_tools_of_the_provider_are_declared(api):
    # What `native_tools` makes of an empty entry is what the clients build (see model_sdks.py and the case above).
    expected = [declared[api] for declared in NATIVES.values() if api in declared]
    stored = {"openai_responses": {"vector_store_ids": ["vs_1"]}}
    with workspace() as folder, scripted_model(folder, [{"text": "Done."}]) as root, Relay(root) as relay:
        path = {"anthropic": "", "openai_responses": "/v1", "gemini": "/v1beta"}[api]
        config = {
            "native_tools": {name: {} for name in NATIVES} | {"file_search": stored},
            "models": {
                "mine": {"native_tools": True},
                "endpoints": {"mine": {"api": api, "base_url": relay.url + path, "api_key": API_KEY}},
            },
        }
        (folder / "toolwright.yaml").write_text(json.dumps(config))
        done = subprocess.run(
            [str(TOOLWRIGHT), "--config", "toolwright.yaml", "run", "Draw", "--model", f"mine/{MODELS[api]}", "--policy",
             "trusted", "--json"], cwd=folder, env=environment(folder), capture_output=True, text=True,
            timeout=CALL_TIMEOUT, stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, f"exit code {done.returncode}: {done.stdout[-1000:]}\n{done.stderr[-2000:]}"
        tools = relay.seen[0][3]["tools"]
        ours = [tool for tool in tools if "input_schema" not in tool and "functionDeclarations" not in tool
                and tool.get("type") != "function"]
        assert ours == expected, tools


# ---- and `toolwright run` asks like them -------------------------------------------------------------

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
        for _, was_path, headers, body in ours:
            assert was_path == path, was_path
            keys = headers.get("authorization", "").removeprefix("Bearer "), headers.get("x-api-key")
            assert API_KEY in keys, headers
            assert headers["content-type"] == "application/json" and set(known_by) <= headers.keys(), headers
            # The client's own types take the request and know every key in it.
            assert plain(adapter.validate_python(body)) == body, f"unknown keys in {json.dumps(body)[:2000]}"
            # The client sends the very same when it is asked for the same.
            for _ in send(**body):
                pass
            assert relay.seen[-1][1] == path and relay.seen[-1][3] == body, relay.seen[-1]
