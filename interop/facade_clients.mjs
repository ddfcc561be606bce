// The official JavaScript clients of OpenAI and Anthropic against the facades: runs the client that is named, as its
// documentation says, and fails where what comes back is not what the scripted model said. Behind ECHO it says what it was told.
//   node facade_clients.mjs CLIENT ROOT ECHO KEY MODEL
import assert from 'node:assert/strict';
import * as z from 'zod';

const [name, root, echo, key, model] = process.argv.slice(2);
const parameters = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };
const user = [{ role: 'user', content: 'Weather?' }];
const rain = { city: 'Oslo' };
const schema = { ...parameters, additionalProperties: false };
const where = [{ role: 'user', content: 'Oslo' }];
const pixel = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';
const png = `data:image/png;base64,${pixel}`;
const paper = Buffer.from('%PDF-1.4').toString('base64');
const pdf = `data:application/pdf;base64,${paper}`;
const read = (text) => assert.ok(text.includes('Read.') && text.includes('paper.pdf'), text);

async function openai(module) {
  const { default: OpenAI } = await import(module);
  const client = new OpenAI({ baseURL: `${root}/v1`, apiKey: key, maxRetries: 0 });
  const tools = [{ type: 'function', function: { name: 'weather', parameters } }];
  const stream = await client.chat.completions.create({ model, messages: user, tools, stream: true, stream_options: { include_usage: true } });
  const calls = [];
  let usage;
  for await (const chunk of stream) {
    usage = chunk.usage ?? usage;
    for (const part of chunk.choices[0]?.delta.tool_calls ?? []) {
      calls[part.index] ??= { id: part.id, name: part.function.name, text: '' };
      calls[part.index].text += part.function.arguments ?? '';
    }
  }
  assert.deepEqual(calls.map((call) => [call.name, JSON.parse(call.text)]), [['weather', rain], ['weather', rain]]);
  assert.ok(usage.total_tokens > 0);
  const called = calls.map((call) => ({ id: call.id, type: 'function', function: { name: call.name, arguments: call.text } }));
  const results = calls.map((call) => ({ role: 'tool', tool_call_id: call.id, content: 'rain' }));
  const messages = [...user, { role: 'assistant', content: null, tool_calls: called }, ...results];
  const last = await client.chat.completions.create({ model, messages, tools });
  assert.equal(last.choices[0].message.content, 'It rains.');

  const own = [{ type: 'function', name: 'weather', parameters, strict: false }];
  const events = client.responses.stream({ model, input: 'Weather?', tools: own });
  const first = await events.finalResponse();
  const wanted = first.output.filter((item) => item.type === 'function_call');
  assert.deepEqual(wanted.map((item) => JSON.parse(item.arguments)), [rain, rain]);
  const input = wanted.map((item) => ({ type: 'function_call_output', call_id: item.call_id, output: 'rain' }));
  const next = await client.responses.create({ model, input, tools: own, previous_response_id: first.id });
  assert.equal(next.output_text, 'It rains.');
  assert.equal((await client.responses.retrieve(next.id)).output.at(-1).content[0].text, 'It rains.');
  await assert.rejects(client.responses.create({ model: 'nobody', input: 'x' }), OpenAI.NotFoundError);
  await assert.rejects(client.responses.create({ model, input: 'x', unheard_of: 1 }), OpenAI.BadRequestError);

  const other = new OpenAI({ baseURL: `${echo}/v1`, apiKey: key, maxRetries: 0 });
  const shape = { type: 'json_schema', json_schema: { name: 'place', schema, strict: true } };
  const place = await other.chat.completions.create({ model, messages: where, response_format: shape });
  assert.deepEqual(JSON.parse(place.choices[0].message.content), rain);
  const text = { format: { type: 'json_schema', name: 'place', schema, strict: true } };
  assert.deepEqual(JSON.parse((await other.responses.create({ model, input: 'Oslo', text })).output_text), rain);
  const parts = [{ type: 'text', text: 'Read.' }, { type: 'image_url', image_url: { url: png } }, { type: 'file', file: { filename: 'paper.pdf', file_data: pdf } }];
  read((await other.chat.completions.create({ model, messages: [{ role: 'user', content: parts }] })).choices[0].message.content);
  const items = [{ type: 'input_text', text: 'Read.' }, { type: 'input_image', image_url: png, detail: 'auto' }, { type: 'input_file', filename: 'paper.pdf', file_data: pdf }];
  read((await other.responses.create({ model, input: [{ role: 'user', content: items }] })).output_text);
  const models = [];
  for await (const one of await client.models.list()) models.push(one.id);
  assert.ok(models.includes(model));
}

async function anthropic(module) {
  const { default: Anthropic } = await import(module);
  const client = new Anthropic({ baseURL: root, apiKey: key, maxRetries: 0 });
  const tools = [{ name: 'weather', input_schema: parameters }];
  const first = await client.messages.stream({ model, max_tokens: 99, messages: user, tools }).finalMessage();
  const calls = first.content.filter((block) => block.type === 'tool_use');
  assert.equal(first.stop_reason, 'tool_use');
  assert.deepEqual(calls.map((call) => call.input), [rain, rain]);
  const content = calls.map((call) => ({ type: 'tool_result', tool_use_id: call.id, content: 'rain' }));
  const messages = [...user, { role: 'assistant', content: first.content }, { role: 'user', content }];
  const last = await client.messages.create({ model, max_tokens: 99, messages, tools });
  assert.equal(last.content.find((block) => block.type === 'text').text, 'It rains.');
  assert.ok((await client.messages.countTokens({ model, messages: user })).input_tokens > 0);
  await assert.rejects(client.messages.create({ model: 'nobody', max_tokens: 9, messages: user }), Anthropic.NotFoundError);
  await assert.rejects(client.messages.create({ model, max_tokens: 9, messages: user, unheard_of: 1 }), Anthropic.BadRequestError);

  const other = new Anthropic({ baseURL: echo, apiKey: key, maxRetries: 0 });
  const said = async (fields) => (await other.messages.create({ model, max_tokens: 99, ...fields })).content.map((block) => block.text ?? '').join('');
  const shape = { format: { type: 'json_schema', schema } };
  assert.deepEqual(JSON.parse(await said({ messages: where, output_config: shape })), rain);
  read(await said({ messages: [{ role: 'user', content: [
    { type: 'text', text: 'Read.' },
    { type: 'image', source: { type: 'base64', media_type: 'image/png', data: pixel } },
    { type: 'document', title: 'paper.pdf', source: { type: 'base64', media_type: 'application/pdf', data: paper } },
  ] }] }));
}

async function agents(module) {
  const { Agent, OpenAIProvider, Runner, setTracingDisabled, tool } = await import(module);
  setTracingDisabled(true);
  for (const useResponses of [true, false]) {
    const asked = [];
    const weather = tool({
      name: 'weather', description: 'The weather of a city.', parameters: z.object({ city: z.string() }),
      execute: ({ city }) => { asked.push(city); return 'rain'; },
    });
    const agent = new Agent({ name: 'helper', instructions: 'Help.', model, tools: [weather] });
    const modelProvider = new OpenAIProvider({ baseURL: `${root}/v1`, apiKey: key, useResponses });
    const runner = new Runner({ modelProvider });
    assert.equal((await runner.run(agent, 'Weather?')).finalOutput, 'It rains.');
    const streamed = await runner.run(agent, 'Weather?', { stream: true });
    for await (const _ of streamed) { /* read to the end */ }
    await streamed.completed;
    assert.equal(streamed.finalOutput, 'It rains.');
    assert.deepEqual(asked, ['Oslo', 'Oslo', 'Oslo', 'Oslo']);

    const echoing = new Runner({ modelProvider: new OpenAIProvider({ baseURL: `${echo}/v1`, apiKey: key, useResponses }) });
    const placing = new Agent({ name: 'placer', instructions: 'Place.', model, outputType: z.object({ city: z.string() }) });
    assert.deepEqual((await echoing.run(placing, 'Oslo')).finalOutput, rain);
    const reader = new Agent({ name: 'reader', instructions: 'Read.', model });
    // The old version sends no files to Chat Completions.
    if (module === 'agents-old' && !useResponses) continue;
    const content = [{ type: 'input_text', text: 'Read.' }, { type: 'input_image', image: png }, { type: 'input_file', file: pdf, filename: 'paper.pdf' }];
    read((await echoing.run(reader, [{ role: 'user', content }])).finalOutput);
  }
}

async function ai(module, openaiModule, anthropicModule) {
  const { generateObject, generateText, stepCountIs, streamText, tool } = await import(module);
  const { createOpenAI } = await import(openaiModule);
  const { createAnthropic } = await import(anthropicModule);
  const openaiProvider = createOpenAI({ baseURL: `${root}/v1`, apiKey: key });
  const anthropicProvider = createAnthropic({ baseURL: `${root}/v1`, apiKey: key });
  for (const one of [openaiProvider(model), openaiProvider.chat(model), anthropicProvider(model)]) {
    const asked = [];
    const weather = tool({
      description: 'The weather of a city.', inputSchema: z.object({ city: z.string() }),
      execute: ({ city }) => { asked.push(city); return 'rain'; },
    });
    const options = { model: one, tools: { weather }, stopWhen: stepCountIs(5), prompt: 'Weather?', maxRetries: 0 };
    assert.equal((await generateText(options)).text, 'It rains.');
    const streamed = streamText(options);
    let text = '';
    for await (const piece of streamed.textStream) text += piece;
    assert.ok(text.endsWith('It rains.'), text);
    assert.equal(asked.length, 4);
    // Of what the server has kept, the next turn gives the ids alone.
    const { prompt, ...rest } = options;
    const first = await generateText({ ...rest, messages: [{ role: 'user', content: prompt }] });
    const said = first.responseMessages ?? first.response.messages;
    const messages = [{ role: 'user', content: prompt }, ...said, { role: 'user', content: 'And now?' }];
    assert.equal((await generateText({ ...rest, messages })).text, 'It rains.');
    assert.equal(asked.length, 8);
  }
  const [openaiEcho, anthropicEcho] = [createOpenAI, createAnthropic].map((create) => create({ baseURL: `${echo}/v1`, apiKey: key }));
  for (const one of [openaiEcho(model), openaiEcho.chat(model), anthropicEcho(model)]) {
    // The old version has a tool of its own for the objects of Anthropic's models.
    if (module !== 'ai-old' || !one.provider.startsWith('anthropic')) {
      const placed = await generateObject({ model: one, schema: z.object({ city: z.string() }), prompt: 'Oslo', maxRetries: 0 });
      assert.deepEqual(placed.object, rain);
    }
    const content = [
      { type: 'text', text: 'Read.' }, { type: 'file', data: pixel, mediaType: 'image/png' },
      { type: 'file', data: paper, mediaType: 'application/pdf', filename: 'paper.pdf' },
    ];
    read((await generateText({ model: one, messages: [{ role: 'user', content }], maxRetries: 0 })).text);
  }
}

const clients = {
  openai: () => openai('openai'), 'openai-old': () => openai('openai-old'),
  agents: () => agents('@openai/agents'), 'agents-old': () => agents('agents-old'),
  ai: () => ai('ai', '@ai-sdk/openai', '@ai-sdk/anthropic'), 'ai-old': () => ai('ai-old', 'ai-openai-old', 'ai-anthropic-old'),
  anthropic: () => anthropic('@anthropic-ai/sdk'), 'anthropic-old': () => anthropic('anthropic-old'),
};
await clients[name]();
console.log('passed');
