"""The official SDKs of OpenAI and Anthropic, their agents, and coding agents against the facades of `toolwright serve`:
an agent with tools of ours answers them, their own tools stay theirs, and errors are their own."""

import base64
import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.parse

from coding_agents import CLAUDE_CODE, CODEX, said, setting
from harness import (
    BINARIES, CALL_TIMEOUT, HERE, NODE, PEERS, ROOT, TOOLWRIGHT, Gateway, Process, beside_packages, cases, environment, workspace,
)
from model_peers import API_KEY, APIS, MODELS, base_url, scripted_model

MODEL, TOKEN = "scripted/m", "facade-token"
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@contextlib.contextmanager
def in_order(folder, root, enter=()):
    """A root URL that stands for this one. At the end every stream that came from it is held against the order of its API."""
    streams = folder / "streams"
    streams.mkdir()
    command = [*enter, sys.executable, HERE / "stream_relay.py", root, streams]
    with Process(command, r"relay: (http://\S+)") as relay:
        yield relay.ready[1]
        # A client has read the last event before the stream ends.
        deadline = time.monotonic() + CALL_TIMEOUT
        while list(streams.glob("*.part")) and time.monotonic() < deadline:
            time.sleep(0.02)
    assert not list(streams.glob("*.part")), "a stream did not end"
    for file in streams.glob("*.events"):
        path, stream = file.read_text().split("\n", 1)
        checked = subprocess.run([BINARIES / "stream-order", path], input=stream, capture_output=True, text=True)
        assert checked.returncode == 0, f"{checked.stderr}{stream}"


@contextlib.contextmanager
def served(turns, api="openai_chat"):
    """The root URL of a gateway before a model that says these turns."""
    with workspace() as folder, scripted_model(folder, turns) as root:
        endpoint = {"api": api, "base_url": base_url(api, root), "api_key": API_KEY}
        models = {"default": MODEL, "endpoints": {"scripted": endpoint}}
        with Gateway(folder, {}, models=models, server={"token": TOKEN}) as gateway:
            parts = urllib.parse.urlsplit(gateway.url)
            with in_order(folder, f"{parts.scheme}://{parts.netloc}") as root:
                yield root


def openai(root):
    from openai import OpenAI

    return OpenAI(base_url=f"{root}/v1", api_key=TOKEN, max_retries=0, timeout=30)


def anthropic(root):
    from anthropic import Anthropic

    return Anthropic(base_url=root, api_key=TOKEN, max_retries=0, timeout=30)


def text_of(message):
    return "".join(block.text for block in message.content if block.type == "text")


def test_whole_answers_are_read():
    with served([{"text": "It is warm."}]) as root:
        user = [{"role": "user", "content": "Warm?"}]
        chat = openai(root).chat.completions.create(model=MODEL, messages=user)
        assert chat.choices[0].message.content == "It is warm.", chat
        assert chat.choices[0].finish_reason == "stop" and chat.usage.total_tokens > 0, chat
        response = openai(root).responses.create(model=MODEL, input="Warm?")
        assert response.output_text == "It is warm." and response.status == "completed", response
        assert openai(root).responses.retrieve(response.id).output_text == "It is warm."
        message = anthropic(root).messages.create(model=MODEL, max_tokens=99, messages=user)
        assert text_of(message) == "It is warm." and message.stop_reason == "end_turn", message
        counted = anthropic(root).messages.count_tokens(model=MODEL, messages=user)
        assert counted.input_tokens > 0, counted
        assert MODEL in [model.id for model in openai(root).models.list()]
        assert MODEL in [model.id for model in anthropic(root).models.list()]


def test_streams_are_read():
    with served([{"text": "It is warm today."}]) as root:
        user = [{"role": "user", "content": "Warm?"}]
        options = {"include_usage": True}
        chunks = list(openai(root).chat.completions.create(model=MODEL, messages=user, stream=True, stream_options=options))
        said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert said == "It is warm today." and chunks[-1].usage.total_tokens > 0, chunks
        with openai(root).responses.stream(model=MODEL, input="Warm?") as stream:
            events = list(stream)
            assert stream.get_final_response().output_text == "It is warm today."
        assert events[0].type == "response.created" and events[-1].type == "response.completed", events
        with anthropic(root).messages.stream(model=MODEL, max_tokens=99, messages=user) as stream:
            assert "".join(stream.text_stream) == "It is warm today."
            assert stream.get_final_message().usage.output_tokens > 0


PARALLEL = [{"calls": [{"name": "weather", "arguments": {"city": "Oslo"}}] * 2}, {"text": "It rains."}]
CALLS = [{"calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]}, {"text": "It rains."}]


def test_chat_clients_run_their_own_tools():
    with served(CALLS) as root:
        tools = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]
        messages = [{"role": "user", "content": "Weather?"}]
        first = openai(root).chat.completions.create(model=MODEL, messages=messages, tools=tools)
        call = first.choices[0].message.tool_calls[0]
        assert first.choices[0].finish_reason == "tool_calls" and json.loads(call.function.arguments) == {"city": "Oslo"}
        messages += [first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
        last = openai(root).chat.completions.create(model=MODEL, messages=messages, tools=tools)
        assert last.choices[0].message.content == "It rains.", last


def test_responses_clients_run_their_own_tools():
    with served(CALLS) as root:
        tools = [{"type": "function", "name": "weather", "parameters": WEATHER, "strict": False}]
        first = openai(root).responses.create(model=MODEL, input="Weather?", tools=tools)
        call = next(item for item in first.output if item.type == "function_call")
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
        last = openai(root).responses.create(
            model=MODEL, previous_response_id=first.id, input=[result], tools=tools)
        assert last.output_text == "It rains.", last


def test_messages_clients_run_their_own_tools():
    with served(CALLS) as root:
        tools = [{"name": "weather", "input_schema": WEATHER}]
        messages = [{"role": "user", "content": "Weather?"}]
        with anthropic(root).messages.stream(model=MODEL, max_tokens=99, messages=messages, tools=tools) as stream:
            first = stream.get_final_message()
        call = next(block for block in first.content if block.type == "tool_use")
        assert first.stop_reason == "tool_use" and call.input == {"city": "Oslo"}, first
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
        messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        last = anthropic(root).messages.create(model=MODEL, max_tokens=99, messages=messages, tools=tools)
        assert text_of(last) == "It rains.", last


def test_tool_runners_go_on_without_threads():
    from anthropic import beta_tool

    asked = []

    @beta_tool
    def weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        return "rain"

    with served(CALLS) as root:
        messages = [{"role": "user", "content": "Weather?"}]
        runner = anthropic(root).beta.messages.tool_runner(model=MODEL, max_tokens=99, messages=messages, tools=[weather])
        last = runner.until_done()
        assert (text_of(last), asked) == ("It rains.", ["Oslo"]), last


def test_parallel_calls_are_answered_together():
    with served(PARALLEL) as root:
        user = [{"role": "user", "content": "Weather?"}]
        tools = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]
        asked = dict(model=MODEL, tools=tools, parallel_tool_calls=True)
        said = openai(root).chat.completions.create(messages=user, **asked).choices[0].message
        assert [json.loads(call.function.arguments) for call in said.tool_calls] == [{"city": "Oslo"}] * 2, said
        results = [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in said.tool_calls]
        last = openai(root).chat.completions.create(messages=[*user, said, *results], **asked)
        assert last.choices[0].message.content == "It rains.", last

        tools = [{"type": "function", "name": "weather", "parameters": WEATHER, "strict": False}]
        asked = dict(model=MODEL, tools=tools, store=False)
        first = openai(root).responses.create(input=user, **asked)
        calls = [item for item in first.output if item.type == "function_call"]
        assert [json.loads(call.arguments) for call in calls] == [{"city": "Oslo"}] * 2, first
        results = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"} for call in calls]
        # Without a stored response, what came back is sent back whole.
        last = openai(root).responses.create(input=[*user, *first.output, *results], **asked)
        assert last.output_text == "It rains.", last

        asked = dict(model=MODEL, max_tokens=99, tools=[{"name": "weather", "input_schema": WEATHER}])
        first = anthropic(root).messages.create(messages=user, **asked)
        calls = [block for block in first.content if block.type == "tool_use"]
        assert [call.input for call in calls] == [{"city": "Oslo"}] * 2, first
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "rain"} for call in calls]
        messages = [*user, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
        last = anthropic(root).messages.create(messages=messages, **asked)
        assert text_of(last) == "It rains.", last


@cases(("openai",), ("anthropic",))
def test_errors_are_the_sdks_own(sdk):
    import anthropic as anthropic_sdk
    import openai as openai_sdk

    with served([{"text": "x"}]) as root:
        user = [{"role": "user", "content": "x"}]
        library = openai_sdk if sdk == "openai" else anthropic_sdk

        def ask(model=MODEL, key=TOKEN, **fields):
            if sdk == "openai":
                return openai(root).with_options(api_key=key).chat.completions.create(
                    model=model, messages=user, extra_body=fields)
            return anthropic(root).with_options(api_key=key).messages.create(
                model=model, max_tokens=9, messages=user, extra_body=fields)

        for kind, wrong in (
            (library.NotFoundError, {"model": "nobody"}),
            (library.BadRequestError, {"unheard_of": 1}),
            (library.BadRequestError, {"metadata" if sdk == "anthropic" else "stream_options": {"unheard_of": 1}}),
            (library.AuthenticationError, {"key": "wrong"}),
        ):
            try:
                ask(**wrong)
            except kind as error:
                assert "unheard_of" not in str(wrong) or "unheard_of" in str(error), error
            else:
                raise AssertionError(f"no {kind.__name__}")


SCHEMA = {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False,
}


def test_answers_have_the_shape_that_is_asked_for():
    with served([{"text": '{"city": "Oslo"}'}]) as root:
        user = [{"role": "user", "content": "Where?"}]
        shape = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
        chat = openai(root).chat.completions.create(model=MODEL, messages=user, response_format=shape)
        assert json.loads(chat.choices[0].message.content) == {"city": "Oslo"}, chat
        text = {"format": {"type": "json_schema", "name": "place", "schema": SCHEMA, "strict": True}}
        response = openai(root).responses.create(model=MODEL, input="Where?", text=text)
        assert json.loads(response.output_text) == {"city": "Oslo"}, response
        output = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
        message = anthropic(root).messages.create(model=MODEL, max_tokens=99, messages=user, extra_body=output)
        assert json.loads(text_of(message)) == {"city": "Oslo"}, message


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
# What the scripted model repeats of a text, and of a document that its API reads itself.
SAID = ("the note says seven", "paper.pdf")


def test_files_and_images_are_taken():
    with served([{"text": "USER {{user}} END"}]) as root:
        paper = base64.b64encode(b"%PDF-1.4").decode()
        paper_url = f"data:application/pdf;base64,{paper}"
        note = base64.b64encode(b"the note says seven").decode()
        png, text = f"data:image/png;base64,{PIXEL}", f"data:text/plain;base64,{note}"
        chat = openai(root).chat.completions.create(model=MODEL, messages=[{"role": "user", "content": [
            {"type": "text", "text": "Read."}, {"type": "image_url", "image_url": {"url": png}},
            {"type": "file", "file": {"filename": "note.txt", "file_data": text}},
            {"type": "file", "file": {"filename": "paper.pdf", "file_data": paper_url}},
        ]}])
        assert all(said in chat.choices[0].message.content for said in SAID), chat
        response = openai(root).responses.create(model=MODEL, input=[{"role": "user", "content": [
            {"type": "input_text", "text": "Read."}, {"type": "input_image", "image_url": png, "detail": "auto"},
            {"type": "input_file", "filename": "note.txt", "file_data": text},
            {"type": "input_file", "filename": "paper.pdf", "file_data": paper_url},
        ]}])
        assert all(said in response.output_text for said in SAID), response
        message = anthropic(root).messages.create(model=MODEL, max_tokens=99, messages=[{"role": "user", "content": [
            {"type": "text", "text": "Read."},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
            {"type": "document", "title": "note.txt", "source": {
                "type": "text", "media_type": "text/plain", "data": "the note says seven"}},
            {"type": "document", "title": "paper.pdf", "source": {
                "type": "base64", "media_type": "application/pdf", "data": paper}},
        ]}])
        assert all(said in text_of(message) for said in SAID), message


def test_several_turns_are_one_conversation():
    with served([{"text": "heard {{user}}"}]) as root:
        first = openai(root).responses.create(model=MODEL, input="one")
        second = openai(root).responses.create(model=MODEL, input="two", previous_response_id=first.id)
        assert (first.output_text, second.output_text) == ("heard one", "heard two")
        conversation = openai(root).conversations.create() if hasattr(openai(root), "conversations") else None
        if conversation:
            for word in ("three", "four"):
                openai(root).responses.create(model=MODEL, input=word, conversation=conversation.id)
            items = list(openai(root).conversations.items.list(conversation.id, order="asc"))
            said = [part.text for item in items for part in item.content]
            assert said == ["three", "heard three", "four", "heard four"], items


@cases(*((api,) for api in APIS))
def test_models_of_every_api_answer_every_client(api):
    turns = [{"calls": [{"name": "weather", "arguments": {"city": "Oslo"}}] * 2, "thinking": "Let me see."}, {"text": "It rains."}]
    raw = f"raw/scripted/{MODELS[api]}"
    with served(turns, api) as root:
        user = [{"role": "user", "content": "Weather?"}]
        tools = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]
        with openai(root).chat.completions.stream(model=raw, messages=user, tools=tools) as stream:
            first = stream.get_final_completion().choices[0].message
        assert [json.loads(call.function.arguments) for call in first.tool_calls] == [{"city": "Oslo"}] * 2, first
        results = [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in first.tool_calls]
        called = {"role": "assistant", "tool_calls": [call.model_dump(exclude={"function": {"parsed_arguments"}}) for call in first.tool_calls]}
        last = openai(root).chat.completions.create(model=raw, messages=[*user, called, *results], tools=tools)
        assert last.choices[0].message.content == "It rains.", last

        tools = [{"type": "function", "name": "weather", "parameters": WEATHER, "strict": False}]
        with openai(root).responses.stream(model=raw, input="Weather?", tools=tools) as stream:
            for _ in stream:
                pass
            first = stream.get_final_response()
        calls = [item for item in first.output if item.type == "function_call"]
        assert [json.loads(call.arguments) for call in calls] == [{"city": "Oslo"}] * 2, first
        results = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"} for call in calls]
        last = openai(root).responses.create(model=raw, previous_response_id=first.id, input=results, tools=tools)
        assert last.output_text == "It rains.", last

        tools = [{"name": "weather", "input_schema": WEATHER}]
        thinking = {"type": "enabled", "budget_tokens": 1024}
        asked = dict(model=raw, max_tokens=2048, tools=tools, thinking=thinking)
        with anthropic(root).messages.stream(messages=user, **asked) as stream:
            first = stream.get_final_message()
        calls = [block for block in first.content if block.type == "tool_use"]
        assert [call.input for call in calls] == [{"city": "Oslo"}] * 2, first
        signed = [block.signature for block in first.content if block.type == "thinking"]
        assert all(signed) == (api == "anthropic"), first
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "rain"} for call in calls]
        messages = [*user, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
        last = anthropic(root).messages.create(messages=messages, **asked)
        assert text_of(last) == "It rains.", last


HEADERS = {"betas", "user_profile_id", "workspace_id"}


def test_every_sdk_field_is_in_the_tables():
    from anthropic.types import beta, message_create_params as messages
    from openai.types.chat import completion_create_params as chat
    from openai.types.responses import response_create_params as responses
    import typing_extensions

    docs = (ROOT / "docs/facades.md").read_text()
    for title, *params in (
        ("Chat Completions", chat.CompletionCreateParamsStreaming),
        ("Responses", responses.ResponseCreateParamsStreaming),
        ("Messages", messages.MessageCreateParamsStreaming, beta.message_create_params.MessageCreateParamsStreaming),
    ):
        fields, objects = docs.split(f"### {title}\n")[1].split("\n### ")[0].split("| object |")
        listed = links(fields)
        shapes = {}
        for row in re.findall(r"^\| (\w+)( `.*?)? \| (.*)$", objects, re.MULTILINE):
            shapes.setdefault(row[0], []).append((set(re.findall(r"`(\w+)`", row[1])), links(row[2])))
        for one in params:
            missing = set(one.__annotations__) - HEADERS - listed.keys()
            assert not missing, f"{title}: {sorted(missing)}"
            hints = typing_extensions.get_type_hints(one, include_extras=True)
            missing = {name for field, hint in hints.items() for name in unlisted(hint, listed.get(field), shapes)}
            assert not missing, f"{title}: {sorted(missing)}"


def links(rows):
    """The fields that rows of a table name, each with the name of the shape of its objects, if they have one."""
    return dict(re.findall(r"`(\w+)`(?: → (\w+))?", rows))


def unlisted(hint, shape, shapes, above=()):
    """The fields of the objects of an SDK's type that no row of their shape has, and those within them."""
    import typing_extensions

    if not typing_extensions.is_typeddict(hint):
        for inner in typing_extensions.get_args(hint):
            if not isinstance(inner, (str, int)):
                yield from unlisted(inner, shape, shapes, above)
    elif shape and (hint, shape) not in above:
        fields = typing_extensions.get_type_hints(hint, include_extras=True)
        words = [re.findall(r"'(\w+)'", str(fields.get(key))) for key in ("type", "role")]
        kinds = set(words[0] if words[0] and words[0] != ["message"] else words[1])
        for of, known in shapes[shape]:
            if not of or of & kinds:
                yield from (f"{shape} {sorted(kinds)}: {field}" for field in fields.keys() - known.keys())
                for field, inner in fields.items():
                    yield from unlisted(inner, known.get(field), shapes, (*above, (hint, shape)))


def test_processes_share_conversations():
    turns = [{"text": "heard {{user}}", "delay_ms": 1500}]
    with workspace() as folder, scripted_model(folder, turns) as model, contextlib.ExitStack() as stack:
        endpoint = {"api": "openai_chat", "base_url": base_url("openai_chat", model), "api_key": API_KEY}
        models = {"default": MODEL, "endpoints": {"scripted": endpoint}}
        roots = []
        for _ in range(2):
            gateway = stack.enter_context(Gateway(folder, {}, models=models, server={"token": TOKEN}))
            roots.append(gateway.url.removesuffix("/mcp"))
        one, other = map(openai, roots)
        conversation = one.conversations.create().id
        begun = one.responses.create(model=MODEL, input="one", conversation=conversation, background=True)
        import openai as sdk

        try:
            other.responses.create(model=MODEL, input="two", conversation=conversation)
        except sdk.ConflictError:
            pass
        else:
            raise AssertionError("two processes answered in one conversation at once")
        # Whoever asks, it is worked on by the process that began it.
        deadline = time.monotonic() + CALL_TIMEOUT
        while (now := other.responses.retrieve(begun.id)).status == "in_progress" and time.monotonic() < deadline:
            time.sleep(0.1)
        assert (now.status, now.output_text) == ("completed", "heard one"), now
        again = other.responses.create(model=MODEL, input="two", conversation=conversation)
        assert again.output_text == "heard two", again


def passes(command, env):
    """Runs a program that ends with `passed`."""
    done = subprocess.run(
        [str(part) for part in command], env=os.environ | env, capture_output=True, text=True, timeout=4 * CALL_TIMEOUT)
    assert done.returncode == 0 and done.stdout.endswith("passed\n"), f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


OLD = (
    "whole_answers_are_read", "streams_are_read", "chat_clients_run_their_own_tools",
    "responses_clients_run_their_own_tools", "messages_clients_run_their_own_tools",
    "answers_have_the_shape_that_is_asked_for", "files_and_images_are_taken", "several_turns_are_one_conversation",
    "parallel_calls_are_answered_together", "errors_are_the_sdks_own openai", "errors_are_the_sdks_own anthropic",
)


@cases(*((name,) for name in OLD))
def test_old_python_sdks_pass_as_well(name):
    check = "import sys, anthropic, openai, test_facades; assert openai.__version__[0] == '1'; "
    check += "assert anthropic.__version__[0] == '0'; getattr(test_facades, 'test_' + sys.argv[1])(*sys.argv[2:]); print('passed')"
    passes([sys.executable, "-c", check, *name.split()], {"PYTHONPATH": f"{PEERS / 'python-old'}{os.pathsep}{HERE}"})


@cases(*((name,) for name in ("openai", "openai-old", "anthropic", "anthropic-old", "agents", "agents-old", "ai", "ai-old")))
def test_javascript_clients_pass(name):
    script = beside_packages("facade_clients.mjs")
    # The old agents end a run at the first text, whether or not calls stand beside it.
    turns = PARALLEL if name == "agents-old" else [PARALLEL[0] | {"text": "Let me see."}, PARALLEL[1]]
    with served(turns) as root, served([{"text": '{"city": "{{user}}"}'}]) as echo:
        passes([NODE, script, name, root, echo, TOKEN, MODEL], {"OPENAI_AGENTS_DISABLE_TRACING": "1"})


AGENTS = """
import asyncio, sys
from agents import Agent, OpenAIProvider, RunConfig, Runner, function_tool, set_tracing_disabled

root, key, model = sys.argv[1:]
set_tracing_disabled(True)
asked = []

@function_tool
def weather(city: str) -> str:
    "The weather of a city."
    asked.append(city)
    return "rain"

async def main():
    for use_responses in (True, False):
        provider = OpenAIProvider(base_url=f"{root}/v1", api_key=key, use_responses=use_responses)
        config = RunConfig(model_provider=provider, tracing_disabled=True)
        agent = Agent(name="helper", instructions="Help.", model=model, tools=[weather])
        whole = await Runner.run(agent, "Weather?", run_config=config)
        assert whole.final_output == "It rains.", whole
        streamed = Runner.run_streamed(agent, "Weather?", run_config=config)
        async for _ in streamed.stream_events():
            pass
        assert streamed.final_output == "It rains.", streamed
    assert asked == ["Oslo"] * 8, asked

asyncio.run(main())
print("passed")
"""


@cases(("python-agents",), ("python-old",))
def test_python_agents_run_their_tools(packages):
    with served(PARALLEL) as root:
        passes([sys.executable, "-c", AGENTS, root, TOKEN, MODEL], {"PYTHONPATH": str(PEERS / packages)})


# ---- coding agents --------------------------------------------------------------------------------------

@contextlib.contextmanager
def behind_facade(folder, turns):
    """Where a coding agent runs whose model is an agent of ours, over a scripted model, without a network."""
    with setting(folder, turns) as here:
        config = folder / "facade.yaml"
        endpoint = {"api": "openai_chat", "base_url": f"{here.model}/v1", "api_key": API_KEY}
        aliases = {"claude-sonnet-4-5": MODEL, "scripted": MODEL}
        config.write_text(json.dumps({
            "models": {"default": MODEL, "aliases": aliases, "endpoints": {"scripted": endpoint}},
            "server": {"token": "opens-nothing"},
        }))
        command = [*here.enter, TOOLWRIGHT, "serve", "--http", "127.0.0.1:0", "--config", config, "--root", here.root, "--policy", "client"]
        env = environment(folder, TOOLWRIGHT_STATE_DIR=str(folder / "facade-state"))
        with Process(command, r"toolwright: ready (http://\S+)/mcp", env, here.root) as gateway:
            with in_order(folder, gateway.ready[1], here.enter) as here.model:
                yield here


@cases((CLAUDE_CODE, "Bash", {"command": "echo from-the-agent"}), (CODEX, "exec_command", {"cmd": "echo from-the-agent"}))
def test_coding_agents_work_through_the_facade(agent, tool, arguments):
    turns = [
        {"calls": [{"name": tool, "arguments": arguments}]},
        {"calls": [{"name": "fs__read", "arguments": {"path": "a.txt"}}]},
        {"calls": [{"name": tool, "arguments": arguments}, {"name": "fs__read", "arguments": {"path": "a.txt"}}]},
        {"text": "RESULT {{results}} END; TOOLS {{tools}} END"},
    ]
    with workspace() as folder, behind_facade(folder, turns) as here:
        (here.root / "a.txt").write_text("the first line\n")
        with agent.start(here) as run:
            text = said(agent, run)
    assert "from-the-agent" in text and "the first line" in text, text
