"""The README and the guide: every line of every `sh` block runs as it stands, in a fresh folder with a fresh home and no
network but loopback, and every link leads somewhere. `<!-- with: NAME, NAME -->` before a block names what it needs; the
functions of `docs_fixtures` make it. What cannot run here stands in a fence of another kind (`console`), or in `NOT_RUN`."""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import tempfile

from coding_agents import namespace
from docs_fixtures import FIXTURES
from harness import NODE, NODE_MODULES, ROOT, TOOLWRIGHT, VENV_BIN, Process, cases, environment, workspace

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# The lines that this test leaves out, each with the reason. Those of `console` blocks are all among them.
BUILDS, PACKAGES = "builds for minutes", "test_packages.py runs packaging/release"
NOT_RUN = {
    "cargo test --workspace --locked": "the section `tests` of .ci/run reads it from the README",
    "cargo install --locked --path crates/cli": BUILDS,
    "cargo build --release -p toolwright-cli -p toolwright-bench -p toolwright-testkit": BUILDS,
    "target/release/toolwright-bench gateway": "installs peers with npm, pip and cargo, and takes ten minutes",
    "python3 -m venv target/tools && target/tools/bin/pip install 'maturin>=1.9,<2'": PACKAGES,
    "packaging/release --maturin target/tools/bin/maturin": PACKAGES,
    "docker build --file packaging/docker/Dockerfile --tag toolwright .": "needs a container engine",
    "export TOOLWRIGHT_TOKEN=$(openssl rand -hex 32)": "is for the container",
    'docker run --init --rm -p 127.0.0.1:7117:7117 -e TOOLWRIGHT_TOKEN -v "$PWD:/workspace" toolwright': "as above",
}
# .ci/run has built the program that these words start.
CARGO_RUN = "cargo run --release --locked -- "
# Lines whose exit code says something else than that they worked.
EXIT_CODES = {"toolwright pins diff": 1, "toolwright pins diff github": 1}
# An id in the text stands for the last one of its kind that was printed.
ID = re.compile(r"\b(?:(ask|bash|form|schedule)_[0-9a-f]{8}|run-[0-9a-f-]{36})\b")
LINE_TIMEOUT = 120


def blocks(page):
    """(line number, names of fixtures, commands) of each `sh` block."""
    text = page.read_text()
    for block in re.finditer(r"(?:<!-- with: ([^>]*) -->\n)?```sh\n(.*?)```", text, re.S):
        names = [name.strip() for name in (block[1] or "").split(",") if name.strip()]
        commands = block[2].replace("\\\n", " ").splitlines()
        yield text.count("\n", 0, block.start(2)) + 1, names, [command for command in commands if command.strip()]


class Place:
    """Where a block runs: a folder, a home, and what its fixtures started."""

    def __init__(self, folder, enter, stack):
        self.root, self.home, self.enter, self.stack = folder / "project", folder / "home", enter, stack
        self.ids = {}
        self.root.mkdir()
        self.programs = folder / "bin"
        for path in (self.programs, self.home):
            path.mkdir()
        for target in (TOOLWRIGHT, NODE, NODE_MODULES / ".bin/claude", NODE_MODULES / ".bin/codex"):
            (self.programs / target.name).symlink_to(target)
        # `uvx PACKAGE` without a registry: what is installed.
        self.program("uvx", f'program=$1; shift; exec "{VENV_BIN}/$program" "$@"')
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        self.env = {"HOME": str(self.home), "PATH": path, "TMPDIR": str(folder)}

    def program(self, name, script):
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def write(self, name, content):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def own_configuration(self, **sections):
        path = self.home / ".config/toolwright/toolwright.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(sections))

    def serve(self, command="toolwright serve"):
        command = [*self.enter, TOOLWRIGHT, *command.split()[1:]]
        return Process(command, r"toolwright: ready (http://\S+/mcp)", self.env, self.root)

    def bash(self, command, code=0):
        """Runs a line and returns what it printed on standard output."""
        done = subprocess.run(
            [*self.enter, "bash", "-o", "pipefail", "-c", command], env=self.env, cwd=self.root,
            capture_output=True, text=True, timeout=LINE_TIMEOUT, stdin=subprocess.DEVNULL,
        )
        printed = done.stdout + done.stderr
        assert done.returncode == code, f"exit code {done.returncode}, not {code}:\n{printed}"
        self.ids.update((found[1], found[0]) for found in ID.finditer(printed))
        return done.stdout

    def line(self, command):
        if command in NOT_RUN:
            return
        if command.startswith(CARGO_RUN):
            command = f"toolwright {command.removeprefix(CARGO_RUN)}"
        command = ID.sub(lambda found: self.ids.get(found[1], found[0]), command)
        if exported := re.match(r"export (\w+)=", command):
            name = exported[1]
            self.env[name] = self.bash(f'{command}; printf %s "${name}"')
        elif command == "toolwright serve --stdio":
            hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "d", "version": "1"}}
            request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
            answer = self.bash(f"echo '{json.dumps(request)}' | {command}")
            assert json.loads(answer.splitlines()[0])["result"]["serverInfo"]["name"] == "toolwright", answer
        elif command.startswith(("toolwright serve", "toolwright demo --serve")):
            self.serve(command).stop()
        else:
            self.bash(command, EXIT_CODES.get(command, 0))


@cases(*((page.relative_to(ROOT).as_posix(),) for page in PAGES if next(blocks(page), None)))
async def test_every_command_runs_as_it_stands(page):
    failed = []
    with namespace() as enter:
        for number, names, commands in blocks(ROOT / page):
            with tempfile.TemporaryDirectory(prefix="toolwright-docs-") as folder, contextlib.ExitStack() as stack:
                place = Place(pathlib.Path(folder), enter, stack)
                place.block, command = "\n".join(commands), "the fixtures"
                try:
                    for name in names:
                        if waiting := FIXTURES[name](place):
                            await waiting
                    for command in commands:
                        place.line(command)
                except (AssertionError, subprocess.TimeoutExpired) as error:
                    failed.append(f"{page}:{number}: {command}: {error}")
    assert not failed, "\n".join(failed)


def test_only_named_lines_are_left_out():
    left_out = {
        line.removeprefix("$ ")
        for page in PAGES
        for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.S)
        for line in block.splitlines()
    }
    run = {line for page in PAGES for _, _, commands in blocks(page) for line in commands}
    assert left_out | (run & NOT_RUN.keys()) == NOT_RUN.keys(), left_out ^ NOT_RUN.keys()


def test_every_configuration_of_the_guide_is_valid():
    wrong = []
    with workspace() as folder:
        for page in PAGES:
            for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.S):
                if block.startswith(("tool:", "scrape_configs:")):
                    continue  # Cases of `bench`, and of Prometheus.
                config = folder / "toolwright.yaml"
                config.write_text(re.sub(r"\$\{[A-Z_]+\}", "a-value", block))
                command = [TOOLWRIGHT, "config", "show", "--config", config]
                done = subprocess.run(command, env=environment(folder), cwd=folder, capture_output=True, text=True)
                if done.returncode:
                    wrong.append(f"{page.name}: {done.stderr}")
    assert not wrong, "\n".join(wrong)


def test_every_link_leads_somewhere():
    lost = [page.name for page in PAGES[1:] if f"({page.name})" not in (ROOT / "docs/SUMMARY.md").read_text()]
    lost.remove("SUMMARY.md")
    for page in [*PAGES, *(ROOT / f"{name}.md" for name in ("SECURITY", "CONTRIBUTING", "ARCHITECTURE", "CHANGELOG"))]:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            path, _, anchor = target.partition("#")
            found = page.parent / path if path else page
            if re.match(r"\w+:", target):
                continue
            if not found.exists() or (anchor and anchor not in anchors(found)):
                lost.append(f"{page.relative_to(ROOT)}: {target}")
    assert not lost, "\n".join(lost)


def anchors(page):
    """What GitHub and mdBook make of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
