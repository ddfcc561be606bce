// The official TypeScript clients. Reads one request as JSON from standard input:
//   { url } or { command, args, env, cwd }, protocol: "v1" | "legacy" | "auto" | "2026-07-28",
//   wait: [tool names], calls: [{ name, arguments }]
// and answers { negotiated, tools, results: [{ ok, text, content, progress }] } as JSON on standard output.
import { text } from 'node:stream/consumers';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { Client as ClientV1 } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport as StdioV1 } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport as HttpV1 } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const TIMEOUT_MS = 60_000;
const request = JSON.parse(await text(process.stdin));
const v1 = request.protocol === 'v1';

function connectable() {
  const info = { name: 'toolwright-interop', version: '1.0.0' };
  if (v1) return new ClientV1(info);
  const named = request.protocol === 'auto' || request.protocol === 'legacy';
  return new Client(info, { versionNegotiation: { mode: named ? request.protocol : { pin: request.protocol } } });
}

function transport() {
  if (request.url) return new (v1 ? HttpV1 : StreamableHTTPClientTransport)(new URL(request.url));
  const { command, args, env, cwd } = request;
  return new (v1 ? StdioV1 : StdioClientTransport)({ command, args, env, cwd, stderr: 'ignore' });
}

async function listUntilThere(client, names) {
  const deadline = Date.now() + TIMEOUT_MS;
  for (;;) {
    const tools = [];
    let cursor;
    do {
      const page = await client.listTools(cursor ? { cursor } : undefined);
      tools.push(...page.tools.map((tool) => tool.name));
      cursor = page.nextCursor;
    } while (cursor);
    const missing = names.filter((name) => !tools.includes(name));
    if (missing.length === 0) return tools;
    if (Date.now() > deadline) throw new Error(`never listed: ${missing.join(', ')}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

async function call(client, { name, arguments: args }) {
  let progress = 0;
  const options = { onprogress: () => { progress += 1; }, timeout: TIMEOUT_MS };
  try {
    const params = { name, arguments: args };
    const result = await (v1 ? client.callTool(params, undefined, options) : client.callTool(params, options));
    const texts = result.content.filter((block) => block.type === 'text').map((block) => block.text);
    const content = result.content.map((block) => block.type);
    return { ok: !result.isError, text: texts.join('\n'), content, progress };
  } catch (error) {
    return { ok: false, text: String(error), content: [], progress };
  }
}

const client = connectable();
const wire = transport();
await client.connect(wire);
const tools = await listUntilThere(client, request.wait);
const results = [];
for (const wanted of request.calls) results.push(await call(client, wanted));
const negotiated = v1 ? wire.protocolVersion : client.getNegotiatedProtocolVersion?.();
await client.close();
process.stdout.write(JSON.stringify({ negotiated: negotiated ?? null, tools, results }));
