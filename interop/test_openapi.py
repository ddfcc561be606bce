"""OpenAPI documents of others as tools: every operation is imported or refused with a reason, and what is sent for its
arguments reads, to `openapi-core` and the source document, as exactly those arguments."""

import json
import os
import re
import subprocess
import time

from openapi_core.validation.schemas.exceptions import InvalidSchemaValue

from harness import NODE_MODULES, TOOLWRIGHT, Gateway, cases, environment, python_client, tools_with, workspace
from openapi_reader import Received, Receiver, Unsampled, arguments, follow, load, operations, parameters, plain, reader

EXAMPLES = NODE_MODULES / "@readme/oas-examples"
GITHUB = NODE_MODULES / "@octokit/openapi/generated/api.github.com.json"
LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,64}")
MAX_MEMORY = 300 << 20
# What a release build may take, and a debug build of a busy machine.
MAX_SECONDS = 2 if "release" in TOOLWRIGHT.parts else 30
TOKEN = "s3cr3t"
PARTS = 4  # of the examples, which run side by side
# What the reader cannot read: (document, method, path) and why.
UNREAD = {
    ("api.github.com", "GET", "/repos/{owner}/{repo}/compare/{base}...{head}"): "it takes the path for `compare/{basehead}`",
    ("parameters-style", "PUT", "/anything/form-data/form"): "it does not read exploded objects out of forms",
    ("schema-encoding-style", "PUT", "/form/primitive"): "the same",
    **{
        ("parameters-style", method, f"/anything/form-data/{style}"): "it splits the bytes of a part as if they were text"
        for method in ("GET", "POST") for style in ("form", "spaceDelimited", "pipeDelimited")
    },
    **{
        ("parameters-style", method, "/anything/form-data/deepObject"): "a text has no defined form as a deepObject"
        for method in ("GET", "POST")
    },
    ("circular-paths", "PUT", "/anything"): "lists of objects have no defined form in a header",
    ("server-variables", "PUT", "/combo"): "it does not find the operation's own server",
    **{
        ("readme", "POST", path): "it reads the bytes of a part, where the document is 3.1, as nothing"
        for path in ("/images", "/branches/{branch}/apis", "/validate/api")
    },
    ("readme", "PUT", "/branches/{branch}/apis/{filename}"): "the same",
    ("discriminators", "PATCH", "/mapping-of-schema-names"): "it takes a schema's name in a mapping for a reference",
    ("discriminators", "PATCH", "/improper-discriminator-placement"): "the discriminator is a property outside of the branches",
    ("security", "POST", "/anything/mutualTLS"): "it does not know the scheme",
    ("discriminators", "POST", "/potentially-undefined-formData"): "its two branches are alike but for the discriminator",
}
# What no value is valid for: a text that is a number, and a 3.1 document with bounds of 3.0.
IMPOSSIBLE = {
    *(("schema-types", method, "/anything/quirks/polymorphism") for method in ("PUT", "PATCH")),
    *((f"schema-validation-{kind}", "GET", "/anything/numbers") for kind in ("local", "top-level")),
}
# What arguments are refused for, where the style of a parameter cannot carry them, and the words that say so.
UNSENT = {
    # The header `content` is a list of objects: their JSON has commas, which separate the items of a header.
    ("circular-paths", "PUT", "/anything"): "an item of `content` holds a `,`, which separates items there",
}
# What is refused once there are credentials for it: two that go into one header.
REFUSED = ("security-multiple", "/anything/and")


def examples():
    return sorted(path for path in EXAMPLES.glob("[23].*/**/*") if path.suffix in (".json", ".yaml"))


def imported(folder, document, *options):
    command = [str(TOOLWRIGHT), "import", "openapi", str(document), "--dry-run", "--json", *options]
    done = subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{document}: {done.stderr[-2000:]}"
    return json.loads(done.stdout)


def judge_names(answer, source):
    expected = {(method, path) for method, path, *_ in operations(source)}
    found = answer["imported"]
    assert answer["operations"] == len(expected) == len(found) + len(answer["refused"]), answer["operations"]
    assert {(tool["method"], tool["path"]) for tool in found} <= expected
    assert all(refused["operation"] and refused["reason"] for refused in answer["refused"])
    for key in ("id", "wire_name"):
        names = [tool[key] for tool in found]
        assert len(set(names)) == len(names), f"{key} is not distinct"
    assert all(LEGAL.fullmatch(tool["wire_name"]) for tool in found)


def test_example_operations_are_imported_or_refused():
    with workspace() as folder:
        total = refused = 0
        for path in examples():
            answer = imported(folder, path, "--prefix", "api", "--base-url", "http://127.0.0.1:1")
            judge_names(answer, load(path))
            total, refused = total + answer["operations"], refused + len(answer["refused"])
            is_old = "/2.0/" in str(path)
            reasons = {entry["operation"]: entry["reason"] for entry in answer["refused"]}
            # Of a document that is OpenAPI 3, TRACE and GETs that must have a body are all that is not sent.
            assert is_old or all("TRACE" in reason or "body" in reason for reason in reasons.values()), (path, reasons)
        assert total > 800, total
        print(f"      {total} operations, {refused} refused")


def test_githubs_description_is_imported_in_bounds():
    with workspace() as folder:
        before = time.monotonic()
        command = [str(TOOLWRIGHT), "import", "openapi", str(GITHUB), "--prefix", "github", "--dry-run", "--json"]
        child = subprocess.Popen(command, cwd=folder, env=environment(folder), stdout=subprocess.PIPE)
        answer = json.loads(child.stdout.read())
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        seconds, memory = time.monotonic() - before, usage.ru_maxrss << 10
        judge_names(answer, load(GITHUB))
        assert answer["operations"] == 1223 and not answer["refused"], answer["refused"][:3]
        assert memory < MAX_MEMORY and seconds < MAX_SECONDS, (memory >> 20, seconds)
        print(f"      {seconds:.1f} s, {memory >> 20} MiB")


def credentials(document):
    """What meets each security scheme of a document."""
    schemes = (document.get("components") or {}).get("securitySchemes") or {}
    auth = {}
    for name, scheme in schemes.items():
        if scheme["type"] == "http" and scheme["scheme"] == "basic":
            auth[name] = {"username": "me", "password": TOKEN}
        elif scheme["type"] != "mutualTLS":
            auth[name] = {"token": TOKEN}
    return auth


def legal(name):
    """As the name of an argument: other characters become `_`."""
    return name if LEGAL.fullmatch(name.replace(".", "_")) else re.sub(r"[^a-zA-Z0-9_.-]+", "_", name).strip("_")


def judge(document, api, entry, given, request, prefix):
    """What differs between the arguments and what was read; nothing when they are the same."""
    item = follow(document, document["paths"][entry["path"]])
    operation = item[entry["method"].lower()]
    result = api.unmarshal_request(Received(document, item, operation, entry["path"], prefix, request))
    body = result.body
    for error in result.errors:
        cause = error.__cause__
        # The reader does not type the text of parts, nor take bytes for a string: what it read is compared all the same.
        is_parts = dict(request[2]).get("content-type", "").startswith("multipart/")
        is_read = isinstance(cause, InvalidSchemaValue) and (is_parts or isinstance(cause.value, bytes))
        assert is_read, repr(cause or error)
        body = cause.value
    left = dict(given)
    for (place, name), parameter in parameters(document, item, operation).items():
        argument = next((key for key in (f"{place}_{legal(name)}", legal(name)) if key in left), None)
        if argument is None:
            continue
        read = plain(getattr(result.parameters, place)[name])
        assert read == left[argument], f"{place} {name}: sent {left[argument]!r}, read {read!r}"
        del left[argument]
    for key in ("body", "request_body"):
        if key in left:
            read = plain(body)
            assert read == (texts(left[key]) if result.errors else left[key]), f"body: sent {left[key]!r}, read {read!r}"
            del left[key]
    # What the path shows and the document does not state.
    left = {key: value for key, value in left.items() if f"{{{key}}}" not in entry["path"]}
    assert not left, f"not found in the request: {left}"
    for name, read in (result.security or {}).items():
        assert read is None or TOKEN in str(read) or "bWU6" in str(read), f"security {name}: {read!r}"


def sampled(schema, full):
    """Arguments, all or only those that are needed; where branches need more to be told apart, the others."""
    try:
        return arguments(schema, full)
    except Unsampled:
        return arguments(schema, not full)


def texts(value):
    """A body as the texts of its parts."""
    if isinstance(value, dict):
        return {key: texts(member) for key, member in value.items()}
    return json.dumps(value) if isinstance(value, (int, float, bool)) else value


async def exchanged(sources, samples):
    """Calls every operation of the documents through one gateway, with all of its arguments where `samples` has True, with
    those that it needs where it has False; [(place, what differs)] and how many requests were compared."""
    wrong, compared = [], 0
    with workspace() as folder, Receiver() as receiver:
        entries, listed = {}, {}
        for index, path in enumerate(sources):
            name = f"d{index}"
            entries[name] = {
                "document": str(path), "base_url": f"{receiver.url}/{name}", "allowed_hosts": ["127.0.0.1"],
                "auth": credentials(load(path)),
            }
            answer = imported(folder, path, "--prefix", name, "--base-url", f"{receiver.url}/{name}")
            listed[name] = [tool for tool in answer["imported"] if (path.stem, tool["path"]) != REFUSED]
        rules = {"rules": [{"effect": "allow", "tool": "*"}]}
        # The schemas that calls are checked against: what is listed else is laxer (`oneOf` becomes `anyOf`).
        server = {"max_tool_name": 64, "schemas": "raw"}
        with Gateway(folder, {}, openapi=entries, policy=rules, server=server) as gateway:
            async with python_client(gateway.url) as client:
                names = [tool["wire_name"] for tools in listed.values() for tool in tools]
                tools = await tools_with(client, *names)
                for index, path in enumerate(sources):
                    document = load(path)
                    api = reader(document)
                    for entry in listed[f"d{index}"]:
                        place = f"{path.name} {entry['method']} {entry['path']}"
                        schema = tools[entry["wire_name"]].input_schema
                        for full in samples:
                            try:
                                given = sampled(schema, full)
                            except Unsampled as error:
                                if (path.stem, entry["method"], entry["path"]) in IMPOSSIBLE:
                                    continue
                                wrong.append((place, f"no sample: {error}"))
                                continue
                            receiver.received.clear()
                            result = await client.call_tool(entry["wire_name"], given)
                            text = result.content[0].text if result.content else ""
                            unsent = UNSENT.get((path.stem, entry["method"], entry["path"]))
                            if unsent and not receiver.received and unsent in text:
                                continue
                            if len(receiver.received) != 1:
                                wrong.append((place, f"{len(receiver.received)} requests: {text[:300]}"))
                                continue
                            compared += 1
                            if (path.stem, entry["method"], entry["path"]) in UNREAD:
                                continue
                            try:
                                judge(document, api, entry, given, receiver.received[0], f"/d{index}")
                            except Exception as error:
                                wrong.append((place, f"{type(error).__name__}: {str(error)[:400]}"))
    return wrong, compared


def listed(wrong):
    return f"{len(wrong)} differ:\n" + "\n".join(f"{place}: {why}" for place, why in wrong[:60])


async def test_requests_for_githubs_operations_are_as_meant():
    wrong, compared = await exchanged([GITHUB], [True])
    assert not wrong, listed(wrong)
    assert compared == 1223, compared


@cases(*((part, PARTS) for part in range(1, PARTS + 1)))
async def test_requests_for_example_operations_are_as_meant(part, parts):
    readable = [path for path in examples() if "/2.0/" not in str(path)]
    wrong, compared = await exchanged(readable[part - 1::parts], [True, False])
    assert not wrong, listed(wrong)
    print(f"      {compared} requests compared")
