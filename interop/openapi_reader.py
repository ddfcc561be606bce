"""What test_openapi.py needs to sample arguments from a schema, to receive requests, and to have `openapi-core` read them.

`openapi-core` reads the values of some styles where its own adapters put them, which is not where the specification does;
`Received` puts those where it looks, out of nothing but the request and the document."""

import datetime
import functools
import http.server
import itertools
import json
import re
import threading
import urllib.parse
import uuid

import yaml
import jsonschema
from openapi_core import Config, OpenAPI
from openapi_core.datatypes import RequestParameters
from openapi_core.deserializing.styles import style_deserializers
from openapi_core.deserializing.styles.util import delimited_loads
from werkzeug.datastructures import Headers, ImmutableMultiDict

# It looks for the letters `%20` in values that are decoded already.
style_deserializers["spaceDelimited"] = functools.partial(delimited_loads, delimiter=" ")

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")


# ---- documents ---------------------------------------------------------------------------------

class Loader(yaml.SafeLoader):
    """YAML 1.2's core: dates stay text."""


Loader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load(path):
    text = path.read_text()
    return json.loads(text) if path.suffix == ".json" else yaml.load(text, Loader)


def follow(document, value):
    """The value, or what its local references lead to."""
    while isinstance(value, dict) and "$ref" in value:
        target = document
        for step in urllib.parse.unquote(value["$ref"].removeprefix("#/")).split("/"):
            target = target[step.replace("~1", "/").replace("~0", "~")]
        value = target
    return value


def operations(document):
    """(METHOD, path, path item, operation) of each."""
    for path, item in (document.get("paths") or {}).items():
        if path.startswith("x-"):
            continue
        item = follow(document, item)
        for method in METHODS:
            if method in item:
                yield method.upper(), path, item, item[method]


def parameters(document, item, operation):
    """Its parameters as stated, by place and name."""
    stated = {}
    for parameter in (item.get("parameters") or []) + (operation.get("parameters") or []):
        parameter = follow(document, parameter)
        if parameter["in"] == "header" and parameter["name"].lower() in ("accept", "content-type", "authorization"):
            continue
        stated[parameter["in"], parameter["name"]] = parameter
    return stated


# ---- samples -----------------------------------------------------------------------------------

FORMATS = {
    "date-time": "2024-01-02T03:04:05+00:00", "date": "2024-01-02", "time": "03:04:05", "uuid": str(uuid.UUID(int=7)),
    "email": "a@example.org", "idn-email": "a@example.org", "uri": "https://example.org/x", "url": "https://example.org/x", "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1", "hostname": "example.org", "byte": "aGk=", "binary": "bytes",
}


# One of these matches each pattern that there is.
PATTERNED = (
    "a", "abc", "1", "12", "v1", "A1", "abc-1", "#aabbcc", "0123456789", "1.2.3", "aGk=", "a.json", "/branches/1.0/categories/guides/x", f"sha256:{'0' * 64}", "0" * 40,
    "ssh-rsa AAAA", "https://example.org/x", "2024-01-02", "+14155550100", "a@example.org",
    "12345678-1234-1234-1234-123456789012",
)


class Unsampled(Exception):
    pass


def sample(schema, root, full, depth=0):
    """A value of the schema: with everything optional, if `full`, as far as it does not recur."""
    if depth > 24:
        raise Unsampled("it nests too deeply")
    if schema is True or schema == {}:
        return "anything"
    if "$ref" in schema:
        target = root
        for step in schema["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        return sample(target, root, full and depth < 6, depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return next((value for value in schema["enum"] if value not in (None, "")), schema["enum"][0])
    for combination in ("oneOf", "anyOf"):
        if combination in schema:
            rest = {key: value for key, value in schema.items() if key != combination}
            branches = [branch for branch in schema[combination] if branch != {"type": "null"}]
            for branch in branches:
                try:
                    return sample(merged(rest, branch, root), root, full, depth + 1)
                except Unsampled:
                    continue
            raise Unsampled(combination)
    if "allOf" in schema:
        whole = {key: value for key, value in schema.items() if key != "allOf"}
        for part in schema["allOf"]:
            whole = merged(whole, part, root)
        return sample(whole, root, full, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((name for name in kind if name != "null"), "null")
    if kind is None:
        kind = "object" if "properties" in schema else "array" if "items" in schema else "string"
    return SAMPLERS[kind](schema, root, full, depth)


def merged(one, two, root):
    while "$ref" in two:
        target = root
        for step in two["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        two = {**target, **{key: value for key, value in two.items() if key != "$ref"}}
    both = {**one, **two}
    if "properties" in one and "properties" in two:
        # One part may say the type of a member and another its values.
        both["properties"] = {**one["properties"], **two["properties"]}
        for name in one["properties"].keys() & two["properties"].keys():
            if all(isinstance(part["properties"][name], dict) for part in (one, two)):
                both["properties"][name] = {**one["properties"][name], **two["properties"][name]}
    if "required" in one and "required" in two:
        both["required"] = sorted({*one["required"], *two["required"]})
    if "allOf" in one and "allOf" in two:
        both["allOf"] = one["allOf"] + two["allOf"]
    return both


def sample_object(schema, root, full, depth):
    value = {}
    required = set(schema.get("required", ()))
    for name, inner in schema.get("properties", {}).items():
        if name in required or (full and depth < 8):
            try:
                value[name] = sample(inner, root, full, depth + 1)
            except Unsampled:
                if name in required:
                    raise
    for name in required - value.keys():
        value[name] = "anything"
    for name, inner in schema.get("properties", {}).items():
        if not value and 0 < depth < 8:
            # An empty object could not be told from nothing.
            value[name] = sample(inner, root, False, depth + 1)
    more = schema.get("additionalProperties", True)
    if more is not False and "properties" not in schema and depth < 8:
        value["R"] = sample(more, root, full, depth + 1) if isinstance(more, dict) else "blue"
    if len(value) < schema.get("minProperties", 0):
        for number in range(schema["minProperties"] - len(value)):
            value[f"extra{number}"] = sample(more, root, full, depth + 1) if isinstance(more, dict) else "x"
    return value


def sample_array(schema, root, full, depth):
    if depth > 16 and not schema.get("minItems"):
        return []
    count = max(schema.get("minItems", 0), min(2, schema.get("maxItems", 2)))
    item = lambda: sample(schema.get("items", {"type": "string"}), root, full, depth + 1)
    values = [item() for _ in range(count)]
    if count == 2 and values[1] == "blue":
        values[1] = "blue2"
    return values[:1] if schema.get("uniqueItems") and count == 2 and values[0] == values[-1] else values


def sample_string(schema, root, full, depth):
    if "pattern" in schema:
        for known in [schema.get("default"), *schema.get("examples", ()), *PATTERNED]:
            if isinstance(known, str) and re.search(schema["pattern"], known):
                return known
        raise Unsampled(f"pattern {schema['pattern']}")
    value = FORMATS.get(schema.get("format"), "blue")
    if "minLength" in schema:
        value = value.ljust(schema["minLength"], "x")
    return value[: schema.get("maxLength", len(value))]


def sample_number(schema, root, full, depth):
    low = schema.get("minimum", schema.get("exclusiveMinimum", None))
    high = schema.get("maximum", schema.get("exclusiveMaximum", None))
    value = low if low is not None else min(high, 7) if high is not None else 7
    if value == schema.get("exclusiveMinimum"):
        value += 1
    if value == schema.get("exclusiveMaximum"):
        value -= 1
    if step := schema.get("multipleOf"):
        value = -(-value // step) * step
    return int(value) if schema.get("type") == "integer" or float(value).is_integer() else value


SAMPLERS = {
    "object": sample_object, "array": sample_array, "string": sample_string, "number": sample_number,
    "integer": sample_number, "boolean": lambda *_: True, "null": lambda *_: None,
}


def arguments(schema, full):
    """Arguments of a tool that are valid, less what is optional and cannot be made valid."""
    value = sample(schema, schema, full)
    validator = jsonschema.Draft202012Validator(schema)
    for _ in range(40):
        error = jsonschema.exceptions.best_match(validator.iter_errors(value)) if not validator.is_valid(value) else None
        if error is None:
            return value
        deepest = max([error, *(error.context or ())], key=lambda each: len(each.absolute_path))
        if not any(without(value, list(found.absolute_path), validator) for found in (deepest, error)) and not thinned(
            value, list(error.absolute_path), validator
        ):
            raise Unsampled(error.message[:200])
    raise Unsampled("too many faults")


def without(value, path, validator):
    """Takes out the deepest member on the way to a fault whose lack is none."""
    while path:
        *above, last = path
        holder = value
        for step in above:
            holder = holder[step]
        if isinstance(holder, dict) and last in holder:
            taken = holder.pop(last)
            lacking = [error for error in validator.iter_errors(value) if error.validator == "required"]
            if not lacking:
                return True
            holder[last] = taken
        path = above
    return False


def thinned(whole, path, validator):
    """Takes the fewest members out of the object at fault with which it is at fault no more."""
    holder = whole
    for step in path:
        holder = holder[step]
    if not isinstance(holder, dict):
        return False
    members = dict(holder)
    for count in range(1, 4):
        for names in itertools.combinations(members, count):
            holder.clear()
            holder.update({key: member for key, member in members.items() if key not in names})
            if not any(list(error.absolute_path)[: len(path)] == path for error in validator.iter_errors(whole)):
                return True
    holder.clear()
    holder.update(members)
    return False


# ---- requests ----------------------------------------------------------------------------------

class Receiver:
    """An HTTP server that keeps what it gets and answers `{}`."""

    def __enter__(self):
        received = self.received = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                received.append((self.command, self.path, list(self.headers.items()), body))
                self.send_response(200)
                self.send_header("Content-Type", "text/plain")
                self.send_header("Content-Length", "0" if self.command == "HEAD" else "2")
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(b"{}")

            do_GET = do_PUT = do_POST = do_DELETE = do_OPTIONS = do_HEAD = do_PATCH = answer

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


class Received:
    """A request as `openapi-core` takes one."""

    def __init__(self, document, item, operation, template, prefix, request):
        self.method, target, headers, self.body = request[0].lower(), request[1], Headers(request[2]), request[3] or None
        assert target.startswith(prefix), f"{target} is not below {prefix}"
        path, _, query = target[len(prefix):].partition("?")
        template, _, fragment = template.partition("#")
        self.content_type = headers.get("Content-Type", "")
        server = next((part["servers"][0] for part in (operation, item, document) if part.get("servers")), {"url": "/"})
        variables = server.get("variables", {})
        url = re.sub(r"\{(\w+)\}", lambda name: str(variables[name[1]]["default"]), server["url"])
        parts = urllib.parse.urlsplit(url)
        self.host_url = f"{parts.scheme}://{parts.netloc}" if parts.netloc else "http://localhost"
        # Documents tell operations apart by fragments, which are never sent.
        self.path = parts.path.rstrip("/") + urllib.parse.unquote(path) + (f"#{fragment}" if fragment else "")
        # Stated parameters of this name are to be ignored; the reader misses them.
        headers.setdefault("Authorization", "Bearer none")
        stated = parameters(document, item, operation)
        pairs = urllib.parse.parse_qsl(query, keep_blank_values=True)
        cookies = [tuple(pair.split("=", 1)) for pair in headers.get("Cookie", "").split("; ") if "=" in pair]
        self.parameters = RequestParameters(
            query=ImmutableMultiDict(self.placed(document, stated, "query", pairs)), header=headers,
            cookie=ImmutableMultiDict(self.placed(document, stated, "cookie", cookies)),
            path=path_values(template.partition("?")[0], path),
        )

    @staticmethod
    def placed(document, stated, place, pairs):
        """The pairs, and exploded objects under their parameters' own names, where the reader looks for them."""
        more = []
        for (where, name), parameter in stated.items():
            schema = follow(document, parameter.get("schema", {}))
            style = parameter.get("style", "form")
            if where != place:
                continue
            if style == "form" and parameter.get("explode", True) and schema.get("type") == "object":
                members = [f"{key}={value}" for key, value in pairs if key in schema.get("properties", {})]
                more += [(name, "&".join(members))] if members else []
        return pairs + more


def path_values(template, path):
    """The values in a path by the names of its template, under the keys of each style."""
    names = re.findall(r"\{([^}]+)\}", template)
    pattern = "".join(
        "([^/]*)" if part.startswith("{") else re.escape(part) for part in re.split(r"(\{[^}]+\})", template)
    )
    found = re.fullmatch(pattern, path)
    assert found, f"{path} is not of {template}"
    values = {}
    for name, value in zip(names, found.groups(), strict=True):
        value = urllib.parse.unquote(value)
        values |= {f"{prefix}{name}{explode}": value for prefix in ("", ".", ";") for explode in ("", "*")}
    return values


# It stops at formats that it does not know, and decodes base64, which nobody sees in the answer.
AS_WRITTEN = {
    name: str for name in (
        "byte", "duration", "email", "hostname", "idn-email", "idn-hostname", "ipv4", "ipv6", "iri", "iri-reference", "json",
        "json-pointer", "regex", "relative-json-pointer", "time", "uri", "uri-reference", "uri-template", "url",
    )
}


def reader(document):
    """Without the defaults: it would fill in what was not sent. Without `readOnly`, which it holds against parameters."""
    config = Config(spec_validator_cls=None, extra_format_unmarshallers=AS_WRITTEN)
    return OpenAPI.from_dict(without_defaults(document), config=config)


def without_defaults(value, is_names=False):
    if isinstance(value, list):
        return [without_defaults(item) for item in value]
    if not isinstance(value, dict):
        return value
    # Members of `properties` are names, and `default` may be one.
    # Nor is a parameter written that is read-only elsewhere.
    kept = {
        key: member for key, member in value.items()
        if is_names or (key != "readOnly" and (key != "default" or is_response(member)))
    }
    has_names = lambda key: key in ("properties", "variables") and not is_names
    return {key: without_defaults(member, has_names(key)) for key, member in kept.items()}


def is_response(member):
    return isinstance(member, dict) and ("content" in member or "$ref" in member or "description" in member)


def plain(value):
    """What was read, with what the reader made of formats as the texts they were."""
    if isinstance(value, dict):
        return {key: plain(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (datetime.date, datetime.datetime)):
        return value.isoformat()
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, bytes):
        return value.decode()
    return value
