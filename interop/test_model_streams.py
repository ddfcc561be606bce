"""The scripted model server is what tests of agents talk to. The official SDKs show that it answers like the real
APIs: they read its answers, whole and streamed, as what the script says, and its errors as their own. Our client
reads the same answers alike."""

import json

import pydantic

from harness import cases, workspace
from model_peers import APIS, API_KEY, MODELS, OurClient, scripted_model
from model_sdks import TIMEOUT, gemini_client, openai_client

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL, PURPOSE, QUESTION = "weather", "The weather of a city.", "What is the weather?"
LONG = {"city": "Zürich \"Nord\"\n🌦", "days": [1, 2.5, None, True], "nested": {"key": "value " * 20}}

ANSWERS = {
    "text": {"text": "It is 21 °C in Zürich, föhn ☀, and will be so tomorrow."},
    "thoughts": {"thinking": "The user asks for the weather. I know it.", "text": "It is warm."},
    "one call": {"calls": [{"name": TOOL, "arguments": LONG}]},
    "call without arguments": {"calls": [{"name": TOOL, "arguments": {}}]},
    "parallel calls": {
        "text": "Let me look.",
        "calls": [{"name": TOOL, "arguments": {"city": city}} for city in ("Zürich", "Oslo", "Bergen")],
    },
    "thoughts, text and call": {
        "thinking": "I have to look.", "text": "Let me look.", "calls": [{"name": TOOL, "arguments": {"city": "Oslo"}}],
    },
    "limit of tokens": {"text": "It is 21 °C in Zür", "stop": "max_tokens"},
    "refusal": {"text": "I cannot help with that.", "stop": "refusal"},
    "filter": {"text": "It is", "stop": "filtered"},
    "tokens": {"text": "Hi.", "tokens": {"input": 1200, "cached": 1000, "output": 70, "thinking": 30}},
    "tokens written to a cache": {
        "text": "Hi.", "tokens": {"input": 1200, "cached": 600, "cache_written": 400, "output": 70},
    },
}

# Words of the script, in those of the APIs that have others or none.
STOPS = {
    ("anthropic", "filtered"): "refusal", ("gemini", "refusal"): "filtered",
    ("ollama", "refusal"): "done", ("ollama", "filtered"): "done",
}
# What an API tells of tokens beside those of prompt and answer.
COUNTS = {
    "openai_chat": ("cached", "cache_written", "thinking"), "openai_responses": ("cached", "cache_written", "thinking"),
    "anthropic": ("cached", "cache_written", "thinking"), "gemini": ("cached", "thinking"), "ollama": (),
}


def expected(api, answer):
    """What is to be read, of an answer of the script."""
    tokens = {"input": 10, "output": 5, "cached": 0, "cache_written": 0, "thinking": 0} | answer.get("tokens", {})
    stop = answer.get("stop", "done")
    return {
        "thinking": answer.get("thinking", ""), "text": answer.get("text", ""), "stop": STOPS.get((api, stop), stop),
        "calls": [(call["name"], call["arguments"]) for call in answer.get("calls", [])],
        "tokens": {name: tokens[name] for name in ("input", "output", *COUNTS[api])},
    }


def judged(event):
    """The event, which the types of the SDK take: it builds them without a look at what is missing."""
    pydantic.TypeAdapter(type(event)).validate_python(event.to_dict())
    return event


# ---- readers: what each SDK makes of an answer -------------------------------------------------------------

def read_openai_chat(root, streamed):
    tools = [{"type": "function", "function": {"name": TOOL, "description": PURPOSE, "parameters": SCHEMA}}]
    request = {"model": "gpt-5", "messages": [{"role": "user", "content": QUESTION}], "tools": tools}
    create = openai_client(root).chat.completions
    if streamed:
        import openai

        with create.stream(**request, stream_options={"include_usage": True}) as stream:
            for event in stream:
                if event.type == "chunk":
                    judged(event.chunk)
            try:
                answer = stream.get_final_completion()
            except (openai.LengthFinishReasonError, openai.ContentFilterFinishReasonError) as cut:
                answer = cut.completion
    else:
        answer = judged(create.create(**request))
    choice, usage = answer.choices[0], answer.usage
    calls = choice.message.tool_calls or []
    assert len({call.id for call in calls}) == len(calls) and all(call.id for call in calls), calls
    assert (choice.finish_reason == "tool_calls") == bool(calls), choice
    stop = {"stop": "done", "tool_calls": "done", "length": "max_tokens", "content_filter": "filtered"}
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage
    return {
        "thinking": getattr(choice.message, "reasoning_content", None) or "",
        "text": choice.message.refusal or choice.message.content or "",
        "stop": "refusal" if choice.message.refusal else stop[choice.finish_reason],
        "calls": [(call.function.name, json.loads(call.function.arguments)) for call in calls],
        "tokens": {
            "input": usage.prompt_tokens, "output": usage.completion_tokens,
            "cached": usage.prompt_tokens_details.cached_tokens,
            "cache_written": usage.prompt_tokens_details.cache_write_tokens,
            "thinking": usage.completion_tokens_details.reasoning_tokens,
        },
    }


def read_openai_responses(root, streamed):
    tools = [{"type": "function", "name": TOOL, "description": PURPOSE, "parameters": SCHEMA, "strict": False}]
    request = {"model": "gpt-5", "input": QUESTION, "tools": tools, "store": False}
    responses = openai_client(root).responses
    if streamed:
        with responses.stream(**request) as stream:
            *_, last = stream
        answer = last.response
        assert last.type == f"response.{answer.status}", last
        events = [judged(event) for event in responses.create(**request, stream=True)]
        assert [event.sequence_number for event in events] == list(range(len(events))), events
    else:
        answer = judged(responses.create(**request))
    parts = [part for item in answer.output if item.type == "message" for part in item.content]
    refusals = [part.refusal for part in parts if part.type == "refusal"]
    summaries = [part.text for item in answer.output if item.type == "reasoning" for part in item.summary]
    assert all(item.encrypted_content for item in answer.output if item.type == "reasoning"), answer
    calls = [item for item in answer.output if item.type == "function_call"]
    assert len({call.call_id for call in calls}) == len(calls), calls
    stop = "refusal" if refusals else "done"
    if answer.status == "incomplete":
        stop = {"max_output_tokens": "max_tokens", "content_filter": "filtered"}[answer.incomplete_details.reason]
    usage = answer.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens, usage
    return {
        "thinking": "".join(summaries), "text": "".join(refusals) or answer.output_text, "stop": stop,
        "calls": [(call.name, json.loads(call.arguments)) for call in calls],
        "tokens": {
            "input": usage.input_tokens, "output": usage.output_tokens,
            "cached": usage.input_tokens_details.cached_tokens,
            "cache_written": usage.input_tokens_details.cache_write_tokens,
            "thinking": usage.output_tokens_details.reasoning_tokens,
        },
    }


def anthropic_client(root):
    import anthropic

    return anthropic.Anthropic(base_url=root, api_key=API_KEY, max_retries=0, timeout=TIMEOUT)


def read_anthropic(root, streamed):
    tools = [{"name": TOOL, "description": PURPOSE, "input_schema": SCHEMA}]
    asked = [{"role": "user", "content": QUESTION}]
    request = {"model": "claude-sonnet-4-5", "max_tokens": 256, "messages": asked, "tools": tools}
    messages = anthropic_client(root).messages
    if streamed:
        with messages.stream(**request) as stream:
            for event in stream:
                judged(event)
            answer = judged(stream.get_final_message())
    else:
        answer = judged(messages.create(**request))
    blocks = {kind: [block for block in answer.content if block.type == kind] for kind in ("thinking", "text", "tool_use")}
    assert all(block.signature for block in blocks["thinking"]), answer
    calls = blocks["tool_use"]
    assert len({call.id for call in calls}) == len(calls) and (answer.stop_reason == "tool_use") == bool(calls), answer
    assert (answer.stop_details is not None) == (answer.stop_reason == "refusal"), answer
    stop = {"end_turn": "done", "tool_use": "done", "max_tokens": "max_tokens", "refusal": "refusal"}
    usage = answer.usage
    cached, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    return {
        "thinking": "".join(block.thinking for block in blocks["thinking"]),
        "text": "".join(block.text for block in blocks["text"]), "stop": stop[answer.stop_reason],
        "calls": [(call.name, call.input) for call in calls],
        "tokens": {
            "input": usage.input_tokens + cached + written, "output": usage.output_tokens, "cached": cached,
            "cache_written": written, "thinking": usage.output_tokens_details.thinking_tokens,
        },
    }


def read_gemini(root, streamed):
    from google.genai import types

    declared = types.FunctionDeclaration(name=TOOL, description=PURPOSE, parameters_json_schema=SCHEMA)
    config = types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=[declared])],
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    request = {"model": "gemini-3-pro", "contents": QUESTION, "config": config}
    with gemini_client(root) as client:
        models = client.models
        chunks = list(models.generate_content_stream(**request)) if streamed else [models.generate_content(**request)]
    parts = [part for chunk in chunks for part in chunk.candidates[0].content.parts or []]
    assert all(chunk.candidates[0].finish_reason is None for chunk in chunks[:-1]), chunks
    calls = [part for part in parts if part.function_call]
    assert len({call.function_call.id for call in calls}) == len(calls), calls
    # The first call of a turn has the signature.
    assert [bool(call.thought_signature) for call in calls] == [number == 0 for number in range(len(calls))], calls
    stop = {"STOP": "done", "MAX_TOKENS": "max_tokens", "SAFETY": "filtered"}
    usage = chunks[-1].usage_metadata
    thinking = usage.thoughts_token_count or 0
    answer = (usage.candidates_token_count or 0) + thinking
    assert usage.total_token_count == usage.prompt_token_count + answer, usage
    return {
        "thinking": "".join(part.text for part in parts if part.text and part.thought),
        "text": "".join(part.text for part in parts if part.text and not part.thought),
        "stop": stop[chunks[-1].candidates[0].finish_reason.value],
        "calls": [(call.function_call.name, call.function_call.args or {}) for call in calls],
        "tokens": {
            "input": usage.prompt_token_count, "output": answer, "thinking": thinking,
            "cached": usage.cached_content_token_count or 0,
        },
    }


def ollama_client(root):
    import ollama

    return ollama.Client(host=root, timeout=TIMEOUT)


def read_ollama(root, streamed):
    tools = [{"type": "function", "function": {"name": TOOL, "description": PURPOSE, "parameters": SCHEMA}}]
    request = {"model": "qwen3", "messages": [{"role": "user", "content": QUESTION}], "tools": tools}
    chat = ollama_client(root).chat
    chunks = list(chat(**request, stream=True)) if streamed else [chat(**request)]
    last, messages = chunks[-1], [chunk.message for chunk in chunks]
    assert [chunk.done for chunk in chunks] == [False] * (len(chunks) - 1) + [True], chunks
    calls = [call.function for message in messages for call in message.tool_calls or []]
    return {
        "thinking": "".join(message.thinking or "" for message in messages),
        "text": "".join(message.content or "" for message in messages),
        "stop": {"stop": "done", "length": "max_tokens"}[last.done_reason],
        "calls": [(call.name, call.arguments) for call in calls],
        "tokens": {"input": last.prompt_eval_count, "output": last.eval_count},
    }


READERS = {
    "openai_chat": read_openai_chat, "openai_responses": read_openai_responses, "anthropic": read_anthropic,
    "gemini": read_gemini, "ollama": read_ollama,
}


def read_ours(api, root):
    """What our client makes of the same, which tells no filter from a refusal and counts no thoughts apart."""
    user = {"role": "user", "content": [{"type": "text", "text": QUESTION}]}
    request = {
        "system": "", "messages": [user], "tool_choice": "auto", "max_tokens": None, "temperature": None,
        "tools": [{"name": TOOL, "description": PURPOSE, "parameters": SCHEMA}],
    }
    with OurClient(api, root, MODELS[api]) as client:
        response = client.answer(request)["response"]
    stop, usage = response["stop"], response["usage"]
    tokens = {
        "input": usage["input_tokens"], "output": usage["output_tokens"], "cached": usage["cached_tokens"],
        "cache_written": usage.get("cache_written_tokens", 0),
    }
    assert (stop == "tool_calls") == bool(response["calls"]), response
    return {
        "thinking": response["reasoning"], "text": response["text"],
        "stop": {"end": "done", "tool_calls": "done"}.get(stop, stop),
        "calls": [(call["name"], json.loads(call["arguments"])) for call in response["calls"]],
        "tokens": {name: count for name, count in tokens.items() if name in ("input", "output", *COUNTS[api])},
    }


@cases(*((api, name) for name in ANSWERS for api in APIS))
def test_answers_are_read_as_scripted(api, name):
    answer = ANSWERS[name]
    want = expected(api, answer)
    with workspace() as folder, scripted_model(folder, [answer]) as root:
        for streamed in (False, True):
            got = READERS[api](root, streamed)
            assert got == want, f"{'streamed' if streamed else 'whole'}: {got} in place of {want}"
        want["tokens"].pop("thinking", None)
        want["stop"] = {"filtered": "refusal"}.get(want["stop"], want["stop"])
        got = read_ours(api, root)
        assert got == want, f"ours: {got} in place of {want}"


# ---- structured output -------------------------------------------------------------------------------------

class Place(pydantic.BaseModel):
    """A shape as users of the SDKs write one."""

    city: str
    country: str


def parsed_openai_chat(root, streamed):
    completions = openai_client(root).chat.completions
    request = {"model": "gpt-5", "messages": [{"role": "user", "content": QUESTION}], "response_format": Place}
    if not streamed:
        return completions.parse(**request).choices[0].message.parsed
    with completions.stream(**request) as stream:
        return stream.get_final_completion().choices[0].message.parsed


def parsed_openai_responses(root, streamed):
    responses, request = openai_client(root).responses, {"model": "gpt-5", "input": QUESTION, "text_format": Place}
    if not streamed:
        return responses.parse(**request).output_parsed
    with responses.stream(**request) as stream:
        return stream.get_final_response().output_parsed


def parsed_anthropic(root, streamed):
    messages, asked = anthropic_client(root).messages, [{"role": "user", "content": QUESTION}]
    request = {"model": "claude-sonnet-4-5", "max_tokens": 256, "messages": asked, "output_format": Place}
    if not streamed:
        return messages.parse(**request).parsed_output
    with messages.stream(**request) as stream:
        return stream.get_final_message().parsed_output


def parsed_gemini(root, streamed):
    config = {"response_mime_type": "application/json", "response_schema": Place}
    request = {"model": "gemini-3-pro", "contents": QUESTION, "config": config}
    with gemini_client(root) as client:
        if not streamed:
            return client.models.generate_content(**request).parsed
        text = "".join(chunk.text or "" for chunk in client.models.generate_content_stream(**request))
    return Place.model_validate_json(text)


def parsed_ollama(root, streamed):
    request = {"model": "qwen3", "messages": [{"role": "user", "content": QUESTION}]}
    answer = ollama_client(root).chat(**request, format=Place.model_json_schema(), stream=streamed)
    text = "".join(chunk.message.content for chunk in answer) if streamed else answer.message.content
    return Place.model_validate_json(text)


PARSERS = {
    "openai_chat": parsed_openai_chat, "openai_responses": parsed_openai_responses, "anthropic": parsed_anthropic,
    "gemini": parsed_gemini, "ollama": parsed_ollama,
}


@cases(*((api,) for api in APIS))
def test_shaped_answers_are_parsed(api):
    place = Place(city="Zürich", country="Switzerland")
    with workspace() as folder, scripted_model(folder, [{"text": place.model_dump_json()}]) as root:
        for streamed in (False, True):
            assert PARSERS[api](root, streamed) == place, streamed


# ---- errors ------------------------------------------------------------------------------------------------

def error_types(api, status):
    """The SDK's own error for a status, before an answer and (for `None`) amid one."""
    if api.startswith("openai"):
        import openai as sdk

        amid = sdk.APIError
    elif api == "anthropic":
        import anthropic as sdk

        amid = sdk.APIStatusError
    elif api == "gemini":
        from google.genai import errors

        return errors.ServerError if status is None or status >= 500 else errors.ClientError
    else:
        import ollama

        return ollama.ResponseError
    named = {
        None: amid, 400: sdk.BadRequestError, 401: sdk.AuthenticationError, 403: sdk.PermissionDeniedError,
        404: sdk.NotFoundError, 429: sdk.RateLimitError,
    }
    return named.get(status, sdk.InternalServerError)


KINDS = {400: "invalid", 401: "auth", 403: "auth", 404: "invalid", 429: "rate_limit", 500: "unavailable",
         503: "unavailable"}


@cases(*((api,) for api in APIS))
def test_errors_are_the_sdks_own(api):
    turns = [{"error": {"status": status, "message": "not now"}} for status in KINDS for _ in range(3)]
    with workspace() as folder, scripted_model(folder, turns) as root:
        for status, kind in KINDS.items():
            for streamed in (False, True):
                error = raised(lambda: READERS[api](root, streamed))
                assert isinstance(error, error_types(api, status)), (status, type(error), error)
                said = getattr(error, "status_code", None) or getattr(error, "code", None)
                assert said == status and "not now" in str(error), (said, error)
            ours = our_error(api, root)
            assert ours["kind"] == kind and "not now" in ours["message"], ours


@cases(*((api, frames) for api in APIS for frames in (0, 3)))
def test_errors_amid_a_stream_are_the_sdks_own(api, frames):
    # Gemini's first frame may be an error, and the SDK gives the status of any.
    turn = {"text": "It is 21 °C in Zürich and will be so tomorrow.", "fault": f"error_after:{frames}"}
    with workspace() as folder, scripted_model(folder, [turn]) as root:
        error = raised(lambda: READERS[api](root, True))
        assert isinstance(error, error_types(api, None)), (type(error), error)
        words = {"anthropic": "Overloaded", "gemini": "overloaded", "ollama": "model runner"}
        assert words.get(api, "the server had an error") in str(error), error
        ours = our_error(api, root)
        assert ours["kind"] == "unavailable" and words.get(api, "the server had an error") in ours["message"], ours


def raised(read):
    try:
        read()
    except Exception as error:
        return error
    raise AssertionError("no error was raised")


def our_error(api, root):
    user = {"role": "user", "content": [{"type": "text", "text": QUESTION}]}
    request = {"system": "", "messages": [user], "tools": [], "tool_choice": "auto", "max_tokens": None,
               "temperature": None}
    with OurClient(api, root, MODELS[api]) as client:
        return client.answer(request)["error"]
