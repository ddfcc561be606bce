"""The official SDKs of OpenAI and Anthropic against the facades of `toolwright serve`: an agent with a tool of ours
answers them, their own tools stay theirs, and errors are their own."""

import contextlib
import json
import urllib.parse

from harness import Gateway, cases, workspace
from model_peers import API_KEY, scripted_model

MODEL, TOKEN = "scripted/m", "facade-token"
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@contextlib.contextmanager
def served(turns):
    """The root URL of a gateway before a model that says these turns."""
    with workspace() as folder, scripted_model(folder, turns) as root:
        endpoint = {"api": "openai_chat", "base_url": f"{root}/v1", "api_key": API_KEY}
        models = {"default": MODEL, "endpoints": {"scripted": endpoint}}
        with Gateway(folder, {}, models=models, server={"token": TOKEN}) as gateway:
            parts = urllib.parse.urlsplit(gateway.url)
            yield f"{parts.scheme}://{parts.netloc}"


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
            (library.AuthenticationError, {"key": "wrong"}),
        ):
            try:
                ask(**wrong)
            except kind as error:
                assert "unheard_of" not in wrong or "unheard_of" in str(error), error
            else:
                raise AssertionError(f"no {kind.__name__}")
