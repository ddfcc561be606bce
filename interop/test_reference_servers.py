"""Every tool of the reference servers through the gateway, with arguments that are right and with arguments
that are broken; and every server pulled away in every way while the others go on serving."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time

from harness import CALL_TIMEOUT, HERE, MISBEHAVING, TOOLWRIGHT, Gateway, cases, configure, environment, eventually
from harness import obliging, outcome, python_client, real_servers, tools_with, workspace

# What a call to a healthy server may take beside a sick one: no waiting for the sick one's time limit.
PROMPT = 5


def valid_calls(folder):
    """{tool: [(arguments, a part of the text)]}; the calls of one server build on each other."""
    files, repository = folder / "files", folder / "repository"
    path = lambda name: str(files / name)
    here = {"repo_path": str(repository)}
    ada = {"name": "Ada", "entityType": "person", "observations": ["wrote programs"]}
    knows = {"from": "Ada", "to": "Bob", "relationType": "knows"}
    noon = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    return {
        "everything__echo": [({"message": "hello"}, "hello")],
        "everything__get-annotated-message": [({"messageType": "error", "includeImage": True}, "Error")],
        "everything__get-env": [({}, "PATH")],
        "everything__get-resource-links": [({"count": 2}, "resource")],
        "everything__get-resource-reference": [({"resourceType": "Blob", "resourceId": 2}, "")],
        "everything__get-structured-content": [({"location": "Chicago"}, "temperature")],
        "everything__get-sum": [({"a": 19, "b": 23}, "42")],
        "everything__get-tiny-image": [({}, "image")],
        "everything__gzip-file-as-resource": [
            ({"name": "a.gz", "data": "data:text/plain;base64,aGVsbG8=", "outputType": "resource"}, ""),
        ],
        "everything__toggle-simulated-logging": [({}, "tarted"), ({}, "topped")],
        "everything__toggle-subscriber-updates": [({}, "tarted"), ({}, "topped")],
        "everything__trigger-long-running-operation": [({"duration": 1, "steps": 2}, "completed")],
        "everything__simulate-research-query": [({"topic": "lace"}, "lace")],
        "everything__get-roots-list": [({}, "roots/of/the/client")],
        "everything__trigger-elicitation-request": [({}, "User provided the requested information")],
        "everything__trigger-url-elicitation": [({"url": "https://example.org/consent"}, "completed the URL")],
        "everything__trigger-sampling-request": [({"prompt": "Say something"}, "sampled by the client")],
        "filesystem__write_file": [({"path": path("new.txt"), "content": "one\ntwo\nthree\n"}, "new.txt")],
        "filesystem__read_file": [({"path": path("new.txt")}, "two")],
        "filesystem__read_text_file": [({"path": path("new.txt"), "tail": 2}, "three")],
        "filesystem__read_media_file": [({"path": path("dot.png")}, "")],
        "filesystem__read_multiple_files": [({"paths": [path("new.txt"), path("hello.txt")]}, "real file")],
        "filesystem__edit_file": [
            ({"path": path("new.txt"), "edits": [{"oldText": "two", "newText": "2"}], "dryRun": True}, "+2"),
            ({"path": path("new.txt"), "edits": [{"oldText": "two", "newText": "2"}]}, "+2"),
        ],
        "filesystem__create_directory": [({"path": path("sub/deep")}, "deep")],
        "filesystem__list_directory": [({"path": str(files)}, "hello.txt")],
        "filesystem__list_directory_with_sizes": [({"path": str(files), "sortBy": "size"}, "hello.txt")],
        "filesystem__directory_tree": [({"path": str(files), "excludePatterns": ["*.png"]}, "deep")],
        "filesystem__move_file": [({"source": path("new.txt"), "destination": path("sub/moved.txt")}, "moved.txt")],
        "filesystem__search_files": [({"path": str(files), "pattern": "**/moved*"}, "moved.txt")],
        "filesystem__get_file_info": [({"path": path("sub/moved.txt")}, "size")],
        "filesystem__list_allowed_directories": [({}, str(files))],
        "graph__create_entities": [({"entities": [ada, {**ada, "name": "Bob"}]}, "Ada")],
        "graph__create_relations": [({"relations": [knows]}, "knows")],
        "graph__add_observations": [
            ({"observations": [{"entityName": "Ada", "contents": ["likes lace"]}]}, "likes lace"),
        ],
        "graph__search_nodes": [({"query": "lace"}, "Ada")],
        "graph__open_nodes": [({"names": ["Ada", "Bob"]}, "knows")],
        "graph__read_graph": [({}, "likes lace")],
        "graph__delete_observations": [
            ({"deletions": [{"entityName": "Ada", "observations": ["likes lace"]}]}, ""),
        ],
        "graph__delete_relations": [({"relations": [knows]}, "")],
        "graph__delete_entities": [({"entityNames": ["Ada", "Bob"]}, "")],
        "git__git_status": [(here, "note.txt")],
        "git__git_add": [({**here, "files": ["note.txt"]}, "")],
        "git__git_diff_staged": [({**here, "context_lines": 1}, "a note")],
        "git__git_commit": [({**here, "message": "second commit"}, "")],
        "git__git_log": [({**here, "max_count": 1}, "second commit")],
        "git__git_show": [({**here, "revision": "HEAD"}, "a note")],
        "git__git_diff": [({**here, "target": "HEAD~1"}, "a note")],
        "git__git_diff_unstaged": [(here, "")],
        "git__git_reset": [(here, "")],
        "git__git_create_branch": [({**here, "branch_name": "side"}, "side")],
        "git__git_checkout": [({**here, "branch_name": "side"}, "side")],
        "git__git_branch": [({**here, "branch_type": "local"}, "side")],
        "time__get_current_time": [({"timezone": "UTC"}, "UTC")],
        "time__convert_time": [(noon, "21:00")],
    }


def furnish(folder):
    """The reference servers, and what their tools work on."""
    servers = real_servers(folder)
    (folder / "repository/note.txt").write_text("a note\n")
    with open(folder / "repository/.git/config", "a") as config:
        config.write("[user]\n\tname = Interop\n\temail = interop@example.org\n[commit]\n\tgpgsign = false\n")
    pixel = "89504e470d0a1a0a0000000d494844520000000100000001080200000090775"
    (folder / "files/dot.png").write_bytes(bytes.fromhex(pixel + "3de"))
    return servers


async def shown(client, tool, arguments):
    """(ok, all that the result says): the text, and the rest as it came."""
    from mcp import MCPError

    try:
        result = await asyncio.wait_for(client.call_tool(tool, arguments), CALL_TIMEOUT)
    except (MCPError, RuntimeError) as error:
        return False, str(error)
    texts = [getattr(block, "text", "") for block in result.content]
    return not result.is_error, "\n".join([*texts, result.model_dump_json()])


@cases(("legacy",), ("auto",))
async def test_every_tool_with_valid_arguments(mode):
    with workspace() as folder, Gateway(folder, furnish(folder)) as gateway:
        calls, wrong = valid_calls(folder), []
        async with python_client(gateway.url, mode, **obliging()) as client:
            tools = await tools_with(client, *(tool for tool in calls))
            strange = sorted(tools.keys() - calls.keys())
            strange = [tool for tool in strange if tool.split("__")[0] in ("everything", "filesystem", "graph", "git", "time")]
            assert not strange, f"no arguments are known for {strange}"
            for tool, variants in calls.items():
                for arguments, part in variants:
                    ok, text = await shown(client, tool, arguments)
                    if not ok or part not in text:
                        wrong.append(f"{tool} {json.dumps(arguments)}: ok={ok}, {text[:300]!r}")
        assert not wrong, "\n".join(wrong)


def broken_arguments(schema, valid):
    """Valid arguments with one thing wrong: a required one missing, one of the wrong type, one beyond its enum."""
    # None of these can be read as a value of the type, however kindly.
    misfits = {
        "string": {"of": "no use"}, "number": "many", "integer": "many", "boolean": "perhaps",
        "array": {"of": {"no": "use"}}, "object": "plain",
    }
    for name in schema.get("required", []):
        yield f"without {name}", {key: value for key, value in valid.items() if key != name}
    for name, field in schema.get("properties", {}).items():
        kind = field.get("type") or next((kind["type"] for kind in field.get("anyOf", []) if "type" in kind), None)
        if kind in misfits:
            yield f"wrong type of {name}", {**valid, name: misfits[kind]}
        if "enum" in field:
            yield f"impossible {name}", {**valid, name: "xyzzy"}


async def test_every_tool_with_broken_arguments():
    """Each is an error that says something, soon, and the server is none the worse."""
    with workspace() as folder, Gateway(folder, furnish(folder)) as gateway:
        calls, wrong, count = valid_calls(folder), [], 0
        async with python_client(gateway.url, **obliging()) as client:
            tools = await tools_with(client, *PROBES)
            for name in calls:
                if name not in tools:
                    continue
                for what, arguments in broken_arguments(tools[name].input_schema, calls[name][0][0]):
                    count += 1
                    start = time.monotonic()
                    ok, text = await shown(client, name, arguments)
                    if ok or len(text.strip()) < 10 or time.monotonic() - start > PROMPT:
                        wrong.append(f"{name} {what}: ok={ok} after {time.monotonic() - start:.1f} s, {text[:200]!r}")
            for name, (arguments, part) in PROBES.items():
                ok, text = await shown(client, name, probe(folder, arguments))
                if not ok or part not in text:
                    wrong.append(f"{name} afterwards: ok={ok}, {text[:200]!r}")
        print(f"      {count} broken calls")
        assert count > 80 and not wrong, "\n".join(wrong)


# One harmless call a server.
PROBES = {
    "everything__echo": ({"message": "still here"}, "still here"),
    "filesystem__list_allowed_directories": ({}, "files"),
    "graph__read_graph": ({}, "entities"),
    "git__git_status": ({"repo_path": "repository"}, "branch"),
    "time__get_current_time": ({"timezone": "UTC"}, "UTC"),
}


def probe(folder, arguments):
    return {key: str(folder / value) if key == "repo_path" else value for key, value in arguments.items()}


async def pulse(client, folder, tools, stop, wrong):
    """Calls these tools over and over; every one has to succeed, soon."""
    beats = 0
    while not stop.is_set():
        for tool in tools:
            arguments, part = PROBES[tool]
            start = time.monotonic()
            ok, text = await shown(client, tool, probe(folder, arguments))
            took = time.monotonic() - start
            if not ok or part not in text or took > PROMPT:
                wrong.append(f"{tool}: ok={ok} after {took:.1f} s, {text[:300]!r}")
        beats += 1
        await asyncio.sleep(0.05)
    return beats


@cases(("kill",), ("hang",), ("garbage",), ("half",), ("flood",))
async def test_pulled_away(way):
    """Each server in turn, while the other four serve without an error; and it comes back."""
    with workspace() as folder:
        servers, fifos = furnish(folder), {}
        for name, server in servers.items():
            fifos[name] = folder / f"{name}.fifo"
            os.mkfifo(fifos[name])
            command = [str(HERE / "relay.py"), str(fifos[name]), server["command"], *server.get("args", [])]
            servers[name] = {**server, "command": sys.executable, "args": command, "request_timeout": "4s"}
        with Gateway(folder, servers) as gateway:
            async with python_client(gateway.url) as client:
                await tools_with(client, *PROBES)
                for name in servers:
                    await pull(client, folder, name, fifos[name], way)


async def pull(client, folder, name, fifo, way):
    mine = next(tool for tool in PROBES if tool.startswith(f"{name}__"))
    stop, wrong = asyncio.Event(), []
    others = asyncio.create_task(pulse(client, folder, [tool for tool in PROBES if tool != mine], stop, wrong))
    with open(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK), "w") as orders:
        orders.write(f"{way}\n")
    await asyncio.sleep(0.2)
    arguments, part = PROBES[mine]
    # Whatever becomes of this one, it is answered.
    await shown(client, mine, probe(folder, arguments))

    async def back():
        ok, text = await shown(client, mine, probe(folder, arguments))
        return ok and part in text

    await eventually(back, f"{name} is back", CALL_TIMEOUT)
    stop.set()
    assert await others > 0 and not wrong, f"beside {name}:\n" + "\n".join(wrong[:10])


# What a request that asks all servers may take while one of them is silent: two seconds for that one.
PATIENT = 4


@cases(("legacy",), ("auto",))
async def test_a_silent_server_delays_no_other_lists(mode):
    """What it listed before stays in the lists. Its limit is longer than anybody waits here; it comes back by itself."""
    with workspace() as folder:
        everything = furnish(folder)["everything"]
        os.mkfifo(folder / "bad.fifo")
        command = [str(HERE / "relay.py"), str(folder / "bad.fifo"), everything["command"], *everything.get("args", [])]
        # The first of two keeps the usual addresses of resources that both have.
        silent = {**everything, "command": sys.executable, "args": command, "request_timeout": "20s"}
        with Gateway(folder, {"good": everything, "silent": silent}) as gateway:
            async with python_client(gateway.url, mode, **obliging()) as client:
                await tools_with(client, "good__echo", "silent__echo")
                with open(os.open(folder / "bad.fifo", os.O_WRONLY | os.O_NONBLOCK), "w") as orders:
                    orders.write("hang\n")
                await asyncio.sleep(0.2)
                took = {}

                async def timed(what, request):
                    start = time.monotonic()
                    answer = await asyncio.wait_for(request, CALL_TIMEOUT)
                    took[what] = time.monotonic() - start
                    return answer

                prompts = (await timed("prompts", client.list_prompts())).prompts
                good = [prompt for prompt in prompts if prompt.name.startswith("good__")]
                assert len(prompts) == 2 * len(good), prompts
                plain = next(prompt for prompt in good if not prompt.arguments)
                assert (await timed("a prompt", client.get_prompt(plain.name))).messages
                resources = (await timed("resources", client.list_resources())).resources
                assert resources and "silent" not in str(resources[0].uri)
                assert (await timed("a resource", client.read_resource(resources[0].uri))).contents
                # Of no list, so that it is found by its template.
                text = "demo://resource/dynamic/text/1"
                assert (await timed("a template", client.read_resource(text))).contents
                if mode == "legacy":
                    await timed("the log level", client.set_logging_level("error"))
                    assert took.pop("the log level") < PATIENT, took
                assert max(took.values()) < 1, took
                ok = lambda: outcome(client, "silent__echo", {"message": "back"})

                async def back():
                    try:
                        return (await asyncio.wait_for(ok(), 2))[0]
                    except TimeoutError:
                        return False

                await eventually(back, "the silent server is started anew", CALL_TIMEOUT)


@contextlib.contextmanager
def misbehaving(way):
    """The entry of a server that is reached this way."""
    if way == "stdio":
        yield {"command": str(MISBEHAVING)}
        return
    server = subprocess.Popen([MISBEHAVING, "--http", "0"], stderr=subprocess.PIPE, text=True)
    try:
        ready = next(line for line in server.stderr if ": ready " in line)
        yield {"url": ready.split(": ready ")[1].strip()}
    finally:
        server.kill()
        server.wait()


@cases(("stdio", 18 << 20), ("stdio", 100_000_000), ("http", 18 << 20))
async def test_an_oversized_answer_fails_at_once(way, size):
    """It is dropped, its call does not wait for a time limit, and other calls in flight go on."""
    with misbehaving(way) as bad, workspace() as folder:
        servers = {"bad": {**bad, "request_timeout": "60s"}, "good": {"command": str(MISBEHAVING)}}
        with Gateway(folder, servers) as gateway:
            async with python_client(gateway.url) as client:
                await tools_with(client, "bad__huge_line", "bad__slow", "good__echo")
                slow = [asyncio.create_task(outcome(client, "bad__slow", {"ms": 4000})) for _ in range(8)]
                await asyncio.sleep(0.5)
                start = time.monotonic()
                ok, text = await outcome(client, "bad__huge_line", {"bytes": size})
                took = time.monotonic() - start
                assert not ok and "message over max_message_bytes" in text, text[:500]
                assert took < 15, f"it took {took:.1f} s"
                came = await asyncio.gather(*slow)
                assert came == [(True, "done at last")] * len(slow), came
                for tool in ("good__echo", "bad__echo"):
                    assert await outcome(client, tool, {"text": "still here"}) == (True, "still here")


def test_an_operator_is_told_the_kind_of_failure():
    with workspace() as folder:
        config = configure(folder, {"bad": {"command": str(MISBEHAVING), "request_timeout": "60s"}})
        command = [TOOLWRIGHT, "call", "bad__huge_line", json.dumps({"bytes": 18 << 20}), "--json", "--config", config]
        done = subprocess.run(
            [str(part) for part in command], env=environment(folder), cwd=folder, capture_output=True, text=True,
            timeout=CALL_TIMEOUT,
        )
        error = json.loads(done.stdout)["error"]
        assert error["kind"] == "transport_error" and "message over max_message_bytes" in error["message"], error
