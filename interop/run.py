"""Runs the interop suite: `run.py [PART OF A NAME]...`. Needs interop/setup.sh and built binaries.

Prints one line a case and `N passed, N failed` last; the exit code is 1 when one failed.
"""

import asyncio
import importlib
import inspect
import os
import pathlib
import sys
import time
import traceback

import harness

CASE_TIMEOUT = 300


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


def run(test, parameters):
    """The reason of a failure, or nothing."""
    try:
        if inspect.iscoroutinefunction(test):
            asyncio.run(asyncio.wait_for(test(*parameters), CASE_TIMEOUT))
        else:
            test(*parameters)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return "".join(traceback.format_exception(error)[-12:])
    return None


def main():
    missing = [str(path) for path in (harness.NODE, harness.TOOLWRIGHT, harness.MISBEHAVING) if not path.exists()]
    if missing:
        sys.exit(f"not found: {', '.join(missing)}; build the binaries and run interop/setup.sh first")
    # The few variables with which the tests reach loopback must not send it through a proxy.
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"
    wanted, passed, failed = sys.argv[1:], 0, []
    for title, test, parameters in suite():
        if wanted and not any(part in title for part in wanted):
            continue
        start = time.monotonic()
        reason = run(test, parameters)
        print(f"{'FAIL' if reason else 'pass'}  {title}  [{time.monotonic() - start:.1f} s]", flush=True)
        if reason:
            failed.append(title)
            print("      " + reason.rstrip().replace("\n", "\n      "), flush=True)
        else:
            passed += 1
    for title in failed:
        print(f"failed: {title}")
    print(f"{passed} passed, {len(failed)} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
