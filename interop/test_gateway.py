"""Five real servers behind the gateway, used by the official clients on both transports and through the
protocol generations."""

import json
import re

from harness import Gateway, all_tools, cases, outcome, python_client, real_servers, stdio_gateway, tools_with
from harness import typescript_client, workspace

LONGEST_NAME = 48  # server.max_tool_name
LEGAL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
ONE_OF_EACH = ("everything__echo", "filesystem__read_text_file", "git__git_log", "time__get_current_time")
TRANSPORTS = ("http", "stdio")
MODERN, LEGACY = "2026-07-28", "2025-11-25"


def calls(folder):
    """(tool, arguments, whether it succeeds, what its text contains)."""
    noon = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    repository, hello = str(folder / "repository"), str(folder / "files/hello.txt")
    return [
        ("everything__echo", {"message": "hello"}, True, "hello"),
        ("everything__get-sum", {"a": 19, "b": 23}, True, "42"),
        ("everything__get-sum", {"a": "nineteen", "b": 23}, False, ""),
        ("filesystem__read_text_file", {"path": hello}, True, "hello from a real file"),
        ("filesystem__list_directory", {"path": str(folder / "files")}, True, "hello.txt"),
        ("filesystem__read_text_file", {"path": str(folder / "files/absent.txt")}, False, ""),
        ("git__git_status", {"repo_path": repository}, True, ""),
        ("git__git_log", {"repo_path": repository}, True, "first commit"),
        ("git__git_log", {}, False, "repo_path"),
        ("time__get_current_time", {"timezone": "UTC"}, True, "UTC"),
        ("time__convert_time", noon, True, "21:00"),
        ("time__get_current_time", {"timezone": "Nope/Zone"}, False, ""),
        ("time__no_such_tool", {}, False, ""),
    ]


def judge(answers, folder):
    """Every deviation at once."""
    wrong = []
    for (tool, arguments, ok, part), (was_ok, text) in zip(calls(folder), answers, strict=True):
        if was_ok != ok or part not in text:
            wrong.append(f"{tool} {json.dumps(arguments)}: ok={was_ok}, {text[:300]!r}")
    assert not wrong, "\n".join(wrong)


def judge_version(mode, negotiated):
    expected = {"v1": (LEGACY, None), "legacy": (LEGACY,)}.get(mode, (MODERN,))  # v1 does not tell on stdio
    assert negotiated in expected, f"{mode} negotiated {negotiated}"


async def test_every_tool_of_every_server_is_listed():
    """Compared with what the servers themselves list to the same client."""
    from mcp import StdioServerParameters

    with workspace() as folder:
        servers = real_servers(folder)
        expected = set()
        for name, server in servers.items():
            async with python_client(StdioServerParameters(**server)) as direct:
                expected |= {f"{name}__{tool}" for tool in await all_tools(direct)}
        with Gateway(folder, servers) as gateway:
            async with python_client(gateway.url) as client:
                tools = await tools_with(client, *ONE_OF_EACH)
        assert not expected - tools.keys(), f"missing: {sorted(expected - tools.keys())}"
        illegal = [name for name in tools if not LEGAL_NAME.fullmatch(name) or len(name) > LONGEST_NAME]
        assert not illegal, f"illegal names: {illegal}"
        assert all(tool.input_schema.get("type") == "object" for tool in tools.values())


@cases(*[(transport, mode) for transport in TRANSPORTS for mode in ("auto", "legacy", MODERN)])
async def test_python_client(transport, mode):
    with workspace() as folder:
        servers = real_servers(folder)
        if transport == "http":
            with Gateway(folder, servers) as gateway:
                await use_from_python(gateway.url, mode, folder)
        else:
            await use_from_python(stdio_gateway(folder, servers), mode, folder)


async def use_from_python(target, mode, folder):
    async with python_client(target, mode) as client:
        judge_version(mode, client.protocol_version)
        await tools_with(client, *ONE_OF_EACH)
        judge([await outcome(client, tool, arguments) for tool, arguments, *_ in calls(folder)], folder)

        image = await client.call_tool("everything__get-tiny-image", {})
        assert any(block.type == "image" and block.data for block in image.content), image
        structured = await client.call_tool("everything__get-structured-content", {"location": "New York"})
        assert structured.structured_content and "temperature" in structured.structured_content, structured

        seen = []

        async def on_progress(done, total, _message):
            seen.append((done, total))

        operation = {"duration": 1, "steps": 4}
        ok, text = await outcome(
            client, "everything__trigger-long-running-operation", operation, progress_callback=on_progress,
        )
        assert ok, text
        assert len(seen) >= 3 and seen == sorted(seen), f"progress: {seen}"

        # What a search finds is told while it goes on.
        messages = []

        async def on_report(_done, _total, message):
            messages.append(message or "")

        ok, text = await outcome(client, "fs__glob", {"pattern": "**/hello.txt"}, progress_callback=on_report)
        assert ok and any("hello.txt" in message for message in messages), f"{text}: {messages}"


@cases(("legacy",), ("auto",))
async def test_a_few_tools_lead_to_every_other(mode):
    with workspace() as folder, Gateway(folder, real_servers(folder)) as gateway:
        async with python_client(gateway.url) as client:
            await tools_with(client, *ONE_OF_EACH)
        async with python_client(gateway.url + "?expose=search", mode) as client:
            listed = set(await all_tools(client))
            finding, following = {"tools__search", "tools__describe", "tools__call"}, {"output__read", "output__grep"}
            jobs = {"job__wait", "job__read", "job__send", "job__stop"}
            assert listed == finding | following | jobs, listed
            assert "tools__search" in client.instructions and "time (2)" in client.instructions
            ok, found = await outcome(client, "tools__search", {"query": "what time is it in another time zone"})
            assert ok and "time__convert_time(" in found, found
            noon = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
            ok, text = await outcome(client, "tools__call", {"name": "time__convert_time", "arguments": noon})
            assert ok and "21:00" in text, text
            ok, text = await outcome(client, "time__convert_time", noon)
            assert ok and "21:00" in text, text


@cases(*[(transport, mode) for transport in TRANSPORTS for mode in ("v1", "legacy", "auto", MODERN)])
def test_typescript_client(transport, mode):
    with workspace() as folder:
        servers = real_servers(folder)
        wanted = [{"name": tool, "arguments": arguments} for tool, arguments, *_ in calls(folder)]
        wanted.append({"name": "everything__trigger-long-running-operation", "arguments": {"duration": 1, "steps": 4}})
        wanted.append({"name": "everything__get-tiny-image", "arguments": {}})
        request = {"protocol": mode, "wait": ONE_OF_EACH, "calls": wanted}
        if transport == "http":
            with Gateway(folder, servers) as gateway:
                answer = typescript_client(folder, {**request, "url": gateway.url})
        else:
            parameters = stdio_gateway(folder, servers).model_dump(include={"command", "args", "env", "cwd"})
            answer = typescript_client(folder, {**request, **parameters, "cwd": str(folder)})
        judge_version(mode, answer["negotiated"])
        *results, operation, image = answer["results"]
        judge([(result["ok"], result["text"]) for result in results], folder)
        assert operation["ok"] and operation["progress"] >= 3, operation
        assert "image" in image["content"], image
