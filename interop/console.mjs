// A person with Debian's Chromium at the console. Reads JSON from standard input: { link, url, token, reader, demo, screens?,
// assets? }: a fresh address of the console, the server's root and its token, an address for a token that only reads, the command
// of the demo, a folder for pictures, and a folder of assets to use instead of the server's. Prints { problems, first_view_ms,
// tree_ms } as JSON.
import { spawn, spawnSync } from 'node:child_process';
import { createInterface } from 'node:readline';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { text } from 'node:stream/consumers';
import { chromium } from 'playwright-core';

/** Milliseconds after which something that should happen did not. */
const WAIT = 30_000;
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const { link, url, token, reader, demo, screens, assets } = JSON.parse(await text(process.stdin));
const problems = [];
/** Whether the server is away on purpose. */
let isDown = false;
const check = (fits, what) => fits || problems.push(what);
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-gpu'] });

/** A page that reports what it must not do. */
async function open(context, name) {
  const page = await context.newPage();
  page.setDefaultTimeout(WAIT);
  // A tab behind another draws once a second: what is waited for is looked for all the same.
  const wait = page.waitForFunction.bind(page);
  page.waitForFunction = (probe, arg) => wait(probe, arg, { polling: 50 });
  // A request that the server refuses is logged by the browser itself; the page shows it.
  page.on('console', (said) => said.type() === 'error' && !/status of 4\d\d/.test(said.text()) && !(isDown && /net::ERR_/.test(said.text())) && problems.push(`${name}: ${said.text()}`));
  page.on('pageerror', (error) => problems.push(`${name}: ${error.message}`));
  page.on('request', (request) => /^(blob|data):/.test(request.url()) || new URL(request.url()).origin === new URL(page.url()).origin || page.url() === 'about:blank' || problems.push(`${name}: asks ${request.url()}`));
  await page.addInitScript(() => addEventListener('securitypolicyviolation', (event) => console.error(`policy: ${event.violatedDirective}`)));
  const disk = (path) => (path === '/' ? '/index.html' : path.replace(/^\/console(\/v-\w+)?/, ''));
  if (assets) {
    await page.route((to) => to.pathname === '/' || /^\/console\/.*\./.test(to.pathname), async (route) =>
      route.fulfill({ response: await route.fetch(), body: readFileSync(assets + disk(new URL(route.request().url()).pathname)) }));
  }
  return page;
}

const send = (path, body, by = token) =>
  fetch(url + path, { method: body ? 'POST' : 'GET', headers: { authorization: `Bearer ${by}`, 'content-type': 'application/json' }, body: body && JSON.stringify(body) });
const api = (path, body) => send(path, body).then((response) => response.json());
async function eventually(what, probe, wanted) {
  const end = Date.now() + WAIT;
  let is;
  while ((is = await probe()) !== wanted && Date.now() < end) await new Promise((done) => setTimeout(done, 100));
  check(is === wanted, `${what}: ${is}, not ${wanted}`);
}
/** Runs a step at a page; its failure is a problem, and the next step runs all the same. */
async function step(name, at, run) {
  try {
    await run(at);
  } catch (error) {
    const shown = await at.locator('main').innerText({ timeout: 1000 }).catch(() => 'nothing');
    problems.push(`${name}: ${error.message.split('\n')[0]}; the page shows: ${shown.slice(0, 300)}`);
  }
}
const says = (tab, what) => tab.waitForFunction((what) => document.querySelector('main')?.innerText.includes(what), what);
/** Goes to a page, and waits until it shows what it loads. */
async function go(tab, hash, title) {
  await tab.evaluate((to) => { location.hash = to; }, hash);
  await loaded(tab, title);
}
const loaded = (tab, title) => tab.waitForFunction((title) => document.querySelector('#app:not([aria-busy=true]) h1')?.innerText === title, title);
/** Reaches what has this selector and text by the Tab key alone. */
async function tabTo(tab, selector, text = '') {
  const isThere = () => tab.evaluate(([selector, text]) => {
    const at = document.activeElement;
    return at.matches(selector) && `${at.innerText} ${at.getAttribute('aria-label') ?? ''}`.includes(text);
  }, [selector, text]);
  for (let presses = 0; presses < 300; presses += 1) {
    if (await isThere()) return;
    await tab.keyboard.press('Tab');
  }
  throw new Error(`no Tab reaches ${selector} ${text}`);
}
/** Presses a button that Tab reaches. */
async function pressed(tab, text, selector = 'button, a') {
  await tabTo(tab, selector, text);
  await tab.keyboard.press('Enter');
}
/** Writes in a field that Tab reaches, in place of what stands there. */
async function typed(tab, selector, text) {
  await tabTo(tab, selector);
  await tab.keyboard.press('Control+a');
  await tab.keyboard.insertText(text);
}
/** A call that waits for a person, made in the background. */
const held = (city) => api('/api/call', { tool: 'weather__forecast', arguments: { city, days: 1 } });
const questions = (tab, count) => tab.waitForFunction((count) => document.querySelectorAll('article.question').length === count
  && (!count || document.querySelector('article.chosen')) && !document.querySelector('#app[aria-busy=true]'), count);

/** The answers that a page sends from now on. */
function answersOf(tab) {
  const sent = [];
  tab.on('request', (request) => request.method() === 'POST' && request.url().includes('/api/approvals/') && sent.push(request.postDataJSON().decision));
  return sent;
}

/** A demo at a port; its address of the console, and how it ends. */
async function startDemo(port = 0) {
  // It ends with this process, however that ends.
  const child = spawn('setpriv', ['--pdeathsig', 'TERM', ...demo, `--serve=127.0.0.1:${port}`, '--print'], { stdio: ['ignore', 'ignore', 'pipe'] });
  const ended = new Promise((done) => child.on('exit', done));
  for await (const line of createInterface({ input: child.stderr })) {
    const found = line.match(/console: (\S+)/);
    if (found) return { link: found[1], stop: () => { child.kill('SIGTERM'); return ended; } };
  }
  throw new Error('the demo did not start');
}

/** The demo's team, which takes a while to come to its first question. */
const starting = startDemo();
// Its failure counts where it is waited for.
starting.catch(() => {});

// Without movement: colours that change slowly are measured halfway.
const browsing = { viewport: { width: 1400, height: 900 }, colorScheme: 'light', reducedMotion: 'reduce' };
const context = await browser.newContext(browsing);
const page = await open(context, 'page');
// From the start of the navigation until all that the page shows is there, as the page has it.
await page.addInitScript(() => {
  const look = () => {
    if (!document.querySelector('#app[aria-busy=false] h1') || window.first_view_ms) return;
    window.first_view_ms = performance.now();
  };
  new MutationObserver(look).observe(document, { attributes: true, childList: true, subtree: true });
});
await page.goto(link);
await page.waitForFunction(() => window.first_view_ms);
const first_view_ms = Math.round(await page.evaluate(() => window.first_view_ms));
check(!page.url().includes('token'), 'the address keeps its token');

await step('approve a definition', page, async () => {
  // All tools wait at first; all but one are approved as a program does it.
  const waiting = (pins) => pins.filter((pin) => pin.waiting);
  await eventually('definitions that wait', async () => waiting(await api('/api/pins')).length, 8);
  const decide = ({ provider, tool, waiting: { hash } }) => send('/api/pins', { provider, tool, hash, decision: 'approve' });
  const others = waiting(await api('/api/pins')).filter((pin) => pin.tool !== 'write');
  for (const pin of others) check((await decide(pin)).status === 200, `${pin.tool} is not approved`);
  check((await decide({ ...others[0], waiting: { hash: '0' } })).status === 409, 'a definition that nobody looked at is approved');
  await go(page, '#/pins', 'Pins');
  await page.waitForFunction(() => document.querySelectorAll('article').length === 1);
  await pressed(page, 'Approve');
  await says(page, 'approved.');
  await says(page, 'No definition waits');
});

await step('try a tool by its form', page, async () => {
  await go(page, '#/tools/weather__alerts', 'weather__alerts');
  await typed(page, 'form input', 'Oslo');
  await pressed(page, 'Run');
  await says(page, 'no warnings for Oslo');
  await page.reload();
  const call = page.locator('tr', { hasText: 'Oslo' }).first();
  await call.waitFor();
  await call.getByRole('button', { name: 'Use' }).click();
  await page.waitForFunction(() => document.querySelector('#raw')?.value.includes('Oslo'));
  check((await call.innerText()).includes('no warnings for Oslo'), 'the result of a call is not listed');
  await call.locator('a').click();
  await page.waitForFunction(() => document.querySelector('aside h2')?.innerText.startsWith('weather:alerts'));
});

await step('what tools cost a model', page, async () => {
  await go(page, '#/tools', 'Tools');
  const cost = () => page.locator('.shares .all').innerText();
  const before = await cost();
  await tabTo(page, 'select[name=api]');
  await page.keyboard.press('End');
  await page.waitForFunction((before) => document.querySelector('.shares .all').innerText !== before, before);
  const counted = await api('/api/tokens?api=ollama');
  check((await cost()).includes(counted.tokens.toLocaleString('en')), `${await cost()} is not what ${JSON.stringify(counted.tokens)} says`);
  check(counted.providers.length === 5 && counted.providers.every(({ tokens }) => tokens > 0), 'sources have no costs');
});

await step('what a prompt is shown', page, async () => {
  await go(page, '#/tools/prompt', 'What would a prompt be shown?');
  await typed(page, '#prompt', 'Will it rain in Oslo? I need the weather forecast');
  await page.keyboard.press('Tab');
  await page.keyboard.press('Enter');
  await page.waitForSelector('table');
  check((await page.locator('tbody tr').first().innerText()).includes('weather__forecast'), 'the forecast is not shown first');
  await go(page, '#/tools', 'Tools');
  await page.locator('h1').focus();
  await page.keyboard.press('/');
  await page.keyboard.insertText('lemonade order');
  await page.waitForFunction(() => [...document.querySelectorAll('th')].some((cell) => cell.innerText === 'score') && document.querySelector('tbody tr')?.innerText.startsWith('shop__order'));
});

await step('approve one and deny the next by keyboard', page, async () => {
  await Promise.all([held('Oslo'), held('Rome')]);
  await page.locator('h1').first().focus();
  await page.keyboard.press('g');
  await page.keyboard.press('a');
  await questions(page, 2);
  await page.keyboard.press('a');
  await says(page, 'approve.');
  await questions(page, 1);
  await page.keyboard.press('d');
  await says(page, 'deny.');
  await questions(page, 0);
  const states = async () => (await api('/api/jobs?limit=9')).jobs.map((job) => job.state).sort().join(' ');
  await eventually('one approved, one denied', states, 'done error');
  // These arguments: the same call runs at once then, and another is still asked about.
  await held('Bergen');
  await questions(page, 1);
  await page.keyboard.press('t');
  await says(page, 'always these.');
  await eventually('what is approved for always', async () => (await api('/api/approvals/standing')).length, 1);
  check((await held('Bergen')).status === 'done', 'the same call is asked about again');
  await held('Nice');
  await questions(page, 1);
  await pressed(page, 'Deny');
  await says(page, 'deny.');
});

await step('a key answers only where it is meant to', page, async () => {
  await questions(page, 0);
  await held('Oslo');
  await questions(page, 1);
  const sent = answersOf(page);
  await page.locator('h1').focus();
  for (const [key, title] of [['t', 'Tools'], ['a', 'Approvals'], ['a', 'Approvals']]) {
    await page.keyboard.press('g');
    await page.keyboard.press(key);
    await loaded(page, title);
  }
  await questions(page, 1);
  await page.keyboard.press('?');
  await page.waitForSelector('[role=dialog]');
  for (const key of ['a', 't', 'g', 't', 'Escape']) await page.keyboard.press(key);
  await page.waitForFunction(() => !document.querySelector('[role=dialog]'));
  await page.keyboard.press('d');
  await questions(page, 0);
  check(sent.join(' ') === 'deny', `keys of the shell and of the page answer: ${sent}`);
});

await step('a new question does not take the choice', page, async () => {
  const chosen = () => page.locator('article.chosen').innerText();
  await held('Oslo');
  await questions(page, 1);
  await held('Rome');
  await questions(page, 2);
  check((await chosen()).includes('Oslo'), `chosen is ${await chosen()}`);
  await page.keyboard.press('d');
  await questions(page, 1);
  check((await chosen()).includes('Rome'), `another was answered; chosen is ${await chosen()}`);
  // One that goes away by itself leaves its choice to none.
  await held('Bonn');
  await questions(page, 2);
  const rome = (await api('/api/approvals')).questions.find(({ arguments: { city } }) => city === 'Rome');
  await send(`/api/approvals/${rome.id}`, { decision: 'deny' });
  await page.waitForFunction(() => document.querySelectorAll('article.question').length === 1);
  check(await page.locator('article.chosen').count() === 0, 'the choice goes to what was not read');
  await page.keyboard.press('j');
  await questions(page, 1);
  await page.keyboard.press('d');
  await questions(page, 0);
});

await step('a key that is held answers once', page, async () => {
  await Promise.all([held('Oslo'), held('Rome')]);
  await questions(page, 2);
  const sent = answersOf(page);
  for (let downs = 0; downs < 4; downs += 1) await page.keyboard.down('a');
  await questions(page, 1);
  for (let downs = 0; downs < 4; downs += 1) await page.keyboard.down('a');
  // Another key waits for it too.
  await page.keyboard.press('t');
  await page.keyboard.up('a');
  await page.keyboard.press('d');
  await questions(page, 0);
  check(sent.join(' ') === 'approve deny', `a held key answers: ${sent}`);
});

await step('the overview names a command that is there', page, async () => {
  await page.route('**/api/providers', (route) => route.fulfill({ contentType: 'application/json', body: '[]' }));
  await go(page, '#/overview', 'Overview');
  await says(page, 'No source is configured');
  const [, words] = (await page.locator('main').innerText()).match(/toolwright (.+) NAME -- COMMAND/) ?? [];
  const help = spawnSync(demo[0], [...(words ?? 'none').split(' '), '--help'], { encoding: 'utf8' });
  check(help.status === 0 && help.stdout.includes('<NAME> [-- <COMMAND>'), `toolwright ${words}: ${help.stderr}`);
  await page.unroute('**/api/providers');
  await go(page, '#/approvals', 'Approvals');
});

await step('take an approval back', page, async () => {
  await tabTo(page, 'input[type=checkbox]');
  await page.keyboard.press('Space');
  await pressed(page, 'Take back');
  await says(page, 'No session has an approval that stands.');
  check((await api('/api/approvals/standing')).length === 0, 'the approval stands');
});

await step('see what a call would write', page, async () => {
  const write = (path, content) => api('/api/call', { tool: 'fs__write', arguments: { path, content } });
  await write('hello.txt', 'hello\nyou\n');
  await questions(page, 1);
  await page.waitForSelector('article .diff .removed');
  check((await page.locator('article .diff').innerText()).includes('-world\n+you'), 'the file is not compared');
  await page.locator('h1').focus();
  await page.keyboard.press('d');
  await questions(page, 0);
  await write('new/file.txt', 'first line\n');
  await questions(page, 1);
  await page.waitForSelector('article .diff .added');
  check((await page.locator('article .diff').innerText()).includes('+first line'), 'the new file is not shown');
  // For the rest of a session.
  await page.locator('h1').focus();
  await page.keyboard.press('s');
  await says(page, 'always.');
  await eventually('what the session has approved', async () => (await api('/api/approvals/standing')).length, 1);
  check((await write('new/other.txt', 'more\n')).status === 'done', 'the session is asked again');
  await says(page, 'Take back');
  await pressed(page, 'Take back');
  await says(page, 'No session has an approval that stands.');
});

await step('fill in the form of a server', page, async () => {
  const asking = api('/api/call', { tool: 'everything__trigger-elicitation-request', arguments: {} });
  await page.waitForSelector('article.question form');
  check(await page.locator('article form fieldset input[type=checkbox]').count() > 4, 'choices are not listed');
  await pressed(page, 'Send');
  await says(page, 'This is required.');
  await typed(page, 'article form [id$="-name"]', 'Ada');
  await pressed(page, 'Send');
  await says(page, 'accept.');
  const outcome = await asking;
  check(outcome.text?.includes('Ada'), `the server was told ${JSON.stringify(outcome.text ?? outcome)}`);
});

await step('stop a job, and repeat it', page, async () => {
  const { structured } = await held('Porto');
  await go(page, `#/jobs/${structured.job}`, structured.job);
  await pressed(page, 'Stop');
  await eventually('the job is stopped', async () => (await api(`/api/jobs/${structured.job}`)).state, 'cancelled');
  await pressed(page, 'Run again');
  await page.waitForFunction((old) => /^forecast_/.test(document.querySelector('h1')?.innerText) && document.querySelector('h1').innerText !== old, structured.job);
  await pressed(page, 'Stop');
  await eventually('nothing waits', async () => (await api('/api/approvals')).total, 0);
  const [newest, next] = [await api('/api/jobs?limit=1'), await api('/api/jobs')];
  const rest = await api(`/api/jobs?after=${newest.next}`);
  check(newest.total === next.jobs.length && rest.jobs.length === newest.total - 1, `jobs in parts: ${newest.total}, ${next.jobs.length}, ${rest.jobs.length}`);
});

await step('one of two tabs wins', page, async () => {
  await held('Paris');
  await go(page, '#/approvals', 'Approvals');
  const second = await open(context, 'second tab');
  await second.goto(`${url}/#/approvals`);
  const tabs = [page, second];
  await Promise.all(tabs.map((tab) => questions(tab, 1)));
  await Promise.all(tabs.map((tab) => tab.keyboard.press('a')));
  const texts = await Promise.all(tabs.map(async (tab) => {
    await tab.waitForFunction(() => /approve\.|too late/.test(document.querySelector('main p[role=status]')?.innerText));
    return tab.locator('main p[role=status]').innerText();
  }));
  check(texts.filter((text) => text.includes('approve.')).length === 1, `one tab wins, and the other is told: ${JSON.stringify(texts)}`);
  await second.close();
});

await step('a reader decides nothing', page, async () => {
  await held('Lima');
  const reading = await browser.newContext(browsing);
  const eye = await open(reading, 'reader');
  const refusals = [];
  eye.on('response', (response) => response.status() === 403 && refusals.push(response.url()));
  await eye.goto(reader.link);
  await go(eye, '#/approvals', 'Approvals');
  await questions(eye, 1);
  check(await eye.locator('article button:not(.small)').count() === 0, 'a reader has buttons');
  await eye.keyboard.press('a');
  await go(eye, '#/tools/weather__alerts', 'weather__alerts');
  check(await eye.locator('button.main').isDisabled(), 'a reader may call');
  await go(eye, '#/tools', 'Tools');
  await go(eye, '#/chat', 'Chat');
  await says(eye, 'This token only reads');
  check(!refusals.length, `a reader's pages ask what is refused: ${refusals}`);
  const { id } = (await api('/api/approvals')).questions[0];
  const refused = [await send('/api/call', { tool: 'weather__alerts', arguments: { city: 'Oslo' } }, reader.token), await send(`/api/approvals/${id}`, { decision: 'approve' }, reader.token)];
  check(refused.every(({ status }) => status === 403), `a reader is answered ${refused.map(({ status }) => status)}`);
  check((await send(`/api/approvals/${id}`, { decision: 'deny' })).status === 200, 'the reader answered');
  await reading.close();
});

let tree_ms;
await step('a tree of 10,000 operations', page, async () => {
  const op = (n) => ({ op: n.toString(16).padStart(16, '0'), trace: 'f'.repeat(32), parent: null, kind: 'tool', name: `x:t${n}@1.0.0`, call: null, status: n % 100 ? 'ok' : 'timeout', started_ms: 1e12 + n, latency_ms: 5, wait_ms: 0,
    person_ms: 0, attempts: 1, cached: false, characters_in: 2, characters_out: 2, cost_usd: null, decided_by: 'profile ask', approval: null, children: [] });
  const parents = Array.from({ length: 100 }, (_, at) => ({ ...op(10_000 + at), children: Array.from({ length: 99 }, (_, child) => op(at * 100 + child)) }));
  const totals = { tool_calls: 10_000, model_calls: 0, jobs: 0, failures: 99, usage: {}, cost_usd: null };
  // One operation is under way, so that each event is followed by an update with the last operations.
  const last = { ...op(0), op: 'e'.repeat(16), name: 'x:grown@1.0.0', parent: parents[0].op, started_ms: 1e12 };
  parents[0].status = 'running';
  const turns = (ops) => ({ run: null, session: 'big', started_ms: 1e12, latency_ms: 10_100, left_out: 0, turns: [{ turn: 0, ops }] });
  const [whole, part] = [{ ...turns(parents), totals }, { ...turns([{ ...parents[0], children: [last] }, ...parents.slice(50)]), totals: { ...totals, tool_calls: 10_001 } }];
  let read = 0;
  await page.route(/\/api\/traces\/big($|\?)/, (route) => {
    const isPart = route.request().url().includes('?last=');
    read += isPart ? 0 : 1;
    return route.fulfill({ contentType: 'application/json', body: JSON.stringify(isPart ? part : whole) });
  });
  await page.route('**/api/sessions/big*', (route) => route.fulfill({ contentType: 'application/json', body: '{"messages":[],"next":null,"values":null,"todo":[]}' }));
  await page.bringToFront();
  await go(page, '#/runs/big', 'big');
  await page.waitForSelector('.row');
  // From the last byte of the update to the picture with what is new.
  await page.evaluate(() => {
    const { fetch } = window;
    window.fetch = async (path, ...rest) => {
      const response = await fetch(path, ...rest);
      if (!String(path).includes('?last=')) return response;
      const text = await response.text();
      const came = performance.now();
      const look = () => {
        if (!document.querySelector('main').textContent.includes('x:grown')) return requestAnimationFrame(look);
        return setTimeout(() => { window.grown_ms ??= performance.now() - came; });
      };
      requestAnimationFrame(look);
      return new Response(text, response);
    };
  });
  await api('/api/call', { tool: 'weather__alerts', arguments: { city: 'Oslo' } });
  await page.waitForFunction(() => window.grown_ms !== undefined);
  check(read === 1, `the tree is read ${read} times`);
  // A filter draws the tree again: from the key to the picture.
  tree_ms = await page.evaluate(async () => {
    const input = document.querySelector('main input[type=search]');
    const times = [window.grown_ms];
    for (const text of ['t9', '', 'timeout']) {
      const start = performance.now();
      input.value = text;
      input.dispatchEvent(new Event('input'));
      await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));
      times.push(performance.now() - start);
    }
    return Math.round(Math.max(...times));
  });
  await says(page, 'timeout');
  check(await page.locator('.row').count() < 100, 'all rows are drawn');
});

await step('approve for always by a rule', page, async () => {
  await held('Lyon');
  await go(page, '#/approvals', 'Approvals');
  await questions(page, 1);
  const rule = await page.locator('article .reach pre').innerText();
  check(rule.includes('effect: allow') && rule.includes('tool: weather:forecast'), `the rule is ${rule}`);
  await page.locator('h1').focus();
  await page.keyboard.press('w');
  await says(page, 'the rule is written to');
  check((await page.locator('.diff .added').allInnerTexts()).join('').includes('allow'), 'what was written is not shown');
  await eventually('the rule decides', async () => (await held('Lyon')).status, 'done');
  await go(page, '#/policy', 'Policy');
  await page.waitForFunction(() => document.querySelector('tbody tr')?.innerText.includes('weather:forecast') && document.querySelector('tbody tr .good'));
});

await step('save a policy that was tried', page, async () => {
  await typed(page, '#draft', '{"profile": "client", "rules": [{"effect": "forbid"}]}');
  await page.waitForSelector('#checks li.bad');
  check(await page.locator('button.main').isDisabled(), 'a broken draft can be saved');
  await typed(page, '#draft', 'profile: client\nrules:\n  - effect: deny\n    tool: weather:alerts\n    reason: no alerts\n');
  await says(page, 'decisions change.');
  await page.waitForFunction(() => [...document.querySelectorAll('td')].some((cell) => cell.innerText.startsWith('weather:alerts')));
  await pressed(page, 'Save');
  await says(page, 'Written to');
  const denied = async () => (await api('/api/call', { tool: 'weather__alerts', arguments: { city: 'Oslo' } })).error?.message?.includes('no alerts');
  await eventually('the saved policy decides', denied, true);
});

const team = await starting;
const at = new URL(team.link);
const life = await browser.newContext(browsing);
const view = await open(life, 'demo');
await view.goto(team.link);
let run;

await step('the team waits for a word', view, async () => {
  await go(view, '#/approvals', 'Approvals');
  await questions(view, 1);
  await says(view, 'An order is paid at once.');
  check((await view.locator('article.question pre mark').allInnerTexts()).join().startsWith('"lemonade"'), 'what the user named is not marked');
});

await step('fire a trigger, and read mailboxes', view, async () => {
  await go(view, '#/triggers', 'Triggers');
  await pressed(view, 'Fire now');
  await says(view, 'fires: run');
  await go(view, '#/agents', 'Agents');
  await says(view, 'mailbox of keeper');
  await pressed(view, 'mailbox of keeper');
  await says(view, 'Ada borrowed the big basket');
  await go(view, '#/agents', 'Agents');
  await pressed(view, 'channel outings');
  await says(view, 'clear sky on Saturday');
  await go(view, '#/costs', 'Costs');
  await says(view, '0 of 500');
});

await step('play a finished run back', view, async () => {
  await go(view, '#/runs', 'Runs');
  await view.waitForFunction(() => document.querySelectorAll('tbody tr').length >= 3);
  const last = view.locator('tbody tr').last().locator('a');
  run = decodeURIComponent((await last.getAttribute('href')).slice('#/runs/'.length));
  await pressed(view, await last.innerText());
  await loaded(view, run);
  await says(view, 'Look at the weather and the notes');
  await pressed(view, 'shop:order', '.row .link');
  await says(view, 'lemonade');
  await view.keyboard.press('ArrowUp');
  await view.waitForFunction(() => !document.querySelector('aside h2').innerText.startsWith('shop:order') && document.querySelector('.row.chosen'));
  await view.locator('h1').focus();
  await tabTo(view, '#tab-tree');
  await view.keyboard.press('ArrowRight');
  await view.waitForSelector('.turn-user');
  await view.keyboard.press('ArrowRight');
  await view.waitForSelector('.play');
  await view.locator('h1').focus();
  for (let steps = 0; steps < 4; steps += 1) await view.keyboard.press('ArrowRight');
  await says(view, 'Step 5 of');
});

await step('chat, and approve inline', view, async () => {
  await go(view, '#/chat/buyer', 'Chat');
  await typed(view, '#say', 'Order lemonade for the picnic.');
  await view.keyboard.press('Enter');
  const asked = '.said article.question';
  await view.waitForSelector(asked);
  // A second message waits for the end of the first, and the conversation stays while another page is shown.
  await view.keyboard.insertText('And more.');
  await view.keyboard.press('Enter');
  await go(view, '#/overview', 'Overview');
  await go(view, '#/chat/buyer', 'Chat');
  await view.waitForSelector(asked);
  check(await view.locator('.turn-user').count() === 1, 'two messages are under way');
  check(await view.locator(asked).count() === 1, 'the question of the team is shown');
  await view.locator('h1').focus();
  await view.keyboard.press('a');
  await view.waitForFunction((asked) => !document.querySelector(asked), asked);
  await says(view, 'Ordered: order');
  check(await view.locator('.turn-call').count() >= 2, 'calls are not shown');
});

await step('stop a chat, and go on', view, async () => {
  const asked = '.said article.question';
  await typed(view, '#say', 'Order more lemonade.');
  await view.keyboard.press('Enter');
  await view.waitForSelector(asked);
  await pressed(view, 'Stop', '.say button');
  await view.waitForSelector('.say button.main');
  const asks = view.waitForRequest((request) => request.url().endsWith('/v1/responses'));
  await typed(view, '#say', 'Order sun cream.');
  await view.keyboard.press('Enter');
  check((await asks).postDataJSON().previous_response_id, 'the conversation begins anew');
  await view.waitForSelector(`${asked}, .problem`);
  await pressed(view, 'Deny', `${asked} button`);
  await view.waitForSelector('.say button.main');
  check(await view.locator('.problem').count() === 0, `after a stop: ${await view.locator('.problem').allInnerTexts()}`);
});

/** What depends on the theme and the width. */
const VISIBLE = { runOnly: ['color-contrast', 'link-in-text-block', 'scrollable-region-focusable', 'target-size'] };
/** Looks at pages, each in both themes, wide and narrow: those that a hash shows, or a tab of them. */
async function look(tab, name, pages) {
  for (const [hash, title, view] of pages) {
    const page = `${name} ${hash} ${view ?? ''}`;
    await step(page, tab, async () => {
      await go(tab, hash, title);
      if (view) await tab.locator(`#tab-${view}`).click();
      await tab.evaluate(axe);
      let rules = {};
      for (const [colorScheme, width] of [['light', 1400], ['dark', 1400], ['dark', 360], ['light', 360]]) {
        const where = `${page} ${colorScheme} ${width}`;
        await tab.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
        await tab.setViewportSize({ width, height: 900 });
        const wide = await tab.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        check(wide <= 0, `${where}: ${wide} px too wide`);
        const { violations } = await tab.evaluate((rules) => axe.run({ resultTypes: ['violations'], ...rules }), rules);
        for (const { id, help, nodes } of violations) problems.push(`${where}: ${id}, ${help}: ${nodes[0].target.join(' ')}`);
        if (screens) await tab.screenshot({ path: `${screens}/${[name, ...hash.slice(2).split('/').slice(0, 2), view].filter(Boolean).join('-').replace(/\W/g, '-').slice(0, 40)}-${colorScheme}-${width}.png` });
        // The other rules see the same in all of them.
        rules = VISIBLE;
      }
    });
  }
}
const [job] = (await api('/api/jobs?limit=1')).jobs;
const ofRun = `#/runs/${encodeURIComponent(run)}`;
const other = await open(life, 'second view');
await other.goto(at.origin);
// Tabs of their own processes, side by side.
await Promise.all([
  look(page, 'page', [['#/tools/weather__alerts', 'weather__alerts'], ['#/jobs', 'Jobs'], [`#/jobs/${job.id}`, job.id]]),
  look(view, 'demo', [
    ['#/overview', 'Overview'], ['#/approvals', 'Approvals'], ['#/runs', 'Runs'], [ofRun, run], [ofRun, run, 'talk'], [ofRun, run, 'play'], ['#/chat', 'Chat'], ['#/costs', 'Costs'],
  ]),
  look(other, 'demo', [
    ['#/agents', 'Agents'], [`#/agents/${encodeURIComponent(run)}`, run], ['#/triggers', 'Triggers'], ['#/tools', 'Tools'], ['#/tools/prompt', 'What would a prompt be shown?'],
    ['#/policy', 'Policy'], ['#/pins', 'Pins'],
  ]),
]);
await other.close();

await step('reject a changed definition, and approve it', view, async () => {
  await go(view, '#/pins', 'Pins');
  await says(view, 'changed');
  await view.waitForSelector('article .changes .bad');
  await pressed(view, 'Reject');
  await says(view, 'rejected.');
  await says(view, 'unapproved');
  await pressed(view, 'Approve');
  await says(view, 'No definition waits');
});

await step('a server that was restarted', view, async () => {
  isDown = true;
  await team.stop();
  await view.waitForFunction(() => document.querySelector('nav .foot')?.innerText.includes('lost'));
  const again = await startDemo(at.port);
  await view.waitForFunction(() => document.querySelector('h1')?.innerText === 'Signed out');
  await says(view, 'toolwright console');
  await again.stop();
});
await browser.close();
console.log(JSON.stringify({ problems, first_view_ms, tree_ms }));
