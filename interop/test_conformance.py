"""The official conformance suite against `/mcp/conformance`: one fully conforming server behind the gateway,
passed through under its raw names. Everything that a revision requires has to pass, as the suite's own lists
have it, whatever the server is written with and however it is reached."""

import contextlib
import json
import os
import re
import socket
import subprocess

from harness import CONFORMANCE_FIXTURE, EVERYTHING_SERVER, NODE, NODE_MODULES, VENV_BIN, Gateway, Process, cases
from harness import environment, python_client, tools_with, workspace

PACKAGE = NODE_MODULES / "@modelcontextprotocol/conformance"
SUITE = PACKAGE / "dist/index.js"
SUITE_TIMEOUT = 280
REVISIONS = ("2025-11-25", "2026-07-28")

# What no gateway can pass on from a server that only speaks 2025-11-25, as that revision does not say it: the
# keys of questions, several questions at once, and that a tool needs a capability before it asks for it.
BEYOND_LEGACY = (
    "input-required-result-basic-elicitation",
    "input-required-result-multiple-input-requests",
    "server-stateless",
)


def fixture(*arguments):
    """Our own fixture on stdio."""

    @contextlib.contextmanager
    def upstream(_folder):
        yield {"command": str(CONFORMANCE_FIXTURE), "args": list(arguments)}

    return upstream


def http_fixture(*arguments):
    """Our own fixture on HTTP."""

    @contextlib.contextmanager
    def upstream(_folder):
        command = [CONFORMANCE_FIXTURE, "--http", "0", *arguments]
        with Process(command, r"conformance-fixture: ready (http://\S+)") as process:
            yield {"url": process.ready[1]}

    return upstream


@contextlib.contextmanager
def python_http(folder):
    """The conformance server of the Python SDK on HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [VENV_BIN / "python", "-m", "mcp_everything_server", "--port", str(port)]
    env = environment(folder, PYTHONPATH=str(EVERYTHING_SERVER))
    with Process(command, r"Uvicorn running on", env):
        yield {"url": f"http://127.0.0.1:{port}/mcp"}


@contextlib.contextmanager
def python_stdio(_folder):
    """The same on stdio."""
    run = "from mcp_everything_server.server import mcp; mcp.run()"
    yield {
        "command": str(VENV_BIN / "python"), "args": ["-c", run], "env": {"PYTHONPATH": str(EVERYTHING_SERVER)},
    }


UPSTREAMS = {
    "fixture on stdio": fixture(),
    "fixture on http": http_fixture(),
    "fixture on stdio, 2025-11-25 only": fixture("--legacy"),
    "fixture on http, 2025-11-25 only": http_fixture("--legacy"),
    "python sdk on stdio": python_stdio,
    "python sdk on http": python_http,
}


def required(revision):
    """The scenarios in the suite's own list of what a server of this revision must pass."""
    names, section = [], None
    for line in (PACKAGE / f"requirements/{revision}.yaml").read_text().splitlines():
        if heading := re.fullmatch(r"(\w+):", line):
            section = heading[1]
        elif section == "server" and (item := re.fullmatch(r"  - (\S+)", line)):
            names.append(item[1])
    assert len(names) >= 30, f"the list of {revision} is not read well: {names}"
    return names


def read_results(folder):
    """{scenario: [checks]} of the folders that the suite leaves, one a scenario."""
    results = {}
    for path in sorted(folder.glob("server-*/checks.json")):
        scenario = re.fullmatch(r"server-(.+?)-\d{4}-\d\d-\d\dT.*", path.parent.name)[1]
        results[scenario] = json.loads(path.read_text())
    return results


def verdict(checks):
    """`pass` only if something was checked and nothing failed: a skipped scenario is no pass."""
    statuses = [check["status"] for check in checks]
    if "FAILURE" in statuses:
        return "fail"
    return "pass" if "SUCCESS" in statuses else "skipped"


async def reach_passthrough(url):
    """Waits until the upstream is there, and sees that it really answers: some scenarios would take an
    unknown tool's error text for an answer."""
    async with python_client(url) as client:
        await tools_with(client, "test_simple_text", "json_schema_2020_12_tool")
        result = await client.call_tool("test_simple_text", {})
        assert not result.is_error and result.content[0].text == "This is a simple text response for testing.", result


def run_suite(url, revision, folder):
    command = [NODE, SUITE, "server", "--url", url, "--requirements", revision, "-o", folder / "results"]
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=SUITE_TIMEOUT, cwd=folder,
        env={**os.environ, "NO_COLOR": "1"}, stdin=subprocess.DEVNULL,
    )
    results = read_results(folder / "results")
    assert results, f"the suite left no results:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return results


def judge(results, revision, excused=()):
    """Every required scenario that did not pass, at once; what is not required is told."""
    wrong, counted = [], 0
    for scenario in required(revision):
        checks = results.get(scenario, [])
        counted += sum(check["status"] == "SUCCESS" for check in checks)
        if scenario in excused:
            continue
        if not checks:
            wrong.append(f"{scenario}: was not run")
        elif (judged := verdict(checks)) != "pass":
            wrong.append(f"{scenario}: {judged}")
            failures = [check for check in checks if check["status"] not in ("SUCCESS", "INFO")]
            wrong += [f"  {check['id']} {check['status']}: {check.get('errorMessage', '')}" for check in failures]
    others = {scenario: verdict(checks) for scenario, checks in results.items() if scenario not in required(revision)}
    print(f"      {len(required(revision))} scenarios are required for {revision}, {counted} checks of theirs passed")
    for judged in ("pass", "skipped", "fail"):
        names = [scenario for scenario, other in others.items() if other == judged]
        print(f"      not required, {judged} ({len(names)}): {', '.join(names) or '-'}")
    assert not wrong, "\n".join(wrong)


# The suite leaves questions unanswered. On one pipe a server of 2025-11-25 does not say which call its next question
# belongs to, and one that could belong to several is refused.
UNTOLD = (REVISIONS[1], "fixture on stdio, 2025-11-25 only")


@cases(*[case for upstream in UPSTREAMS for revision in REVISIONS if (case := (revision, upstream)) != UNTOLD])
async def test_requirements(revision, upstream):
    excused = BEYOND_LEGACY if revision == REVISIONS[1] and "2025-11-25 only" in upstream else ()
    with workspace() as folder, UPSTREAMS[upstream](folder) as server:
        with Gateway(folder, {"conformance": server}) as served:
            url = f"{served.url}/conformance"
            await reach_passthrough(url)
            judge(run_suite(url, revision, folder), revision, excused)


@cases(*[(revision,) for revision in REVISIONS])
def test_the_fixture_itself(revision):
    """Without the gateway: what fails above is the gateway's."""
    with workspace() as folder, http_fixture()(folder) as server:
        judge(run_suite(server["url"], revision, folder), revision)
