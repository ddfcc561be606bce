"""What happens to a call on its way: a person is asked through the official client or the inbox, jobs are followed
from another process, and what is told of it all is read by others' parsers."""

import asyncio
import json
import subprocess
import urllib.request

from harness import NODE, NODE_MODULES, TOOLWRIGHT, Gateway, configure, environment, eventually, outcome, python_client
from harness import cases, tools_with, workspace

LEGACY = "2025-11-25"
ECHO = "everything__echo"


def everything():
    script = NODE_MODULES / "@modelcontextprotocol/server-everything/dist/index.js"
    return {"everything": {"command": str(NODE), "args": [str(script), "stdio"]}}


def toolwright(folder, *arguments):
    """The answer of a command of another process, as JSON."""
    config = folder / "toolwright.yaml"
    done = subprocess.run(
        [str(TOOLWRIGHT), *arguments, "--json", "--config", str(config)],
        env=environment(folder), cwd=folder, capture_output=True, text=True, timeout=60,
    )
    assert done.returncode == 0, f"{arguments}: {done.stderr}"
    return json.loads(done.stdout)


def asking(folder):
    """A gateway whose policy asks before every call of the server."""
    return Gateway(folder, everything(), policy={"rules": [{"effect": "ask", "namespace": "everything"}]})


@cases(("accept", True), ("decline", False))
async def test_the_official_client_is_asked(action, runs):
    from mcp import Client
    from mcp.types import ElicitResult

    questions = []

    async def answer(_context, params):
        questions.append(params)
        # What is declined or dismissed faster than this was seen by nobody.
        await asyncio.sleep(0.5)
        fields = params.requested_schema["properties"]
        (name, field), = [(name, field) for name, field in fields.items() if "enum" in field or "oneOf" in field][:1]
        values = field.get("enum") or [choice["const"] for choice in field["oneOf"]]
        yes = next(value for value in values if value in ("approve", "once", "yes"))
        return ElicitResult(action=action, content={name: yes} if action == "accept" else None)

    with workspace() as folder, asking(folder) as gateway:
        async with Client(gateway.url, mode="legacy", elicitation_callback=answer) as client:
            assert client.protocol_version == LEGACY, client.protocol_version
            await tools_with(client, ECHO)
            ok, text = await outcome(client, ECHO, {"message": "may I?"})
        assert len(questions) == 1 and "may I?" in questions[0].message, questions
        assert ok == runs and ("may I?" in text) == runs, text


async def test_an_unaskable_client_gets_a_waiting_job():
    with workspace() as folder, asking(folder) as gateway:
        async with python_client(gateway.url) as client:
            await tools_with(client, ECHO)
            ok, text = await outcome(client, ECHO, {"message": "later"})
            assert ok and "job" in text, text
        question, = toolwright(folder, "approvals", "ls")
        assert question["arguments"] == {"message": "later"}, question
        toolwright(folder, "approvals", "approve", question["id"])

        def ended():
            job, = toolwright(folder, "jobs", "ls")
            return job if job["state"] == "done" else None

        job = await eventually(ended, "the job ends once it is approved")
        assert {"id", "tool", "state", "created", "owner"} <= job.keys(), job
        assert "later" in json.dumps(toolwright(folder, "jobs", "read", job["id"]))


async def test_metrics_are_read_by_prometheus_own_parser():
    from prometheus_client.parser import text_string_to_metric_families

    with workspace() as folder, Gateway(folder, everything()) as gateway:
        async with python_client(gateway.url) as client:
            await tools_with(client, ECHO)
            for number in range(3):
                ok, text = await outcome(client, ECHO, {"message": f"number {number}"})
                assert ok, text

        # They are counted from the events of a call, which follow its answer.
        async def counted():
            page = await asyncio.to_thread(get, gateway.url.replace("/mcp", "/metrics"))
            samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
            mine = [s for s in samples if "calls" in s.name and s.labels.get("tool", "").startswith("everything__")]
            return sum(sample.value for sample in mine) == 3

        await eventually(counted, "three calls are counted")


def get(url):
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read().decode()


async def test_spans_are_read_by_opentelemetry_own_messages():
    import http.server
    import threading

    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    received = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/v1/traces":
                received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    collector = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    try:
        with workspace() as folder:
            sections = {"telemetry": {"endpoint": f"http://127.0.0.1:{collector.server_port}"}}
            with Gateway(folder, everything(), **sections) as gateway:
                async with python_client(gateway.url) as client:
                    await tools_with(client, ECHO)
                    meta = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
                    result = await client.call_tool(ECHO, {"message": "traced"}, meta=meta)
                    assert not result.is_error, result
            spans = [
                span for request in received for resource in request.resource_spans
                for scope in resource.scope_spans for span in scope.spans
            ]
    finally:
        collector.shutdown()
    span, = [span for span in spans if span.name.startswith("execute_tool")]
    assert span.trace_id.hex() == trace and span.parent_span_id.hex() == "00f067aa0ba902b7", span
    assert "traced" not in str(spans), "arguments are not sent"
