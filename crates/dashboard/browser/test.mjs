// The dashboard of a job that trains and loses a parameter server, in a real browser:
//   node test.mjs DOWNPOUR CHROMIUM NODE_MODULES SHOTS MNIST
// Prints `ok …` for each thing that holds and ends with 1 at the first that does not.
import { spawn } from 'node:child_process';
import { appendFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { once } from 'node:events';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const [downpour, chromiumPath, modules, shots, mnist] = process.argv.slice(2);
const { chromium } = await import(pathToFileURL(join(modules, 'playwright-core/index.mjs')).href);
// What takes a second on a quiet machine. Every wait is for a state and ends with it, so this costs nothing.
const LONG = 240000;

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

// A promise, for so long.
function within(promise, what) {
  let timer;
  const late = new Promise((_, failed) => { timer = setTimeout(() => failed(new Error(`${what} takes more than ${LONG / 1000} s`)), LONG); });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

const dir = mkdtempSync(join(tmpdir(), 'downpour-dashboard-'));
const job = join(dir, 'job'), train = join(dir, 'train');
mkdirSync(train);
const started = [];

// A `downpour` that is to say where its page is. The list of runs is the test's own.
function start(args) {
  const child = spawn(downpour, args, { stdio: ['ignore', 'pipe', 'pipe'], env: { ...process.env, XDG_STATE_HOME: join(dir, 'state') } });
  const it = { child, said: '', ended: once(child, 'exit') };
  it.url = new Promise((found, failed) => {
    const hear = data => {
      it.said += data;
      const at = it.said.match(/dashboard at (http:\/\/\S+)/);
      if (at) found(at[1]);
    };
    child.stdout.on('data', hear);
    child.stderr.on('data', hear);
    child.on('exit', code => failed(new Error(`downpour ${args[0]} ended with ${code}: ${it.said}`)));
  });
  it.url.catch(() => {});
  started.push(it);
  return it;
}

// What a program saves at its end may take its time.
const training = (name, where, more) => ['run', '--name', name, '--drain', '60s', '--dir', where, '--dashboard', '0', '--quiet', ...more];
const program = (to, ...more) => ['--', downpour, 'demo-worker', '--model', 'softmax', '--data', mnist, '--dir', to, ...more];
// A long pause before the restart: long enough to be seen dead.
const runner = start([...training('browser-test', job, ['--ps', '2', '--workers', '2', '--backoff', '20s', '--restarts', '3', '--train-dir', train]),
  ...program(train, '--steps', '1000000000')]);
let browser;

// A page whose every request and complaint is kept.
async function open(address, options) {
  const page = await browser.newPage(options);
  const seen = { foreign: [], complaints: [] };
  page.on('request', r => { if (new URL(r.url()).origin !== new URL(address).origin) seen.foreign.push(r.url()); });
  page.on('console', m => { if (['error', 'warning'].includes(m.type())) seen.complaints.push(m.text()); });
  page.on('pageerror', e => seen.complaints.push(e.message));
  page.setDefaultTimeout(LONG);
  // What was announced stays known when something else is.
  await page.addInitScript(() => {
    window.announced = [];
    addEventListener('DOMContentLoaded', () => {
      const place = document.getElementById('announce');
      if (place) new MutationObserver(() => window.announced.push(place.textContent)).observe(place, { childList: true, characterData: true, subtree: true });
    });
  });
  await page.goto(address);
  await page.waitForSelector('.pulse.live, .pulse.over, #table-runs tbody');
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

// Kills a task when the page has been seen to show it alive, by its number in the job's record.
function kill(task) {
  const record = JSON.parse(readFileSync(join(job, 'run.json'), 'utf8'));
  process.kill(record.job.tasks.find(t => t.name === task).pid, 'SIGKILL');
}

async function lossAndReturn(page) {
  kill('ps:1');
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
  await page.waitForFunction(() => window.announced.some(words => /ps:1/.test(words)));
  ok(true, 'and are announced to those who do not see');
  await page.waitForSelector('#chart-steps .mark.loss', { state: 'attached' });
  ok(true, 'and marks on the time axis');
  ok(await page.getAttribute('[data-axis="step"]', 'aria-pressed') === 'true', 'curves have a step axis at first');
  await page.waitForFunction(() => document.querySelector('#curves .mark.loss') && document.querySelectorAll('#curves svg.chart:first-of-type .mark.checkpoint').length > 0);
  ok(true, 'on which the loss and checkpoints are marked, too');
  await grows(page, await points(page));
  ok(true, 'curves grow again');
  const rows = await page.evaluate(() => [...document.querySelectorAll('#events li')].map(e => e.className));
  ok(rows.every((kind, i) => kind !== 'checkpoint' || rows[i + 1] !== 'checkpoint'), 'checkpoints in a row are one event');
}

// One step across tasks, recorded on demand: who computed, who waited for whom.
async function oneStep(page) {
  await page.click('#record');
  await page.waitForFunction(() => document.querySelectorAll('#timeline .computed').length > 3 && document.querySelectorAll('#timeline .awaited').length > 0);
  const rows = await page.evaluate(() => [...document.querySelectorAll('#timeline text.row')].map(t => t.textContent));
  ok(['ps:0', 'ps:1'].every(t => rows.includes(t)) && rows.some(t => t.startsWith('worker:')), `a recorded step shows what tasks computed (${rows})`);
  const waits = await page.evaluate(() => [...document.querySelectorAll('#table-waits tbody tr')].map(r => [r.cells[0].textContent, r.cells[1].textContent]));
  ok(waits.some(([who, whom]) => who.startsWith('worker') && whom.startsWith('ps')) && waits.some(([who, whom]) => who.startsWith('ps') && whom.startsWith('worker')), 'and who waited for whom');
  await page.focus('#timeline svg');
  await page.keyboard.press('Home');
  ok(/(computed|waited) /.test(await page.textContent('#timeline .tip')), 'arrow keys read it');
  const trace = await page.evaluate(async () => (await fetch(document.getElementById('timeline-save').href)).json());
  ok(trace.traceEvents.length > 10, 'it can be saved for a trace viewer');
  await page.locator('#timeline-card').screenshot({ path: join(shots, 'timeline.png') });
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

// Smoothing, the log axis, zoom and pan, of the first chart.
async function chartTools(page) {
  const path = () => page.evaluate(() => document.querySelector('#curves svg.chart path').getAttribute('d'));
  const before = await path();
  await page.fill('#smooth', '0.9');
  ok(await path() !== before, 'curves are smoothed');
  await page.fill('#smooth', '0');
  await page.click('#log-axis');
  ok(await page.getAttribute('#log-axis', 'aria-pressed') === 'true' && await path() !== before, 'and drawn on a log axis');
  await page.click('#log-axis');
  // What is shown of the axis, whatever comes in meanwhile.
  const range = async () => (await page.evaluate(() => document.querySelector('#curves svg.chart').dataset.range)).split(' ').map(Number);
  const all = await range();
  await page.focus('#curves svg.chart');
  await page.keyboard.press('+');
  const near = await range();
  ok(near[1] - near[0] < (all[1] - all[0]) * 0.9, `+ zooms in (${all} to ${near})`);
  await page.keyboard.press('Shift+ArrowLeft');
  const panned = await range();
  ok(panned[0] < near[0], 'Shift and an arrow pan');
  for (let i = 0; i < 9; i++) await page.keyboard.press('Shift+ArrowLeft');
  await page.keyboard.press('0');
  ok((await range())[1] >= all[1], '0 shows all again, also from where nothing is');
  await page.locator('#curves svg.chart').first().blur();
}

async function logTools(page) {
  const shown = () => page.evaluate(() => [...document.querySelectorAll('#log > div')].filter(r => !r.hidden).length);
  appendFileSync(join(job, 'logs', 'ps-0.log'), 'WARN a needle in the log\n');
  await page.waitForFunction(() => document.querySelector('#log').textContent.includes('a needle in the log'));
  await page.fill('#log-find', 'NEEDLE');
  ok(await shown() === 1, 'a line of the log is found');
  await page.selectOption('#log-level', '3');
  ok(await shown() === 0, 'a warning is no error');
  await page.selectOption('#log-level', '2');
  ok(await shown() === 1, 'but a warning');
  await page.fill('#log-find', '');
  await page.selectOption('#log-level', '0');
}

// The job is over: its page says how it ended; the page of all runs shows it again, beside another.
async function afterwards(page) {
  runner.child.kill('SIGINT');
  await page.waitForSelector('#ending:not([hidden])');
  ok(/^interrupted .*global step [\d,]+/.test(await page.textContent('#ending-head')), 'the end is told, with the last step');
  ok(/[1-9].* steps\/s/.test(await page.textContent('#tile-steps-note')), 'with its mean rate, whatever other event files count');
  await page.screenshot({ path: join(shots, 'done.png'), fullPage: true });
  await within(runner.ended, 'the end of the job');
  await page.waitForSelector('.pulse.down');
  ok(true, 'a page whose job is over says so');
  const other = join(dir, 'other'), to = join(dir, 'train2');
  mkdirSync(to);
  await within(start([...training('short', other, ['--ps', '1', '--workers', '1', '--train-dir', to]), ...program(to, '--steps', '400', '--sync')]).ended, 'a short job');
  const pages = start(['dashboard', '--port', '0', job, other]);
  const address = await within(pages.url, 'the start of the dashboard');
  const [runs, seen] = await open(address + 'runs', { viewport: { width: 1280, height: 900 }, colorScheme: 'light' });
  await runs.waitForFunction(() => document.querySelectorAll('#table-runs tbody tr').length === 2);
  ok(/interrupted/.test(await runs.textContent('#table-runs')) && /done/.test(await runs.textContent('#table-runs')), 'both runs are listed with how they ended');
  for (const box of await runs.locator('#table-runs input').all()) await box.check();
  await runs.waitForFunction(() => document.querySelectorAll('#curves .legend li').length >= 2);
  await runs.waitForFunction(() => [...document.querySelectorAll('#table-compared tr.differs th')].some(h => h.textContent === '--sync'));
  ok(true, 'and compared: curves over each other, flags that differ');
  await fits(runs, 'compared');
  await runs.screenshot({ path: join(shots, 'compared.png'), fullPage: true });
  await runs.click('#table-runs a[title$="job"]');
  await runs.waitForSelector('#ending:not([hidden])');
  await grows(runs, 2);
  await runs.waitForFunction(() => document.querySelectorAll('#table-tasks tbody tr').length === 4 && /[1-9]/.test(document.getElementById('tile-steps').textContent));
  ok(true, 'a past run has its end, curves, tasks and last step');
  await runs.waitForFunction(() => document.querySelectorAll('#timeline .computed').length > 3);
  ok(true, 'and the step that was recorded');
  const [step, saved] = await runs.evaluate(() => [document.getElementById('tile-steps').textContent, document.getElementById('tile-checkpoint').textContent.replace('step ', '')]);
  ok(step === saved, `the last step is that of the last checkpoint (${step}, ${saved})`);
  await runs.screenshot({ path: join(shots, 'past.png'), fullPage: true });
  pages.child.kill('SIGINT');
  await within(pages.ended, 'the end of the dashboard');
  return seen;
}

async function twelve() {
  const to = join(dir, 'train12');
  mkdirSync(to);
  const many = start([...training('twelve', join(dir, 'twelve'), ['--ps', '4', '--workers', '8', '--train-dir', to]), ...program(to, '--steps', '1000000000')]);
  const [page, seen] = await open(await within(many.url, 'the start of twelve tasks'), { viewport: { width: 1280, height: 900 }, colorScheme: 'dark' });
  await page.waitForFunction(() => document.querySelectorAll('svg.matrix .node.alive').length === 12);
  await page.waitForFunction(() => document.querySelectorAll('svg.matrix .cell[data-link]').length >= 8);
  await grows(page, 2);
  ok(true, 'links of twelve tasks are a matrix');
  await fits(page, 'twelve tasks');
  await page.screenshot({ path: join(shots, 'twelve.png'), fullPage: true });
  many.child.kill('SIGINT');
  await within(many.ended, 'the end of twelve tasks');
  return seen;
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
  const address = await within(runner.url, 'the start of the job');
  browser = await chromium.launch({ executablePath: chromiumPath, timeout: LONG, args: ['--no-sandbox', '--disable-dev-shm-usage'] });
  const [page, seen] = await open(address, { viewport: { width: 1280, height: 900 }, colorScheme: 'light' });
  await live(page);
  await lossAndReturn(page);
  await byKeyboard(page);
  await chartTools(page);
  await logTools(page);
  await oneStep(page);
  await fits(page, 'laptop');
  const apart = await page.evaluate(() => {
    const boxes = [...document.querySelectorAll('#chart-staleness svg g > text:nth-of-type(1)')].map(t => t.getBoundingClientRect());
    return boxes.length > 3 && boxes.every((b, i) => !i || boxes[i - 1].right <= b.left + 1);
  });
  ok(apart, 'classes of staleness can be told apart');
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
  const wider = await phone.evaluate(() => [...document.querySelectorAll('.node')].filter(n => {
    const box = n.querySelector('rect').getBoundingClientRect();
    return [...n.querySelectorAll('text')].some(t => t.getBoundingClientRect().right > box.right + 1);
  }).map(n => n.dataset.task));
  ok(wider.length === 0, `what is said of a task stays in its box (${wider})`);
  ok(!/\d\.\d\d+ steps\/s/.test(await phone.title() + await phone.textContent('#tile-steps-note')), 'rates have no digits that mean nothing');
  ok(await phone.evaluate(() => getComputedStyle(document.querySelector('.pulse .dot')).animationName) === 'none', 'nothing moves where that is not wanted');
  await phone.screenshot({ path: join(shots, 'phone.png'), fullPage: true });
  await hostile(page);
  // A page that nobody looks at would be asked to hear of the end as well.
  await dark.close();
  await phone.close();
  const before = [seen, seenDark, seenPhone];
  ok(before.every(s => s.complaints.length === 0), `the browser has nothing to complain about ${before.flatMap(s => s.complaints).join(' | ')}`);
  const all = [...before, await afterwards(page), await twelve()];
  ok(all.every(s => s.foreign.length === 0), `no request left the page's origin ${all.flatMap(s => s.foreign)}`);
} catch (e) {
  console.error(e);
  for (const it of started) console.error(it.said.slice(-3000));
  process.exitCode = 1;
} finally {
  await browser?.close();
  const lives = it => it.child.exitCode === null && it.child.signalCode === null;
  for (const it of started.filter(lives)) {
    it.child.kill('SIGINT');
    await Promise.race([it.ended, new Promise(go => setTimeout(go, 20000))]);
    if (lives(it)) it.child.kill('SIGKILL');
  }
  rmSync(dir, { recursive: true, force: true });
}
