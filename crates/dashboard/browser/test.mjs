// The dashboard of a job that trains and loses a parameter server, in a real browser:
//   node test.mjs DOWNPOUR CHROMIUM NODE_MODULES SHOTS MNIST
// Prints `ok …` for each thing that holds and ends with 1 at the first that does not.
import { spawn } from 'node:child_process';
import { appendFileSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const [downpour, chromiumPath, modules, shots, mnist] = process.argv.slice(2);
const { chromium } = await import(pathToFileURL(join(modules, 'playwright-core/index.mjs')).href);
// What takes a second on a quiet machine.
const LONG = 60000;

function ok(holds, what) {
  if (!holds) throw new Error('not so: ' + what);
  console.log('ok ' + what);
}

// A TFRecord of one scalar, as event files hold them.
function crc(bytes) {
  let c = 0xffffffff;
  for (const b of bytes) {
    c ^= b;
    for (let k = 0; k < 8; k++) c = c & 1 ? (c >>> 1) ^ 0x82f63b78 : c >>> 1;
  }
  c = ~c >>> 0;
  const masked = (((c >>> 15) | (c << 17)) + 0xa282ead8) >>> 0;
  const out = Buffer.alloc(4);
  out.writeUInt32LE(masked);
  return out;
}
function record(data) {
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(data.length));
  return Buffer.concat([length, crc(length), data, crc(data)]);
}
function scalar(tag, step, value) {
  const name = Buffer.from(tag), number = Buffer.alloc(5), time = Buffer.alloc(9);
  number[0] = 0x15; number.writeFloatLE(value, 1);
  time[0] = 0x09; time.writeDoubleLE(Date.now() / 1000, 1);
  const inner = Buffer.concat([Buffer.from([0x0a, name.length]), name, number]);
  const summary = Buffer.concat([Buffer.from([0x0a, inner.length]), inner]);
  return record(Buffer.concat([time, Buffer.from([0x10, step, 0x2a, summary.length]), summary]));
}

const dir = mkdtempSync(join(tmpdir(), 'downpour-dashboard-'));
const job = join(dir, 'job'), train = join(dir, 'train');
mkdirSync(train);
// A long pause before the restart: long enough to be seen dead.
const runner = spawn(downpour, ['run', '--ps', '2', '--workers', '2', '--backoff', '6s', '--kill', 'ps:1@12s', '--drain', '3s',
  '--name', 'browser-test', '--dir', job, '--train-dir', train, '--dashboard', '0', '--quiet', '--',
  downpour, 'demo-worker', '--model', 'softmax', '--data', mnist, '--dir', train, '--steps', '1000000000'],
{ stdio: ['ignore', 'pipe', 'pipe'] });
let said = '';
const url = new Promise((found, failed) => {
  const hear = data => {
    said += data;
    const at = said.match(/dashboard at (http:\/\/\S+)/);
    if (at) found(at[1]);
  };
  runner.stdout.on('data', hear);
  runner.stderr.on('data', hear);
  runner.on('exit', code => failed(new Error(`the job ended with ${code}: ${said}`)));
});
const ended = new Promise(done => runner.on('exit', done));
let browser;

// A page whose every request and complaint is kept.
async function open(address, options) {
  const page = await browser.newPage(options);
  const seen = { foreign: [], complaints: [] };
  page.on('request', r => { if (!r.url().startsWith(address)) seen.foreign.push(r.url()); });
  page.on('console', m => { if (['error', 'warning'].includes(m.type())) seen.complaints.push(m.text()); });
  page.on('pageerror', e => seen.complaints.push(e.message));
  page.setDefaultTimeout(LONG);
  await page.goto(address);
  await page.waitForSelector('.pulse.live');
  return [page, seen];
}

async function fits(page, what) {
  const [wide, room] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  ok(wide <= room, `${what}: nothing is wider than the window (${wide} of ${room})`);
}

const points = page => page.evaluate(() => [...document.querySelectorAll('#curves svg.chart')].reduce((n, s) => n + Number(s.dataset.points || 0), 0));
const grows = (page, from) => page.waitForFunction(n => [...document.querySelectorAll('#curves svg.chart')].reduce((m, s) => m + Number(s.dataset.points || 0), 0) > n, from);

async function live(page) {
  await page.waitForFunction(() => document.querySelectorAll('.node.alive').length === 4);
  ok(true, 'four tasks are alive');
  await grows(page, 2);
  const first = await points(page);
  await grows(page, first);
  ok(true, 'curves grow');
  await page.waitForFunction(() => /[1-9]/.test(document.getElementById('tile-steps').textContent));
  ok(true, 'the global step is shown');
  await page.waitForFunction(() => document.querySelectorAll('#table-variables tbody tr').length >= 3);
  await page.waitForFunction(() => document.querySelectorAll('#chart-staleness .bar').length > 3);
  await page.waitForFunction(() => document.querySelectorAll('#chart-placement .bar').length === 2);
  ok(true, 'variables, staleness and placement are shown');
  // Both workers, each with updates of which some were late: they do not wait for each other.
  await page.waitForFunction(() => {
    const rows = [...document.querySelectorAll('#table-writers tbody tr')].map(r => [...r.cells].map(c => c.textContent));
    return ['worker:0', 'worker:1'].every(w => rows.some(r => r[0] === w && Number(r[3].replaceAll(',', '')) > 0 && Number(r[4]) > 0 && Number(r[5]) >= Number(r[4])));
  });
  ok(true, 'staleness is shown by worker');
  await page.waitForFunction(() => [...document.querySelectorAll('#table-variables tbody tr')].some(r => Number(r.cells[5].textContent) > 0));
  ok(true, 'and by variable');
  await page.waitForFunction(() => document.querySelectorAll('#table-checkpoints tbody tr').length > 0);
  ok(true, 'checkpoints are listed');
  await page.waitForFunction(() => document.querySelectorAll('.link.busy').length > 0);
  ok(true, 'links are busy');
}

async function lossAndReturn(page) {
  await page.waitForSelector('.node.lost[data-task="ps:1"]', { state: 'attached' });
  const red = await page.evaluate(() => {
    const stroke = getComputedStyle(document.querySelector('.node.lost rect')).stroke;
    const [r, g, b] = stroke.match(/[\d.]+/g).map(Number);
    return r > 2 * g && r > 2 * b;
  });
  ok(red, 'a killed ps is red');
  ok(/lost: ps:1/.test(await page.textContent('#tile-tasks-note')), 'and is named');
  await page.screenshot({ path: join(shots, 'lost.png'), fullPage: true });
  await page.waitForSelector('.node.alive[data-task="ps:1"]', { state: 'attached' });
  await page.waitForSelector('#events li.loss', { state: 'attached' });
  await page.waitForSelector('#events li.restart', { state: 'attached' });
  ok(true, 'it comes back, and both are events');
  ok(/ps:1/.test(await page.textContent('#announce')), 'and are announced to those who do not see');
  await page.waitForSelector('#chart-steps .mark.loss', { state: 'attached' });
  ok(true, 'and marks on the time axis');
  await grows(page, await points(page));
  ok(true, 'curves grow again');
}

async function byKeyboard(page) {
  await page.keyboard.press('Tab');
  ok(await page.evaluate(() => document.activeElement.className === 'skip'), 'the first stop skips to the figures');
  await page.focus('#chart-runs svg');
  await page.keyboard.press('End');
  await page.keyboard.press('ArrowLeft');
  await page.waitForFunction(() => /worker:0/.test(document.querySelector('#chart-runs .tip').textContent));
  ok(true, 'arrow keys read a chart');
  await page.focus('[data-axis="time"]');
  await page.keyboard.press('Enter');
  ok(await page.getAttribute('[data-axis="time"]', 'aria-pressed') === 'true', 'the axis is chosen by keyboard');
  await page.waitForSelector('#curves .mark.loss', { state: 'attached' });
  ok(true, 'the loss is marked on the curves');
  const nameless = await page.evaluate(() => [...document.querySelectorAll('svg[role=img], button, select, [role=region], [role=log]')]
    .filter(e => !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.textContent.trim() || e.labels?.length)).length);
  ok(nameless === 0, 'everything has a name');
}

async function hostile(page) {
  const name = '<img src=x onerror=hacked()>';
  mkdirSync(join(train, name));
  const bad = '<script>hacked()</script><img src=x onerror=hacked()>';
  writeFileSync(join(train, name, 'events.out.tfevents.1.h'), Buffer.concat([scalar(bad, 1, 1), scalar(bad, 2, 2)]));
  appendFileSync(join(job, 'logs', 'ps-0.log'), `\u001b[31m${bad}\n`);
  await page.evaluate(() => { window.hacked = () => { window.wasHacked = true; }; });
  await page.waitForFunction(t => document.querySelector('#curves').textContent.includes(t), bad);
  await page.waitForFunction(t => document.querySelector('#log').textContent.includes(t), bad);
  const harmed = await page.evaluate(() => window.wasHacked === true || document.querySelector('img[src=x], #curves script, #log script') !== null);
  ok(!harmed, 'names from files are text and nothing else');
}

try {
  const address = await url;
  browser = await chromium.launch({ executablePath: chromiumPath, args: ['--no-sandbox', '--disable-dev-shm-usage'] });
  const [page, seen] = await open(address, { viewport: { width: 1280, height: 900 }, colorScheme: 'light' });
  await live(page);
  await lossAndReturn(page);
  await byKeyboard(page);
  await fits(page, 'laptop');
  await page.screenshot({ path: join(shots, 'light.png'), fullPage: true });
  await page.click('#theme');
  ok(await page.evaluate(() => document.documentElement.dataset.theme) === 'dark', 'dark by a click');
  const [dark, seenDark] = await open(address, { viewport: { width: 1280, height: 900 }, colorScheme: 'dark' });
  await live(dark);
  ok(await dark.evaluate(() => getComputedStyle(document.body).backgroundColor) === 'rgb(11, 17, 24)', 'dark where the system is');
  await dark.screenshot({ path: join(shots, 'dark.png'), fullPage: true });
  const [phone, seenPhone] = await open(address, { viewport: { width: 390, height: 844 }, colorScheme: 'light', reducedMotion: 'reduce', isMobile: true, hasTouch: true });
  await live(phone);
  await fits(phone, 'phone');
  ok(await phone.evaluate(() => getComputedStyle(document.querySelector('.pulse .dot')).animationName) === 'none', 'nothing moves where that is not wanted');
  await phone.screenshot({ path: join(shots, 'phone.png'), fullPage: true });
  await hostile(page);
  const all = [seen, seenDark, seenPhone];
  ok(all.every(s => s.foreign.length === 0), `no request left the page's origin ${all.flatMap(s => s.foreign)}`);
  ok(all.every(s => s.complaints.length === 0), `the browser has nothing to complain about ${all.flatMap(s => s.complaints).join(' | ')}`);
  runner.kill('SIGINT');
  await ended;
  await page.waitForSelector('.pulse.down');
  ok(true, 'a page whose job is over says so');
} catch (e) {
  console.error(e);
  console.error(said.slice(-3000));
  process.exitCode = 1;
} finally {
  await browser?.close();
  if (runner.exitCode === null && runner.signalCode === null) {
    runner.kill('SIGINT');
    await Promise.race([ended, new Promise(go => setTimeout(go, 20000))]);
  }
  if (runner.exitCode === null && runner.signalCode === null) runner.kill('SIGKILL');
  rmSync(dir, { recursive: true, force: true });
}
