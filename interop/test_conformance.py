"""The official conformance suite against `/mcp/conformance`: one server, passed through under its raw names."""

import json
import os
import re
import subprocess

from harness import CONFORMANCE_FIXTURE, NODE, NODE_MODULES, Gateway, cases, python_client, tools_with, workspace

SUITE = NODE_MODULES / "@modelcontextprotocol/conformance/dist/index.js"
BOTH = (
    "tools-list", "tools-call-simple-text", "tools-call-image", "tools-call-audio", "tools-call-embedded-resource",
    "tools-call-mixed-content", "tools-call-error", "tools-call-with-progress", "server-sse-multiple-streams",
    "dns-rebinding-protection",
)
REQUIRED = {
    "2025-11-25": ("server-initialize", "ping", *BOTH),
    "2026-07-28": ("server-stateless", *BOTH),
}
SUITE_TIMEOUT = 600


def gateway(folder):
    return Gateway(folder, {"conformance": {"command": str(CONFORMANCE_FIXTURE)}})


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
    """Waits until the fixture is there, and sees that it really answers: some scenarios would take an
    unknown tool's error text for an answer."""
    async with python_client(url) as client:
        await tools_with(client, "test_simple_text", "json_schema_2020_12_tool")
        result = await client.call_tool("test_simple_text", {})
        assert not result.is_error and result.content[0].text == "This is a simple text response for testing.", result


@cases(("2025-11-25",), ("2026-07-28",))
async def test_requirements(revision):
    with workspace() as folder, gateway(folder) as served:
        url = f"{served.url}/conformance"
        await reach_passthrough(url)
        command = [NODE, SUITE, "server", "--url", url, "--requirements", revision, "-o", folder / "results"]
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=SUITE_TIMEOUT, cwd=folder,
            env={**os.environ, "NO_COLOR": "1"}, stdin=subprocess.DEVNULL,
        )
        results = read_results(folder / "results")
        assert results, f"the suite left no results:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"

    required, wrong = REQUIRED[revision], []
    for scenario in required:
        if scenario not in results:
            wrong.append(f"{scenario}: was not run")
        elif (judged := verdict(results[scenario])) != "pass":
            failures = [check for check in results[scenario] if check["status"] != "SUCCESS"]
            wrong.append(f"{scenario}: {judged}")
            wrong += [f"  {check['id']} {check['status']}: {check.get('errorMessage', '')}" for check in failures]
    others = {scenario: verdict(checks) for scenario, checks in results.items() if scenario not in required}
    for judged in ("pass", "skipped", "fail"):
        names = [scenario for scenario, other in others.items() if other == judged]
        print(f"      not required for {revision}, {judged} ({len(names)}): {', '.join(names) or '-'}")
    assert not wrong, "\n".join(wrong)
