"""Servers that misbehave in every way we know, beside servers that do not: the others stay usable, and
the bad one comes back where it can."""

import asyncio
import time

from harness import CALL_TIMEOUT, MISBEHAVING, Gateway, all_tools, cases, eventually, outcome, python_client, tools_with
from harness import workspace

# What a call to a healthy server may take beside a sick one: no waiting for the sick one's time limit.
PROMPT = 5


async def assert_prompt(client, tool="good__echo"):
    start = time.monotonic()
    ok, text = await asyncio.wait_for(outcome(client, tool, {"text": "still here"}), CALL_TIMEOUT)
    assert ok and text == "still here", text
    assert time.monotonic() - start < PROMPT, f"{tool} took {time.monotonic() - start:.1f} s"


def pair(folder, **bad):
    """One server that is going to misbehave, one that is not."""
    counter = ["--counter", str(folder / "counter")]
    return {
        "bad": {"command": str(MISBEHAVING), "args": counter, "request_timeout": "3s", **bad},
        "good": {"command": str(MISBEHAVING)},
    }


# tool, arguments, whether the call succeeds (None: either way, as long as it is answered)
CALLS = (
    ("die", {}, False),
    ("hang", {}, False),
    ("ignore_cancel", {"ms": 8000}, False),
    ("flood", {"bytes": 4 << 20}, True),
    ("huge_line", {"bytes": 17 << 20}, None),
    # One of its lines is a broken message, which may be the answer.
    ("garbage", {}, False),
    ("stderr_flood", {"bytes": 8 << 20}, True),
    ("lie", {}, None),
    ("uncompilable", {"text": "anything"}, True),
)


@cases(*CALLS)
async def test_a_bad_call(tool, arguments, expected):
    with workspace() as folder, Gateway(folder, pair(folder)) as gateway:
        async with python_client(gateway.url) as client:
            await tools_with(client, "good__echo", f"bad__{tool}")
            call = asyncio.create_task(outcome(client, f"bad__{tool}", arguments))
            await asyncio.sleep(0.3)
            await assert_prompt(client)
            ok, text = await asyncio.wait_for(call, CALL_TIMEOUT)
            assert expected is None or ok == expected, f"ok={ok}: {text[:500]}"
            assert len(text) < 1 << 16, f"{len(text)} characters came through"
            await assert_prompt(client)

            async def back():
                return (await outcome(client, "bad__echo", {"text": "back"})) == (True, "back")

            await eventually(back, "the bad server is usable again", CALL_TIMEOUT)


async def test_a_changed_list_arrives():
    with workspace() as folder, Gateway(folder, pair(folder)) as gateway:
        async with python_client(gateway.url) as client:
            await tools_with(client, "good__echo", "bad__change_list")
            assert (await outcome(client, "bad__change_list", {}))[0]
            await tools_with(client, "bad__added_1")
            assert await outcome(client, "bad__added_1", {}) == (True, "added_1")


@cases(("die",), ("hang",))
async def test_an_ambiguous_call_is_never_repeated(then):
    """The side effect happened, the answer never came: nobody may try again on its own."""
    with workspace() as folder, Gateway(folder, pair(folder)) as gateway:
        async with python_client(gateway.url) as client:
            await tools_with(client, "bad__counter")
            ok, _ = await outcome(client, "bad__counter", {"label": then, "then": then})
            assert not ok

            async def back():
                return (await outcome(client, "bad__counter", {"label": "after"}))[0]

            await eventually(back, "the bad server is usable again", CALL_TIMEOUT)
        labels = [line.split()[1] for line in (folder / "counter").read_text().splitlines()]
        assert labels == [then, "after"], labels


async def test_a_client_that_gives_up_cancels_upstream():
    with workspace() as folder, Gateway(folder, pair(folder, request_timeout="60s")) as gateway:
        async with python_client(gateway.url) as client:
            await tools_with(client, "bad__observe_cancel")
            call = asyncio.create_task(outcome(client, "bad__observe_cancel", {"ms": 50_000}))
            await asyncio.sleep(1)
            call.cancel()

            async def noted():
                _, text = await outcome(client, "bad__cancelled_ids", {})
                return text not in ("", "[]")

            await eventually(noted, "the server hears of the cancel")
            await assert_prompt(client)


async def test_bad_starts_beside_a_good_server():
    """Each server starts wrong in its own way; what can be had of it is had."""
    server = lambda *args: {"command": str(MISBEHAVING), "args": list(args)}
    with workspace() as folder:
        servers = {
            "sleeper": server("--slow-start", "20000"),
            "crasher": server("--exit-at-once", "1"),
            "gone": server("--die-after-list"),
            "absent": {"command": str(folder / "no-such-command")},
            "unset": {"command": str(MISBEHAVING), "env": {"KEY": "${TOOLWRIGHT_INTEROP_UNSET_VARIABLE}"}},
            "unreachable": {"url": "http://127.0.0.1:9/mcp"},
            "mute": server("--silent-discover"),
            "twice": server("--dup-names"),
            "malformed": server("--bad-tool"),
            "crowd": server("--many", "500"),
            "modern": server("--modern"),
            "good": server(),
        }
        with Gateway(folder, servers) as gateway:
            async with python_client(gateway.url) as client:
                await tools_with(client, "good__echo")
                await assert_prompt(client)
                assert "sleeper__echo" not in await all_tools(client), "nothing waits for the slowest"
                for name in ("mute", "twice", "malformed", "crowd", "modern"):
                    await tools_with(client, f"{name}__echo")
                    await assert_prompt(client, f"{name}__echo")
                tools = await tools_with(client, "crowd__many_0500", "sleeper__echo")
                hopeless = ("crasher__", "absent__", "unset__", "unreachable__")
                assert not [name for name in tools if name.startswith(hopeless)]
                await assert_prompt(client)
