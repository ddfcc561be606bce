"""The web console in Debian's Chromium: every page in both themes and two widths, approvals by keyboard, and two tabs."""

import json
import os
import pathlib
import subprocess
import urllib.parse

from harness import CALL_TIMEOUT, NODE, NODE_MODULES, TOOLWRIGHT, Gateway, beside_packages, environment, workspace

TOKEN = "console-token"


def demo(name):
    return {"command": str(TOOLWRIGHT), "args": ["demo-server", name]}


def test_every_page_works_in_a_browser():
    rules = [{"tool": "weather:forecast", "effect": "ask"}, {"tool": "fs:write", "effect": "ask"}]
    policy = {"profile": "client", "rules": rules}
    tokens = {"eye": {"token": "reader-token", "views": [], "api": "read"}}
    with workspace() as folder:
        everything = str(NODE_MODULES / "@modelcontextprotocol/server-everything/dist/index.js")
        forms = {"command": str(NODE), "args": [everything, "stdio"], "tools_allowed": ["trigger-elicitation-request"]}
        servers = {"weather": demo("weather"), "notes": demo("notes"), "shop": demo("shop"), "everything": forms}
        (folder / "hello.txt").write_text("hello\nworld\n")
        sections = {"server": {"token": TOKEN, "tokens": tokens}, "policy": policy, "pins": {"first_use": "ask"}}
        with Gateway(folder, servers, ["--ask", "inbox"], **sections) as gateway:
            parts = urllib.parse.urlsplit(gateway.url)

            def link(*token):
                config = ["--config", str(folder / "toolwright.yaml")]
                command = [str(TOOLWRIGHT), *config, "console", "--http", parts.netloc, "--print", *token]
                options = {"env": environment(folder), "cwd": folder, "timeout": CALL_TIMEOUT}
                made = subprocess.run(command, capture_output=True, text=True, **options)
                assert made.returncode == 0, made.stderr
                return made.stdout.strip()

            request = {
                "link": link(), "url": f"{parts.scheme}://{parts.netloc}", "token": TOKEN,
                "reader": {"token": "reader-token", "link": link("--token", "reader-token")},
                "demo": [str(TOOLWRIGHT), "demo"],
                # For whoever works on the pages.
                "screens": os.environ.get("CONSOLE_SCREENS"), "assets": os.environ.get("CONSOLE_ASSETS"),
            }
            done = subprocess.run(
                [str(NODE), beside_packages("console.mjs")], input=json.dumps(request), env=environment(folder), capture_output=True, text=True,
                timeout=4 * CALL_TIMEOUT,
            )
            assert done.returncode == 0, " ".join(done.stderr[-3000:].split())
            seen = json.loads(done.stdout)
            # In one line, as the end of the suite's output repeats it.
            assert not seen["problems"], " | ".join(" ".join(problem.split()) for problem in seen["problems"])
            print(f"      first view {seen['first_view_ms']} ms, a tree of 10,000 operations {seen['tree_ms']} ms an update")
            assert (folder / "toolwright.yaml.bak").exists(), "the file as it was is not kept"
