// Makes the pictures of the guide from the demo: `target/interop/bin/node interop/screens.mjs` after `interop/setup.sh` and a
// build. TOOLWRIGHT_INTEROP_DIR and TOOLWRIGHT_BIN_DIR name other places.
import { spawn } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const from = (variable, usual) => resolve(process.env[variable] ?? `${root}/${usual}`);
const { chromium } = createRequire(`${from('TOOLWRIGHT_INTEROP_DIR', 'target/interop')}/node/`)('playwright-core');
const folder = `${root}/docs/images`;
mkdirSync(folder, { recursive: true });

const demo = spawn('setpriv', ['--pdeathsig', 'TERM', `${from('TOOLWRIGHT_BIN_DIR', 'target/debug')}/toolwright`, 'demo', '--serve=127.0.0.1:0', '--print'], { stdio: ['ignore', 'ignore', 'pipe'] });
let link;
for await (const line of createInterface({ input: demo.stderr })) if ((link = line.match(/console: (\S+)/)?.[1])) break;
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-gpu'] });
const page = await browser.newPage({ viewport: { width: 1280, height: 800 }, reducedMotion: 'reduce' });
const loaded = (title) => page.waitForFunction((title) => document.querySelector('#app:not([aria-busy=true]) h1')?.innerText === title, title);
async function go(hash, title) {
  await page.evaluate((to) => { location.hash = to; }, hash);
  await loaded(title);
}
const shoot = async (name) => {
  await page.mouse.move(0, 0);
  await page.evaluate(() => scrollTo(0, 0));
  await page.screenshot({ path: `${folder}/${name}.png` });
};

await page.goto(link);
await loaded('Overview');
await go('#/approvals', 'Approvals');
await page.waitForSelector('article.question');
await shoot('console-approvals');
await go('#/overview', 'Overview');
await page.waitForFunction(() => document.querySelectorAll('[aria-label="Last runs and sessions"] tbody tr').length >= 3);
await shoot('console-overview');
await go('#/runs', 'Runs');
const run = page.locator('tbody tr').last().locator('a');
const title = decodeURIComponent((await run.getAttribute('href')).slice('#/runs/'.length));
await run.click();
await loaded(title);
await page.locator('.row .link', { hasText: 'shop:order' }).first().click();
await page.waitForSelector('aside pre');
await shoot('console-run');
await go('#/tools', 'Tools');
await page.emulateMedia({ colorScheme: 'dark' });
await shoot('console-tools');
await browser.close();
demo.kill('SIGTERM');
