"""The official conformance suite against our MCP client: `conformance-client`, a small program over the client that
the gateway uses, is started by the suite once a scenario and has to do there what the specification says."""

import json
import os
import re
import subprocess

from harness import BINARIES, NODE, NODE_MODULES, cases, workspace

CONFORMANCE = NODE_MODULES / "@modelcontextprotocol/conformance"
CLIENT = BINARIES / "conformance-client"
REVISION_TIMEOUT = 280
# Beyond what the suite requires: extensions that we speak, and what came after the release.
HELD = (
    "auth/client-credentials-jwt", "auth/client-credentials-basic", "auth/enterprise-managed-authorization",
    "auth/wif-jwt-bearer", "json-schema-2020-12-preservation",
)


def requirements(revision):
    """The scenarios that the suite's own list has for clients: the items of its block `client:`."""
    text = (CONFORMANCE / f"requirements/{revision}.yaml").read_text()
    block = re.search(r"^client:\n((?:  - .*\n)+)", text, re.MULTILINE)
    return re.findall(r"  - (\S+)", block[1])


def read_results(folder):
    """{scenario: [checks]} of the folders that the suite leaves, one a scenario."""
    results = {}
    for path in sorted(folder.glob("**/checks.json")):
        name = str(path.parent.relative_to(folder))
        scenario = re.fullmatch(r"(?:client-)?(.+?)-\d{4}-\d\d-\d\dT.*", name)[1]
        results[scenario] = json.loads(path.read_text())
    return results


def verdict(checks):
    """As the suite has it: a warning is no pass, and neither is a scenario that checked nothing."""
    statuses = {check["status"] for check in checks}
    if statuses & {"FAILURE", "WARNING"}:
        return "fail"
    return "pass" if "SUCCESS" in statuses else "skipped"


@cases(("2025-11-25",), ("2026-07-28",))
def test_requirements(revision):
    required = (*requirements(revision), *HELD)
    with workspace() as folder:
        command = [NODE, CONFORMANCE / "dist/index.js", "client", "--command", CLIENT]
        command += ["--requirements", revision, "-o", folder / "results"]
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=REVISION_TIMEOUT, cwd=folder,
            env={**os.environ, "NO_COLOR": "1"}, stdin=subprocess.DEVNULL,
        )
        results = read_results(folder / "results")
        assert results, f"the suite left no results:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"

    wrong = []
    for scenario in required:
        if scenario not in results:
            wrong.append(f"{scenario}: was not run")
        elif (judged := verdict(results[scenario])) != "pass":
            wrong.append(f"{scenario}: {judged}")
            failures = [check for check in results[scenario] if check["status"] in ("FAILURE", "WARNING")]
            wrong += [f"  {check['id']} {check['status']}: {check.get('errorMessage', '')}" for check in failures]
    others = {scenario: verdict(checks) for scenario, checks in results.items() if scenario not in required}
    for judged in ("pass", "skipped", "fail"):
        names = [scenario for scenario, other in others.items() if other == judged]
        print(f"      not required for {revision}, {judged} ({len(names)}): {', '.join(names) or '-'}")
    assert not wrong, "\n".join(wrong)
