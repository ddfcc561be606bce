// A person with Debian's Chromium at the console. Reads { link, url, token, screens? } as JSON from standard input: a fresh
// address of the console, the server's root and its token. Prints { problems, first_view_ms } as JSON.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { text } from 'node:stream/consumers';
import { chromium } from 'playwright-core';

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const { link, url, token, screens } = JSON.parse(await text(process.stdin));
const problems = [];
const check = (fits, what) => fits || problems.push(what);
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-gpu'] });

/** A page that reports what it must not do. */
async function open(context, name) {
  const page = await context.newPage();
  // A request that the server refuses is logged by the browser itself; the page shows it.
  page.on('console', (said) => said.type() === 'error' && !/status of 4\d\d/.test(said.text()) && problems.push(`${name}: ${said.text()}`));
  page.on('pageerror', (error) => problems.push(`${name}: ${error.message}`));
  page.on('request', (request) => /^(blob|data):/.test(request.url()) || new URL(request.url()).origin === url || problems.push(`${name}: asks ${request.url()}`));
  await page.addInitScript(() => addEventListener('securitypolicyviolation', (event) => console.error(`policy: ${event.violatedDirective}`)));
  return page;
}

const api = (path, body) =>
  fetch(url + path, { method: body ? 'POST' : 'GET', headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' }, body: body && JSON.stringify(body) })
    .then((response) => response.json());
async function eventually(probe, wanted) {
  for (let tries = 0; tries < 50 && (await probe()) !== wanted; tries += 1) await new Promise((done) => setTimeout(done, 100));
  return probe();
}
/** A call that waits for a person, made in the background; what comes of it. */
const held = (body) => api('/api/call', { tool: 'weather__forecast', arguments: { city: body, days: 1 } });
const settled = (page, what) => page.waitForFunction((text) => document.querySelector('main')?.innerText.includes(text), what, { timeout: 10_000 })
  .catch(async () => problems.push(`the page never said "${what}" but ${(await page.locator('main').innerText()).slice(0, 300)}`));

const context = await browser.newContext({ viewport: { width: 1400, height: 900 }, colorScheme: 'light' });
const page = await open(context, 'light');
const began = performance.now();
await page.goto(link);
await page.waitForSelector('h1');
const first_view_ms = Math.round(performance.now() - began);
check(!page.url().includes('token'), 'the address keeps its token');

// Try a tool, by its form.
await page.evaluate(() => { location.hash = '#/tools/weather__alerts'; });
await page.locator('form input').first().fill('Oslo');
await page.locator('button.main').first().click();
await settled(page, 'ok');

// By keyboard alone: to the approvals, approve one, deny the next; each call has its answer.
await Promise.all([held('Oslo'), held('Rome')]);
await page.locator('h1').first().focus();
await page.keyboard.press('g');
await page.keyboard.press('a');
await page.waitForSelector('article.chosen');
await page.waitForFunction(() => document.querySelectorAll('article').length === 2);
await page.keyboard.press('a');
await settled(page, 'approve.');
await page.waitForFunction(() => document.querySelectorAll('article').length === 1);
await page.waitForTimeout(100);
await page.keyboard.press('d');
await settled(page, 'deny.');
const states = async () => (await api('/api/jobs?limit=9')).map((job) => job.state).sort().join(' ');
check((await eventually(states, 'done error')) === 'done error', `one approved, one denied: ${await states()}`);

// Two tabs answer one question: one wins, the other is told.
await held('Paris');
const other = await open(context, 'second tab');
await other.goto(`${url}/#/approvals`);
await Promise.all([page, other].map((tab) => tab.waitForSelector('article.chosen')));
await Promise.all([page, other].map((tab) => tab.keyboard.press('a')));
const said = await Promise.all([page, other].map(async (tab) => {
  await tab.waitForFunction(() => document.querySelector('p[role=status]:not(.foot)')?.innerText);
  return tab.locator('main p[role=status]').first().innerText();
}));
check(said.filter((text) => text.includes('approve.')).length === 1, `one tab wins, and the other is told: ${JSON.stringify(said)}`);
await other.close();

// Every page, in both themes, wide and narrow.
const { traces } = await api('/api/traces?limit=1');
const run = `#/runs/${encodeURIComponent(traces[0].run ?? traces[0].session)}`;
for (const [scheme, width] of [['light', 1400], ['dark', 1400], ['light', 360], ['dark', 360]]) {
  await page.emulateMedia({ colorScheme: scheme });
  await page.setViewportSize({ width, height: 900 });
  for (const hash of ['#/overview', '#/tools', '#/tools/weather__alerts', '#/runs', run, '#/approvals', '#/jobs', '#/costs']) {
    await page.evaluate((to) => { location.hash = to; }, hash);
    await page.waitForFunction(() => document.querySelector('h1') && !document.querySelector('main').innerText.includes('Loading.'));
    await page.waitForTimeout(100);
    const where = `${hash} ${scheme} ${width}`;
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    check(wide <= 0, `${where}: ${wide} px too wide`);
    await page.evaluate(axe);
    const { violations } = await page.evaluate(() => axe.run());
    for (const { id, help, nodes } of violations) problems.push(`${where}: ${id}, ${help}: ${nodes[0].target.join(' ')}`);
    if (screens) await page.screenshot({ path: `${screens}/${hash.slice(2).split('/').slice(0, 2).join('-').replace(/\W/g, '-')}-${scheme}-${width}.png` });
  }
}
await browser.close();
console.log(JSON.stringify({ problems, first_view_ms }));
