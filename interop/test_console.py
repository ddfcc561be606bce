"""The web console in Debian's Chromium: every page in both themes and two widths, approvals by keyboard, and two tabs."""

import json
import os
import pathlib
import shutil
import subprocess
import urllib.parse

from harness import CALL_TIMEOUT, HERE, NODE, PEERS, TOOLWRIGHT, Gateway, environment, workspace

TOKEN = "console-token"


def demo(name):
    return {"command": str(TOOLWRIGHT), "args": ["demo-server", name]}


def test_every_page_works_in_a_browser():
    policy = {"profile": "client", "rules": [{"tool": "weather:forecast", "effect": "ask"}]}
    with workspace() as folder:
        servers = {"weather": demo("weather"), "notes": demo("notes"), "shop": demo("shop")}
        with Gateway(folder, servers, server={"token": TOKEN}, policy=policy) as gateway:
            parts = urllib.parse.urlsplit(gateway.url)
            url = f"{parts.scheme}://{parts.netloc}"
            config = ["--config", str(folder / "toolwright.yaml")]
            command = [str(TOOLWRIGHT), *config, "console", "--http", parts.netloc, "--print"]
            made = subprocess.run(command, env=environment(folder), cwd=folder, capture_output=True, text=True, timeout=CALL_TIMEOUT)
            assert made.returncode == 0, made.stderr
            script = shutil.copy(HERE / "console.mjs", PEERS / "node/console.mjs")
            request = {"link": made.stdout.strip(), "url": url, "token": TOKEN, "assets": os.environ.get("CONSOLE_ASSETS"), "screens": os.environ.get("CONSOLE_SCREENS")}
            done = subprocess.run(
                [str(NODE), script], input=json.dumps(request), env=environment(folder), capture_output=True, text=True,
                timeout=4 * CALL_TIMEOUT,
            )
            assert done.returncode == 0, done.stderr[-3000:]
            seen = json.loads(done.stdout)
            # In one line, as the end of the suite's output repeats it.
            assert not seen["problems"], " | ".join(" ".join(problem.split()) for problem in seen["problems"])
