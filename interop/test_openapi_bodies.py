"""Bodies of OpenAPI operations that `openapi-core` reads only with help: XML, which `xml.etree` reads by the document's `xml`
objects, and parts other than form data, which Python's own reader of messages takes apart."""

import json
from xml.etree import ElementTree

from openapi_core import Config, OpenAPI
from openapi_core.deserializing.media_types.util import data_form_loads

from harness import Gateway, python_client, tools_with, workspace
from openapi_reader import AS_WRITTEN, Received, Receiver, arguments, plain
from test_openapi import follow, imported

PERSON = {
    "type": "object", "required": ["id", "name"], "xml": {"name": "person", "namespace": "urn:people"},
    "properties": {
        "id": {"type": "integer", "xml": {"attribute": True}},
        "kind": {"type": "string", "xml": {"attribute": True, "name": "type", "prefix": "k", "namespace": "urn:kinds"}},
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string", "xml": {"name": "tag"}}, "xml": {"wrapped": True, "name": "labels"}},
        "scores": {"type": "array", "items": {"type": "number"}},
        "boss": {"type": "object", "properties": {"name": {"type": "string"}, "is_new": {"type": "boolean"}}},
        "friends": {"type": "array", "items": {"$ref": "#/components/schemas/Person"}, "xml": {"wrapped": True}},
    },
}
MIXED = {
    "type": "object", "required": ["meta"],
    "properties": {
        "meta": {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}},
        "notes": {"type": "array", "items": {"type": "string"}},
        "file": {"type": "string", "format": "binary"},
        # Not even at its end does a backslash escape the quote after a name.
        "end\\": {"type": "string"},
    },
}
DOCUMENT = {
    "openapi": "3.0.3", "info": {"title": "Bodies", "version": "1"}, "servers": [{"url": "/"}],
    "components": {"schemas": {"Person": PERSON}},
    "paths": {
        path: {"post": {
            "operationId": path[1:], "responses": {"200": {"description": "ok"}},
            "requestBody": {"required": True, "content": {media: {"schema": schema}}},
        }}
        for path, media, schema in (
            ("/xml", "application/xml", {"$ref": "#/components/schemas/Person"}),
            ("/mixed", "multipart/mixed", MIXED), ("/related", "multipart/related", MIXED),
        )
    },
}
VALUES = {
    "xml": [
        {"id": 1, "name": "a < b & \"c\" > ]]> d"},
        {
            "id": 7, "kind": "x\"'\n\ty", "name": "Zoë\r\nEnd", "tags": ["a", " b "], "scores": [1.5, 2],
            "boss": {"name": "B", "is_new": True}, "friends": [{"id": 8, "name": "F", "friends": [{"id": 9, "name": "G"}]}],
        },
    ],
    "mixed": [{"meta": {"n": 1}}, {"meta": {"n": 1, "s": "ä"}, "notes": ["one", "two\r\nlines"], "file": "bytes", "end\\": "e"}],
}


def scalar(schema, text):
    kind = schema["type"]
    return {"integer": int, "number": float, "boolean": lambda text: text == "true"}.get(kind, str)(text or "")


def name_of(schema, otherwise, namespace):
    xml = schema.get("xml", {})
    space = xml.get("namespace", "" if xml.get("attribute") else namespace)
    return f"{{{space}}}{xml.get('name', otherwise)}" if space else xml.get("name", otherwise)


def value_of(element, schema, namespace=""):
    """What an element stands for, by what its schema says of XML."""
    schema = follow(DOCUMENT, schema)
    namespace = schema.get("xml", {}).get("namespace", namespace)
    if schema["type"] != "object":
        return scalar(schema, element.text)
    found = {}
    for name, member in schema["properties"].items():
        member = follow(DOCUMENT, member)
        own = name_of(member, name, namespace)
        if member.get("xml", {}).get("attribute"):
            if own in element.attrib:
                found[name] = scalar(member, element.attrib[own])
            continue
        if member["type"] == "array":
            wrapped = member.get("xml", {}).get("wrapped")
            holder = element.find(own) if wrapped else element
            items = follow(DOCUMENT, member["items"])
            outer = member.get("xml", {}).get("name", name) if wrapped else name
            found_in = [] if holder is None else holder.findall(name_of(items, outer, namespace))
            each = [value_of(one, items, namespace) for one in found_in]
            if each:
                found[name] = each
        elif (inner := element.find(own)) is not None:
            found[name] = value_of(inner, member, namespace)
    return found


def read_xml(body, **_):
    root = ElementTree.fromstring(body)
    assert root.tag == "{urn:people}person", root.tag
    return value_of(root, PERSON)


async def test_xml_and_all_parts_read_as_meant():
    loads = {"application/xml": read_xml, "multipart/mixed": data_form_loads, "multipart/related": data_form_loads}
    config = Config(spec_validator_cls=None, extra_format_unmarshallers=AS_WRITTEN, extra_media_type_deserializers=loads)
    api = OpenAPI.from_dict(DOCUMENT, config=config)
    with workspace() as folder, Receiver() as receiver:
        document = folder / "bodies.json"
        document.write_text(json.dumps(DOCUMENT))
        entry = {"document": str(document), "base_url": receiver.url, "allowed_hosts": ["127.0.0.1"]}
        listed = imported(folder, document, "--prefix", "b", "--base-url", receiver.url)
        assert listed["operations"] == len(listed["imported"]) == 3, listed
        rules = {"rules": [{"effect": "allow", "tool": "*"}]}
        with Gateway(folder, {}, openapi={"b": entry}, policy=rules, server={"schemas": "raw"}) as gateway:
            async with python_client(gateway.url) as client:
                tools = await tools_with(client, *(tool["wire_name"] for tool in listed["imported"]))
                for tool in listed["imported"]:
                    path = tool["path"]
                    values = [*VALUES.get(path[1:], VALUES["mixed"])]
                    if path != "/xml":
                        values.append(arguments(tools[tool["wire_name"]].input_schema, True)["body"])
                    for value in values:
                        receiver.received.clear()
                        await client.call_tool(tool["wire_name"], {"body": value})
                        [request] = receiver.received
                        item = DOCUMENT["paths"][path]
                        result = api.unmarshal_request(Received(DOCUMENT, item, item["post"], path, "", request))
                        assert not result.errors, (path, value, result.errors[0].__cause__ or result.errors)
                        # To the reader a list of which there is no part is empty.
                        read = {key: member for key, member in plain(result.body).items() if member != [] or key in value}
                        assert read == value, f"{path}: sent {value!r}, read {read!r}: {request[3]!r}"
