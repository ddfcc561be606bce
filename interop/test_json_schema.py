"""The official test suite of JSON Schema, case by case through `toolwright validate`.

All required tests pass, but for those that fetch: they are refused by the name of what they want. Which ones
fetch is what the `jsonschema` package finds, with a registry that notes what it is asked for.
"""

import concurrent.futures
import json
import os
import subprocess

import jsonschema
import referencing
import referencing.jsonschema

from harness import PEERS, TOOLWRIGHT, cases, environment, workspace

SUITE = PEERS / "json-schema-suite"
REMOTE = "http://localhost:1234/"
DRAFTS = {
    "4": jsonschema.Draft4Validator,
    "6": jsonschema.Draft6Validator,
    "7": jsonschema.Draft7Validator,
    "2019-09": jsonschema.Draft201909Validator,
    "2020-12": jsonschema.Draft202012Validator,
}


def fetched(validator, group):
    """The addresses that the tests of a group ask for."""
    schema, asked = group["schema"], set()
    specification = referencing.jsonschema.specification_with(validator.META_SCHEMA["$schema"])

    def retrieve(uri):
        asked.add(uri)
        contents = json.loads((SUITE / "remotes" / uri.removeprefix(REMOTE)).read_text())
        return referencing.Resource.from_contents(contents, default_specification=specification)

    if isinstance(schema, dict) and schema.get("$schema", "").startswith(REMOTE):
        asked.add(schema["$schema"])
    registry = referencing.Registry(retrieve=retrieve)
    for test in group["tests"]:
        validator(schema, registry=registry).is_valid(test["data"])
    return asked


@cases(*((draft,) for draft in DRAFTS))
def test_required_tests_pass_or_are_named_refusals(draft):
    with workspace() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:

        def validate(schema, instance):
            command = [TOOLWRIGHT, "validate", "--schema", schema, "--draft", draft, "--", json.dumps(instance)]
            done = subprocess.run(command, env=environment(folder), cwd=folder, capture_output=True, timeout=60)
            return done.returncode, json.loads(done.stdout)

        runs = []
        for file in sorted((SUITE / f"tests/draft{draft}").glob("*.json")):
            for number, group in enumerate(json.loads(file.read_text())):
                schema = folder / f"{file.stem}-{number}.json"
                schema.write_text(json.dumps(group["schema"]))
                asked = fetched(DRAFTS[draft], group)
                for test in group["tests"]:
                    title = f"{file.stem}: {group['description']}: {test['description']}"
                    runs.append((title, test, asked, pool.submit(validate, schema, test["data"])))

        wrong, passed, refused = [], 0, 0
        for title, test, asked, run in runs:
            code, answer = run.result()
            if asked:
                named = any(uri in answer.get("error", {}).get("message", "") for uri in asked)
                refused += 1
                right = code == 2 and named
            else:
                passed += 1
                right = (code, answer) == (0 if test["valid"] else 1, {
                    "valid": test["valid"], "arguments": test["data"], "coerced": [], "repaired": False,
                    "errors": answer.get("errors"),
                })
            if not right:
                wrong.append(f"{title}: {code} {answer}")
    print(f"      draft {draft}: {passed} tests, {refused} more are refused, {len(wrong)} wrong", flush=True)
    assert not wrong and passed and refused, "\n".join(wrong)
