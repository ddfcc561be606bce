"""The official SDKs, used as their documentation says: each class holds a conversation over one API.

Nothing here knows our requests. What we say to models in words where an API has no field for it (docs/
model-differences.md lists these words) is said here as well, since no SDK could know it.
"""

import base64
import copy
import json
import logging

from model_peers import API_KEY, base_url

TIMEOUT = 30

# google-genai warns of every answer that holds more than text.
logging.getLogger("google_genai.types").setLevel(logging.ERROR)


def encoded(image):
    return base64.b64encode(image).decode()


def data_url(image):
    return f"data:image/png;base64,{encoded(image)}"


# ---- our words ---------------------------------------------------------------------------------------

def in_words(output):
    """How a shape is asked for where the API has no means of its own."""
    if "schema" not in output:
        return "Your final answer is one JSON object and nothing else."
    schema = json.dumps(output["schema"], separators=(",", ":"), ensure_ascii=False)
    return f"Your final answer is one JSON text and nothing else. It is valid under this JSON Schema:\n{schema}"


def with_words(system, output):
    """The system prompt with that at its end; that an answer is JSON is said once."""
    is_said = "schema" not in output and "json" in system.lower()
    return system if is_said else f"{system}\n\n{in_words(output)}".strip()


def failure(text, failed):
    """A failure, where the API has no flag for it."""
    return f"(tool failed) {text}" if failed else text


def without_images(parts):
    """(text, images) of a result, where the API takes texts alone and the images follow in a message."""
    images, lines = [], []
    for part in parts:
        if isinstance(part, str):
            lines.append(part)
        else:
            images.append(part)
            lines.append(f"[image {len(images)}, image/png: shown after the results]")
    return "\n".join(lines), images


def caption(name, call_id):
    return f"[images in the result of {name}, call {call_id}]"


class Side:
    def __init__(self, conversation, root):
        self.conversation, self.root = conversation, root
        self.messages, self.calls = [], []

    def model(self, api):
        return self.conversation.models[api]

    def takes_sampling(self, api):
        """Models of these families answer 400 to a temperature and the like, OpenAI's to texts that end an answer too."""
        return not self.model(api).startswith(("gpt-5", "o3", "claude-opus-4-8"))

    def samples(self, api):
        """Whether there is a temperature to be sent."""
        return self.conversation.temperature is not None and self.takes_sampling(api)

    def room(self, api):
        """Thoughts count towards the limit, and these think without being told to."""
        thoughts = {"gpt-5-mini": 8192, "o3": 8192, "gemini-3-pro": 24576, "qwen3": 8192}
        return 0 if self.conversation.settings else thoughts.get(self.model(api), 0)

    def effort(self, api):
        """The effort in the word that each model here knows for it."""
        wanted = self.conversation.settings.get("effort")
        known = {
            ("gpt-5.2", "low"): "low", ("gpt-5.6-sol", "max"): "max", ("gpt-5.1", "max"): "high",
            ("gpt-5.1", "none"): "none", ("o3", "none"): "low", ("claude-opus-4-8", "low"): "low",
            ("claude-fable-5-1", "max"): "max", ("gemini-3-pro", "low"): "LOW", ("gemini-3-flash", "max"): "HIGH",
        }
        return known.get((self.model(api), wanted))


# ---- openai ------------------------------------------------------------------------------------------

def openai_client(root):
    import openai

    return openai.OpenAI(base_url=base_url("openai", root), api_key=API_KEY, max_retries=0, timeout=TIMEOUT)


def openai_schema(output):
    """Schema and strictness as the SDK's helper for Pydantic models has them; open objects are beyond strict mode."""
    from openai.lib._pydantic import _ensure_strict_json_schema

    schema = copy.deepcopy(output["schema"])
    strict = not schema.get("additionalProperties", True)
    return {"schema": _ensure_strict_json_schema(schema, path=(), root=schema) if strict else schema, "strict": strict}


class OpenAiChat(Side):
    """developers.openai.com/api/docs: chat.completions"""

    def __init__(self, conversation, root):
        super().__init__(conversation, root)
        self.client = openai_client(root)
        system = conversation.system
        # JSON without a schema is refused where nothing speaks of it.
        if conversation.output and "schema" not in conversation.output:
            system = with_words(system, conversation.output)
        if system:
            self.messages.append({"role": "system", "content": system})

    def arguments(self):
        said = self.conversation
        extra = {}
        if said.tools:
            function = lambda tool: {key: tool[key] for key in tool}
            extra["tools"] = [{"type": "function", "function": function(tool)} for tool in said.tools]
            if said.tool_choice in ("required", "none"):
                extra["tool_choice"] = said.tool_choice
            elif said.tool_choice != "auto":
                extra["tool_choice"] = {"type": "function", "function": {"name": said.tool_choice["tool"]}}
            if said.parallel is not None:
                extra["parallel_tool_calls"] = said.parallel
        if said.output and "schema" not in said.output:
            extra["response_format"] = {"type": "json_object"}
        elif said.output:
            schema = {**said.output, **openai_schema(said.output)}
            extra["response_format"] = {"type": "json_schema", "json_schema": schema}
        if said.max_tokens:
            extra["max_completion_tokens"] = said.max_tokens + self.room("openai_chat")
        if self.samples("openai_chat"):
            extra["temperature"] = said.temperature
        how = said.settings
        if "seed" in how:
            extra["seed"] = how["seed"]
        if self.takes_sampling("openai_chat"):
            extra |= {key: how[key] for key in ("top_p", "stop") if key in how}
        if effort := self.effort("openai_chat"):
            extra["reasoning_effort"] = effort
        return extra

    def user(self, parts):
        image = lambda part: {"type": "image_url", "image_url": {"url": data_url(part)}}
        if len(parts) > 1:
            parts = [{"type": "text", "text": part} if isinstance(part, str) else image(part) for part in parts]
        else:
            parts, = parts
        self.messages.append({"role": "user", "content": parts})

    def ask(self):
        request = {"model": self.model("openai_chat"), "messages": self.messages, **self.arguments()}
        with self.client.chat.completions.stream(**request, stream_options={"include_usage": True}) as stream:
            message = stream.get_final_completion().choices[0].message
        said = {"role": "assistant", "content": message.content}
        if message.refusal:
            said["refusal"] = message.refusal
        # What compatible servers show of their thoughts, and some want back.
        if thoughts := getattr(message, "reasoning_content", None):
            said["reasoning_content"] = thoughts
        self.calls = message.tool_calls or []
        if self.calls:
            function = lambda call: {"name": call.function.name, "arguments": call.function.arguments}
            made = lambda call: {"id": call.id, "type": "function", "function": function(call)}
            said["tool_calls"] = [made(call) for call in self.calls]
        self.messages.append(said)

    def results(self, results):
        pictures = []
        for call, (parts, failed) in zip(self.calls, results, strict=True):
            text, images = without_images(parts)
            self.messages.append({"role": "tool", "tool_call_id": call.id, "content": failure(text, failed)})
            pictures += [caption(call.function.name, call.id), *images] if images else []
        if pictures:
            self.user(pictures)


class OpenAiResponses(Side):
    """developers.openai.com/api/docs: responses, with nothing stored at OpenAI"""

    def __init__(self, conversation, root):
        super().__init__(conversation, root)
        self.client = openai_client(root)

    def arguments(self):
        said = self.conversation
        extra = {"store": False}
        # Models that do not reason refuse to be asked for their reasoning.
        if not self.model("openai_responses").startswith("gpt-4"):
            extra["include"] = ["reasoning.encrypted_content"]
        # What is not stored has to come whole, to be sent back.
        whole = {"web_search": "web_search_call.action.sources", "file_search": "file_search_call.results",
                 "code_execution": "code_interpreter_call.outputs"}
        if asked := [whole[name] for name in said.natives if name in whole]:
            extra["include"] = extra.get("include", []) + asked
        if said.system:
            extra["instructions"] = said.system
        if said.natives:
            from openai.types.responses import tool_param, web_search_tool_param, file_search_tool_param

            declared = {
                "web_search": web_search_tool_param.WebSearchToolParam(type="web_search"),
                "code_execution": tool_param.CodeInterpreter(type="code_interpreter", container={"type": "auto"}),
                "file_search": file_search_tool_param.FileSearchToolParam(type="file_search", vector_store_ids=["vs_1"]),
                "image_gen": tool_param.ImageGeneration(type="image_generation"),
            }
            extra["tools"] = [declared[name] for name in said.natives]
        if said.tools:
            functions = [{"type": "function", "strict": False, **tool} for tool in said.tools]
            extra["tools"] = extra.get("tools", []) + functions
            if said.tool_choice in ("required", "none"):
                extra["tool_choice"] = said.tool_choice
            elif said.tool_choice != "auto":
                extra["tool_choice"] = {"type": "function", "name": said.tool_choice["tool"]}
            if said.parallel is not None:
                extra["parallel_tool_calls"] = said.parallel
        if said.output and "schema" not in said.output:
            extra["text"] = {"format": {"type": "json_object"}}
        elif said.output:
            extra["text"] = {"format": {"type": "json_schema", **said.output, **openai_schema(said.output)}}
        if said.max_tokens:
            extra["max_output_tokens"] = said.max_tokens + self.room("openai_responses")
        if self.samples("openai_responses"):
            extra["temperature"] = said.temperature
        if "top_p" in said.settings and self.takes_sampling("openai_responses"):
            extra["top_p"] = said.settings["top_p"]
        if effort := self.effort("openai_responses"):
            extra["reasoning"] = {"effort": effort}
        return extra

    @staticmethod
    def content(parts):
        if len(parts) == 1 and isinstance(parts[0], str):
            return parts[0]
        image = lambda part: {"type": "input_image", "image_url": data_url(part)}
        return [{"type": "input_text", "text": part} if isinstance(part, str) else image(part) for part in parts]

    def user(self, parts):
        self.messages.append({"role": "user", "content": self.content(parts)})

    def input(self):
        """The conversation, which has to speak of JSON where an answer is to be that; instructions do not count."""
        output = self.conversation.output
        asked = [str(said["content"]) for said in self.messages if isinstance(said, dict) and said.get("role") == "user"]
        if not output or "schema" in output or any("json" in text.lower() for text in asked):
            return self.messages
        return [{"role": "developer", "content": in_words(output)}, *self.messages]

    def ask(self):
        request = {"model": self.model("openai_responses"), "input": self.input(), **self.arguments()}
        with self.client.responses.stream(**request) as stream:
            response = stream.get_final_response()
        self.messages += response.output
        self.calls = [item for item in response.output if item.type == "function_call"]

    def results(self, results):
        for call, (parts, failed) in zip(self.calls, results, strict=True):
            if all(isinstance(part, str) for part in parts):
                parts = ["\n".join(parts)]
            parts = [failure(parts[0], failed), *parts[1:]]
            output = {"type": "function_call_output", "call_id": call.call_id, "output": self.content(parts)}
            self.messages.append(output)


# ---- anthropic ---------------------------------------------------------------------------------------

class Anthropic(Side):
    """platform.claude.com/docs: messages"""

    def __init__(self, conversation, root):
        import anthropic

        super().__init__(conversation, root)
        self.client = anthropic.Anthropic(base_url=root, api_key=API_KEY, max_retries=0, timeout=TIMEOUT)

    def arguments(self):
        said = self.conversation
        import anthropic

        # The API demands a limit.
        extra = {"max_tokens": said.max_tokens or 8192}
        system = said.system
        if said.tools:
            schema = lambda tool: {key: value for key, value in tool.items() if key != "parameters"}
            declared = {
                "web_search": anthropic.types.WebSearchTool20250305Param(type="web_search_20250305", name="web_search"),
                "code_execution": anthropic.types.CodeExecutionTool20250825Param(
                    type="code_execution_20250825", name="code_execution"),
            }
            extra["tools"] = [declared[name] for name in said.natives]
            extra["tools"] += [{**schema(tool), "input_schema": tool["parameters"]} for tool in said.tools]
            choice = {"auto": {"type": "auto"}, "required": {"type": "any"}, "none": {"type": "none"}}
            one = lambda: {"type": "tool", "name": said.tool_choice["tool"]}
            choice = choice[said.tool_choice] if isinstance(said.tool_choice, str) else one()
            if said.parallel is not None:
                choice["disable_parallel_tool_use"] = not said.parallel
            if choice != {"type": "auto"}:
                extra["tool_choice"] = choice
        if said.output:
            # Open objects are beyond the API's structured output; the SDK would close them.
            if said.output.get("schema", {}).get("additionalProperties") is False:
                schema = anthropic.transform_schema(said.output["schema"])
                extra["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
            else:
                system = with_words(system, said.output)
        if system:
            extra["system"] = system
        # The SDK is of a version of the API that has no sampling any more.
        body = {"temperature": said.temperature} if self.samples("anthropic") else {}
        how = said.settings
        if self.takes_sampling("anthropic"):
            body |= {key: how[key] for key in ("top_p", "top_k") if key in how}
        if body:
            extra["extra_body"] = body
        if "stop" in how:
            extra["stop_sequences"] = how["stop"]
        if effort := self.effort("anthropic"):
            extra["output_config"] = {"effort": effort}
            # Thoughts count towards the limit, so there is to be room for them.
            extra["max_tokens"] += {"low": 1024, "max": 32768}[how["effort"]]
            if self.model("anthropic") == "claude-opus-4-8":
                extra["thinking"] = {"type": "adaptive"}
        if how.get("effort") == "none" and self.model("anthropic") == "claude-sonnet-5-5":
            extra["thinking"] = {"type": "between_tools"}
            extra["max_tokens"] += 1024
        if budget := how.get("thinking_tokens"):
            extra["thinking"] = {"type": "enabled", "budget_tokens": budget}
            extra["max_tokens"] += budget
        return self.kept(extra)

    def mark(self):
        hour = {"ttl": "1h"} if self.conversation.settings.get("cache") == "1h" else {}
        return {"cache_control": {"type": "ephemeral", **hour}}

    def kept(self, extra):
        """With the marks of what is to be kept of tools and system prompt."""
        if self.conversation.keep != "once":
            extra["system"] = [{"type": "text", "text": extra["system"], **self.mark()}]
            extra["tools"][-1] |= self.mark()
        return extra

    def marked(self):
        """The messages, the last two of the user's with a mark at their end."""
        if self.conversation.keep != "conversation":
            return self.messages
        messages = [dict(message) for message in self.messages]
        for message in [message for message in messages if message["role"] == "user"][-2:]:
            content = message["content"]
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
            message["content"] = [*blocks[:-1], {**blocks[-1], **self.mark()}]
        return messages

    @staticmethod
    def content(parts):
        if len(parts) == 1 and isinstance(parts[0], str):
            return parts[0]
        source = lambda part: {"type": "base64", "media_type": "image/png", "data": encoded(part)}
        image = lambda part: {"type": "image", "source": source(part)}
        return [{"type": "text", "text": part} if isinstance(part, str) else image(part) for part in parts]

    def user(self, parts):
        self.messages.append({"role": "user", "content": self.content(parts)})

    def ask(self):
        request = {"model": self.model("anthropic"), "messages": self.marked(), **self.arguments()}
        with self.client.messages.stream(**request) as stream:
            message = stream.get_final_message()
        self.messages.append({"role": "assistant", "content": message.content})
        self.calls = [block for block in message.content if block.type == "tool_use"]

    def results(self, results):
        blocks = []
        for call, (parts, failed) in zip(self.calls, results, strict=True):
            block = {"type": "tool_result", "tool_use_id": call.id, "content": self.content(parts)}
            blocks.append({**block, "is_error": True} if failed else block)
        self.messages.append({"role": "user", "content": blocks})


# ---- google-genai ------------------------------------------------------------------------------------

def gemini_client(root):
    from google import genai
    from google.genai import types

    return genai.Client(api_key=API_KEY, http_options=types.HttpOptions(base_url=root, timeout=TIMEOUT * 1000))


class Gemini(Side):
    """ai.google.dev/gemini-api/docs: generate_content_stream"""

    def __init__(self, conversation, root):
        super().__init__(conversation, root)
        self.client = gemini_client(root)

    def takes_all(self):
        """What came with the third generation: a shape beside tools, images in results."""
        return not self.model("gemini").startswith("gemini-2")

    def config(self):
        from google.genai import types

        said = self.conversation
        config, system = {}, said.system
        if said.tools:
            declare = lambda tool: types.FunctionDeclaration(
                name=tool["name"], description=tool["description"], parameters_json_schema=tool["parameters"])
            native = {"web_search": types.Tool(google_search=types.GoogleSearch()),
                      "code_execution": types.Tool(code_execution=types.ToolCodeExecution())}
            config["tools"] = [native[name] for name in said.natives]
            config["tools"].append(types.Tool(function_declarations=[declare(tool) for tool in said.tools]))
            config["automatic_function_calling"] = types.AutomaticFunctionCallingConfig(disable=True)
            calling = {
                "required": {"mode": types.FunctionCallingConfigMode.ANY},
                "none": {"mode": types.FunctionCallingConfigMode.NONE},
            }
            if isinstance(said.tool_choice, dict):
                only = [said.tool_choice["tool"]]
                calling = {"mode": types.FunctionCallingConfigMode.ANY, "allowed_function_names": only}
            else:
                calling = calling.get(said.tool_choice)
            if calling:
                calling = types.FunctionCallingConfig(**calling)
                config["tool_config"] = types.ToolConfig(function_calling_config=calling)
            if said.natives:
                config["tool_config"] = types.ToolConfig(include_server_side_tool_invocations=True)
        if said.output:
            if said.tools and not self.takes_all():
                system = with_words(system, said.output)
            else:
                config["response_mime_type"] = "application/json"
                if "schema" in said.output:
                    config["response_json_schema"] = said.output["schema"]
        if system:
            config["system_instruction"] = system
        if said.max_tokens:
            config["max_output_tokens"] = said.max_tokens + self.room("gemini")
        if said.temperature is not None:
            config["temperature"] = said.temperature
        how = said.settings
        config |= {key: how[key] for key in ("top_p", "top_k", "seed") if key in how}
        if "stop" in how:
            config["stop_sequences"] = how["stop"]
        if level := self.effort("gemini"):
            config["thinking_config"] = types.ThinkingConfig(thinking_level=level)
        elif self.model("gemini") == "gemini-2.5-flash" and how.get("effort") == "none":
            config["thinking_config"] = types.ThinkingConfig(thinking_budget=0)
        elif "thinking_tokens" in how:
            config["thinking_config"] = types.ThinkingConfig(thinking_budget=how["thinking_tokens"])
        return types.GenerateContentConfig(**config)

    @staticmethod
    def parts(parts):
        from google.genai import types

        text, image = types.Part.from_text, lambda part: types.Part.from_bytes(data=part, mime_type="image/png")
        return [text(text=part) if isinstance(part, str) else image(part) for part in parts]

    def user(self, parts):
        from google.genai import types

        self.messages.append(types.Content(role="user", parts=self.parts(parts)))

    def ask(self):
        from google.genai import types

        said = []
        for chunk in self.client.models.generate_content_stream(
            model=self.model("gemini"), contents=self.messages, config=self.config()
        ):
            for part in chunk.candidates[0].content.parts or []:
                last = said[-1] if said else None
                plain = part.text is not None and not part.thought_signature
                if plain and last and last.text is not None and last.thought == part.thought:
                    last.text += part.text
                elif part.text != "" or part.thought_signature:
                    said.append(part)
        self.messages.append(types.Content(role="model", parts=said))
        self.calls = [part.function_call for part in said if part.function_call]

    def results(self, results):
        from google.genai import types

        answers, pictures = [], []
        for call, (parts, failed) in zip(self.calls, results, strict=True):
            images, inside = [], None
            text = "\n".join(part for part in parts if isinstance(part, str))
            if self.takes_all():
                image = types.FunctionResponsePart.from_bytes
                inside = [image(data=part, mime_type="image/png") for part in parts if not isinstance(part, str)]
            else:
                text, images = without_images(parts)
            response = {"error" if failed else "output": text}
            answers.append(types.Part(function_response=types.FunctionResponse(
                id=call.id, name=call.name, response=response, parts=inside or None)))
            # Calls of these models have no id; ours are counted.
            pictures += [caption(call.name, f"call_{len(answers) - 1}"), *images] if images else []
        self.messages.append(types.Content(role="user", parts=[*answers, *self.parts(pictures)]))


# ---- ollama ------------------------------------------------------------------------------------------

class Ollama(Side):
    """docs.ollama.com: chat, streamed and put together as under capabilities/streaming"""

    def __init__(self, conversation, root):
        import ollama

        super().__init__(conversation, root)
        self.client = ollama.Client(host=root, timeout=TIMEOUT, headers={"Authorization": f"Bearer {API_KEY}"})
        system = conversation.system
        if conversation.output and self.has_tools():
            system = with_words(system, conversation.output)
        if system:
            self.messages.append({"role": "system", "content": system})

    def has_tools(self):
        """There is no choice of tools: none are called where none are shown."""
        return bool(self.conversation.tools) and self.conversation.tool_choice != "none"

    def arguments(self):
        said = self.conversation
        options, extra = {}, {}
        if self.has_tools():
            function = lambda tool: {key: tool[key] for key in ("name", "description", "parameters")}
            extra["tools"] = [{"type": "function", "function": function(tool)} for tool in said.tools]
        # A model that is held to a shape calls nothing.
        if said.output and not self.has_tools():
            extra["format"] = said.output.get("schema", "json")
        if said.max_tokens:
            options["num_predict"] = said.max_tokens + self.room("ollama")
        if said.temperature is not None:
            options["temperature"] = said.temperature
        how = said.settings
        options |= {key: how[key] for key in ("top_p", "top_k", "seed", "stop") if key in how}
        if self.model("ollama") == "gpt-oss":
            extra["think"] = how["effort"]
        elif how.get("effort") or how.get("thinking_tokens"):
            extra["think"] = how.get("effort") != "none"
        return {**extra, "options": options} if options else extra

    def user(self, parts):
        message = {"role": "user", "content": "\n".join(part for part in parts if isinstance(part, str))}
        if images := [part for part in parts if not isinstance(part, str)]:
            message["images"] = images
        self.messages.append(message)

    def ask(self):
        thinking, content, calls = "", "", []
        for chunk in self.client.chat(
            model=self.model("ollama"), messages=self.messages, stream=True, **self.arguments()
        ):
            thinking += chunk.message.thinking or ""
            content += chunk.message.content or ""
            calls.extend(chunk.message.tool_calls or [])
        message = {"role": "assistant", "content": content}
        if thinking:
            message["thinking"] = thinking
        if calls:
            message["tool_calls"] = calls
        self.messages.append(message)
        self.calls = calls

    def results(self, results):
        pictures = []
        for number, (call, (parts, failed)) in enumerate(zip(self.calls, results, strict=True)):
            text, images = without_images(parts)
            name = call.function.name
            self.messages.append({"role": "tool", "tool_name": name, "content": failure(text, failed)})
            pictures += [caption(name, f"call_{number}"), *images] if images else []
        if pictures:
            self.user(pictures)


SIDES = {
    "openai_chat": OpenAiChat, "openai_responses": OpenAiResponses, "anthropic": Anthropic, "gemini": Gemini,
    "ollama": Ollama,
}
