// A person with Debian's Chromium at the console. Reads JSON from standard input: { link, url, token, screens?, assets? }: a
// fresh address of the console, the server's root and its token, a folder for pictures, and a folder of assets to use instead of
// the server's. Prints { problems, first_view_ms } as JSON.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { text } from 'node:stream/consumers';
import { chromium } from 'playwright-core';

/** Milliseconds after which something that should happen did not. */
const WAIT = 60_000;
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const { link, url, token, screens, assets } = JSON.parse(await text(process.stdin));
const problems = [];
const check = (fits, what) => fits || problems.push(what);
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-gpu'] });

/** A page that reports what it must not do. */
async function open(context, name) {
  const page = await context.newPage();
  page.setDefaultTimeout(WAIT);
  // A request that the server refuses is logged by the browser itself; the page shows it.
  page.on('console', (said) => said.type() === 'error' && !/status of 4\d\d/.test(said.text()) && problems.push(`${name}: ${said.text()}`));
  page.on('pageerror', (error) => problems.push(`${name}: ${error.message}`));
  page.on('request', (request) => /^(blob|data):/.test(request.url()) || new URL(request.url()).origin === url || problems.push(`${name}: asks ${request.url()}`));
  await page.addInitScript(() => addEventListener('securitypolicyviolation', (event) => console.error(`policy: ${event.violatedDirective}`)));
  const disk = (path) => (path === '/' ? '/index.html' : path.replace('/console', ''));
  if (assets) {
    await page.route((to) => to.pathname === '/' || /^\/console\/.*\./.test(to.pathname), async (route) =>
      route.fulfill({ response: await route.fetch(), body: readFileSync(assets + disk(new URL(route.request().url()).pathname)) }));
  }
  return page;
}

const api = (path, body) =>
  fetch(url + path, { method: body ? 'POST' : 'GET', headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' }, body: body && JSON.stringify(body) })
    .then((response) => response.json());
async function eventually(what, probe, wanted) {
  const end = Date.now() + WAIT;
  let is;
  while ((is = await probe()) !== wanted && Date.now() < end) await new Promise((done) => setTimeout(done, 100));
  check(is === wanted, `${what}: ${is}, not ${wanted}`);
}
/** Runs a step; its failure is a problem, and the next step runs all the same. */
async function step(name, run) {
  try {
    await run();
  } catch (error) {
    const shown = await page.locator('main').innerText({ timeout: 1000 }).catch(() => 'nothing');
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
/** A call that waits for a person, made in the background. */
const held = (city) => api('/api/call', { tool: 'weather__forecast', arguments: { city, days: 1 } });
const questions = (tab, count) => tab.waitForFunction((count) => document.querySelectorAll('article.question').length === count
  && (!count || document.querySelector('article.chosen')) && !document.querySelector('#app[aria-busy=true]'), count);

// Without movement: colours that change slowly are measured halfway.
const context = await browser.newContext({ viewport: { width: 1400, height: 900 }, colorScheme: 'light', reducedMotion: 'reduce' });
const page = await open(context, 'page');
const began = performance.now();
await page.goto(link);
await page.waitForSelector('h1');
const first_view_ms = Math.round(performance.now() - began);
check(!page.url().includes('token'), 'the address keeps its token');

await step('try a tool by its form', async () => {
  await go(page, '#/tools/weather__alerts', 'weather__alerts');
  await page.locator('form input').first().fill('Oslo');
  await page.locator('button.main').first().click();
  await says(page, 'ok');
});

await step('approve one and deny the next by keyboard', async () => {
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
  const states = async () => (await api('/api/jobs?limit=9')).map((job) => job.state).sort().join(' ');
  await eventually('one approved, one denied', states, 'done error');
});

await step('one of two tabs wins', async () => {
  await held('Paris');
  const second = await open(context, 'second tab');
  await second.goto(`${url}/#/approvals`);
  const tabs = [page, second];
  await Promise.all(tabs.map((tab) => questions(tab, 1)));
  await Promise.all(tabs.map((tab) => tab.keyboard.press('a')));
  const told = await Promise.all(tabs.map(async (tab) => {
    await tab.waitForFunction(() => /approve\.|answered|approved|settled/.test(document.querySelector('main p[role=status]')?.innerText));
    return tab.locator('main p[role=status]').innerText();
  }));
  check(told.filter((text) => text.includes('approve.')).length === 1, `one tab wins, and the other is told: ${JSON.stringify(told)}`);
  await second.close();
});

const { traces } = await api('/api/traces?limit=1');
const last = traces[0].run ?? traces[0].session;
const PAGES = [
  ['#/overview', 'Overview'], ['#/tools', 'Tools'], ['#/tools/weather__alerts', 'weather__alerts'], ['#/runs', 'Runs'],
  [`#/runs/${encodeURIComponent(last)}`, last], ['#/approvals', 'Approvals'], ['#/jobs', 'Jobs'], ['#/costs', 'Costs'],
];
for (const [scheme, width] of [['light', 1400], ['dark', 1400], ['light', 360], ['dark', 360]]) {
  await page.emulateMedia({ colorScheme: scheme, reducedMotion: 'reduce' });
  await page.setViewportSize({ width, height: 900 });
  for (const [hash, title] of PAGES) {
    const where = `${hash} ${scheme} ${width}`;
    await step(where, async () => {
      await go(page, hash, title);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      check(wide <= 0, `${where}: ${wide} px too wide`);
      await page.evaluate(axe);
      const { violations } = await page.evaluate(() => axe.run());
      for (const { id, help, nodes } of violations) problems.push(`${where}: ${id}, ${help}: ${nodes[0].target.join(' ')}`);
      if (screens) await page.screenshot({ path: `${screens}/${hash.slice(2).split('/').slice(0, 2).join('-').replace(/\W/g, '-')}-${scheme}-${width}.png` });
    });
  }
}
await browser.close();
console.log(JSON.stringify({ problems, first_view_ms }));
