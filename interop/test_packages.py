"""What `packaging/release` makes: the wheel and the npm packages, installed into fresh folders, run as the program does."""

import asyncio
import contextlib
import functools
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

from harness import NODE, PEERS, ROOT, START_TIMEOUT, STOP_TIMEOUT, VENV_BIN, cases, configure, descendants, environment
from harness import eventually, python_client, still_running, tools_with, workspace

# `npm` marks a program that replaces the launcher (node 22.15 or newer), `npm, older node` one that is its child.
WAYS = (("wheel",), ("npm",), ("npm, older node",))


@functools.cache
def installed():
    """{way: the command that starts the program}: built and installed once, removed when the suite ends."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="toolwright-packages-"))
    import atexit

    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = os.environ.get("CARGO_TARGET_DIR", ROOT / "target")
    command = [ROOT / "packaging/release", "--profile", "dev", "--out", folder / "dist", "--maturin", VENV_BIN / "maturin"]
    env = {**os.environ, "CARGO_TARGET_DIR": str(target), "npm_config_cache": str(folder / "npm-cache")}
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=env)
    assert done.returncode == 0, f"packaging/release failed:\n{done.stdout}{done.stderr}"
    assert "NOT BUILT OR CHECKED: container image" in done.stdout, done.stdout
    (wheel,) = (folder / "dist").glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip = [folder / "venv/bin/python", "-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check"]
    subprocess.run([*pip, wheel], check=True)
    project = folder / "project"
    project.mkdir()
    (project / "package.json").write_text("{}")
    npm = ["npm", "install", "--prefix", project, "--offline", "--no-audit", "--no-fund", "--loglevel=error"]
    subprocess.run([*npm, *(folder / "dist").glob("*.tgz")], check=True, env=env)
    launcher = project / "node_modules/.bin/toolwright"
    older = folder / "older.cjs"
    older.write_text("process.execve = undefined;\n")
    return {
        "wheel": [str(folder / "venv/bin/toolwright")],
        "npm": [str(NODE), str(launcher)],
        "npm, older node": [str(NODE), "--require", str(older), str(launcher)],
    }


@cases(*WAYS)
def test_output_and_exit_code_come_through(way):
    command = installed()[way]
    with workspace() as folder:
        (folder / "note.txt").write_text("from a file\n")
        env = environment(folder)
        config = configure(folder, {})
        run = functools.partial(subprocess.run, capture_output=True, text=True, env=env, cwd=folder, timeout=START_TIMEOUT)
        read = run([*command, "call", "fs__read", '{"path": "note.txt"}', "--config", str(config)])
        assert read.returncode == 0 and "from a file" in read.stdout, read
        unknown = run([*command, "call", "no_such_tool", "--config", str(config)])
        assert unknown.returncode == 3 and unknown.stdout == "" and "no_such_tool" in unknown.stderr, unknown
        checked = run([*command, "validate", "--tool", "fs__read", "-", "--config", str(config)], input='{"path": "a"}')
        assert checked.returncode == 0, f"standard input did not come through: {checked}"


@cases(*WAYS)
async def test_a_client_lists_tools_over_stdio(way):
    from mcp import StdioServerParameters

    program, *before = installed()[way]
    with workspace() as folder:
        arguments = [*before, "serve", "--stdio", "--config", str(configure(folder, {}))]
        server = StdioServerParameters(command=program, args=arguments, env=environment(folder), cwd=str(folder))
        async with python_client(server) as client:
            assert "fs__read" in await tools_with(client, "fs__read")


@cases(*WAYS)
async def test_a_signal_ends_the_program_and_nothing_stays(way):
    sleeper = f"sleep 500.{os.getpid()}"
    with workspace() as folder:
        arguments = ["call", "shell__bash", f'{{"command": "{sleeper}"}}', "--config", str(configure(folder, {}))]
        child = subprocess.Popen([*installed()[way], *arguments], env=environment(folder), cwd=folder)
        family = {}
        try:
            def started():
                family.update(descendants(child.pid))
                return any(line.startswith(sleeper) for line in family.values())

            await eventually(started, "the tool runs", START_TIMEOUT)
            child.send_signal(signal.SIGTERM)
            code = await asyncio.to_thread(child.wait, STOP_TIMEOUT)
        finally:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
        assert code == 130, f"the exit code of a cancelled call is 130, not {code}"
        await eventually(lambda: not still_running(family), "all have ended", STOP_TIMEOUT)


def test_the_launcher_says_what_is_missing():
    with workspace() as folder:
        shutil.copytree(ROOT / "packaging/npm/toolwright", folder / "toolwright")
        launcher = folder / "toolwright/bin/toolwright.js"
        done = subprocess.run([NODE, launcher, "--version"], capture_output=True, text=True, timeout=START_TIMEOUT)
        assert done.returncode == 1 and "@toolwright/" in done.stderr and "--omit=optional" in done.stderr, done


def test_what_a_shell_knows_as_npx_runs_it():
    launcher = pathlib.Path(installed()["npm"][1])
    with workspace() as folder:
        env = {**environment(folder), "npm_config_cache": str(folder / "npm-cache")}
        npx = ["npx", "--offline", "--no", "--", "toolwright", "--version"]
        done = subprocess.run(npx, capture_output=True, text=True, env=env, cwd=launcher.parents[2], timeout=START_TIMEOUT)
        assert done.returncode == 0 and done.stdout.startswith("toolwright "), done
