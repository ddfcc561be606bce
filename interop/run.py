"""Runs the interop suite: `run.py [--jobs N] [PART OF A NAME]...`. Needs interop/setup.sh and built binaries.

Cases run side by side in worker processes. Prints one line a case, the seconds of each file, and
`N passed, N failed` last; the exit code is 1 when one failed.
"""

import argparse
import asyncio
import atexit
import collections
import concurrent.futures
import importlib
import inspect
import multiprocessing
import os
import pathlib
import shutil
import sys
import tempfile
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parent.parent


def keep_binaries():
    """Links to the binaries as they are now, for all cases: one that builds replaces the files while others start them."""
    built = pathlib.Path(os.environ.get("TOOLWRIGHT_BIN_DIR", ROOT / "target/debug")).resolve()
    if built.is_dir():
        kept = pathlib.Path(tempfile.mkdtemp(prefix="interop-", dir=built))
        atexit.register(shutil.rmtree, kept, ignore_errors=True)
        for file in built.iterdir():
            if file.is_file() and os.access(file, os.X_OK):
                os.link(file, kept / file.name)
        os.environ["TOOLWRIGHT_BIN_DIR"] = str(kept)


keep_binaries()
import harness

CASE_TIMEOUT = 300
# Files that begin first: a long case that begins last runs alone.
FIRST = ("packages", "openapi", "json_schema", "model_requests")
# Files whose cases share what the first of them makes: they run one after the other.
SEQUENTIAL = ("packages", "model_requests")
# Characters of the last line of a failure, which the end of the output repeats.
LAST_LINE = 1500
CASES = []  # title, test, parameters


def suite():
    for path in sorted(pathlib.Path(__file__).parent.glob("test_*.py")):
        module = importlib.import_module(path.stem)
        for name, test in list(vars(module).items()):
            if not name.startswith("test_") or inspect.getmodule(test) is not module:
                continue
            for parameters in getattr(test, "cases", [()]):
                label = ", ".join(str(parameter) for parameter in parameters)
                title = f"{path.stem.removeprefix('test_')}: {name.removeprefix('test_').replace('_', ' ')}"
                yield f"{title} ({label})" if label else title, test, parameters


def units():
    """The indices of cases, in lists of those that run one after the other."""
    order, together = list(FIRST), {}
    for index, (title, *_) in enumerate(CASES):
        name = title.split(":")[0]
        rank = order.index(name) if name in order else len(order)
        together.setdefault((rank, name if name in SEQUENTIAL else index), []).append(index)
    return [together[key] for key in sorted(together, key=lambda key: (key[0], together[key][0]))]


def run_all(indices):
    return [(index, *run(index)) for index in indices]


def run(index):
    """Runs one case of `CASES`: its seconds, and the reason of a failure or nothing."""
    _, test, parameters = CASES[index]
    start, reason = time.monotonic(), None
    try:
        if inspect.iscoroutinefunction(test):
            asyncio.run(asyncio.wait_for(test(*parameters), CASE_TIMEOUT))
        else:
            test(*parameters)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        reason = "".join(traceback.format_exception(error)[-12:])
    return time.monotonic() - start, reason


def main():
    parser = argparse.ArgumentParser(description="Runs the interop suite.")
    # Cases wait for timers and for other processes more than they compute.
    parser.add_argument("--jobs", type=int, default=(os.cpu_count() or 1) + 2, help="cases that run at once")
    parser.add_argument("parts", nargs="*", help="parts of the names of the cases wanted; default: all")
    args = parser.parse_args()
    missing = [str(path) for path in (harness.NODE, harness.TOOLWRIGHT, harness.MISBEHAVING) if not path.exists()]
    if missing:
        sys.exit(f"not found: {', '.join(missing)}; build the binaries and run interop/setup.sh first")
    # The few variables with which the tests reach loopback must not send it through a proxy.
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"
    CASES.extend(case for case in suite() if not args.parts or any(part in case[0] for part in args.parts))
    passed, failed, seconds = 0, [], collections.Counter()
    # Forked workers know the cases: only an index is sent to them.
    with concurrent.futures.ProcessPoolExecutor(args.jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        running = [pool.submit(run_all, unit) for unit in units()]
        for index, took, reason in (case for done in concurrent.futures.as_completed(running) for case in done.result()):
            title = CASES[index][0]
            seconds[title.split(":")[0]] += took
            print(f"{'FAIL' if reason else 'pass'}  {title}  [{took:.1f} s]", flush=True)
            if reason:
                failed.append(f"{title}: {reason.rstrip().splitlines()[-1].strip()[:LAST_LINE]}")
                print("      " + reason.rstrip().replace("\n", "\n      "), flush=True)
            else:
                passed += 1
    print("seconds: " + ", ".join(f"{name} {total:.0f}" for name, total in seconds.most_common()))
    for title in failed:
        print(f"failed: {title}")
    print(f"{passed} passed, {len(failed)} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
