// Asks the API once a second and shows what it says.
'use strict';

const EVERY = 1000, MAX_ROWS = 900, MAX_LOG = 600;
const $ = id => document.getElementById(id);
const known = { state: null, rows: [], tasks: [], nextSample: 0, curves: [], scalars: null, nextLog: 0, sources: new Map(), announced: null, axis: 'step', heard: 0, alerted: new Set(), name: String(Math.random()).slice(2), showsEnd: false };
const charts = { curves: new Map() };
const run = new URLSearchParams(location.search).get('run');
const view = chartTools($('chart-tools'), () => { if (known.state) showCurves(known.state); });

async function ask(path) {
  const stop = new AbortController(), timer = setTimeout(() => stop.abort(), 5000);
  try {
    const of = run ? path + (path.includes('?') ? '&' : '?') + 'run=' + encodeURIComponent(run) : path;
    const answer = await fetch(of, { signal: stop.signal, cache: 'no-store' });
    if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
    return await answer.json();
  } finally {
    clearTimeout(timer);
  }
}

async function tick() {
  try {
    const state = await ask(`/api/state?page=${known.name}${known.showsEnd ? '&shows=end' : ''}`);
    known.state = state;
    known.heard = Date.now();
    if (state.next_sample < known.nextSample) { known.rows = []; known.nextSample = 0; }
    if (state.next_sample !== known.nextSample) {
      const more = await ask(`/api/samples?since=${known.nextSample}`);
      known.tasks = more.tasks;
      known.rows = known.rows.concat(more.rows).slice(-MAX_ROWS);
      known.nextSample = more.next;
    }
    if (state.scalars_version !== known.scalars) {
      const more = await ask('/api/scalars');
      known.scalars = more.version;
      known.curves = more.curves || [];
    }
    if (state.next_log < known.nextLog) known.nextLog = 0;
    if (state.next_log !== known.nextLog) {
      const more = await ask(`/api/logs?since=${known.nextLog}`);
      known.nextLog = more.next;
      showLog(more.lines);
    }
    if (state.recording && state.recording.count !== recorded.count) {
      if (state.recording.count) takeTrace(await ask('/api/timeline'));
      recorded.count = state.recording.count;
    }
    show();
    pulse(true);
    // The job's process waits until the end is shown.
    if (state.job && state.job.ended && !known.showsEnd) {
      known.showsEnd = true;
      await ask(`/api/state?page=${known.name}&shows=end`);
    }
  } catch (e) {
    pulse(false);
  }
}

function pulse(live) {
  const ended = known.state && known.state.job && known.state.job.ended;
  if (ended) {
    $('pulse').className = 'pulse ' + (live ? 'over' : 'down');
    text($('pulse-text'), live ? `ended: ${ended.outcome}` : `ended: ${ended.outcome}; nobody answers any more`);
    return;
  }
  $('pulse').className = 'pulse ' + (live ? 'live' : 'down');
  const ago = known.heard ? `no answer for ${Format.span((Date.now() - known.heard) / 1000)}` : 'no answer';
  text($('pulse-text'), live ? 'live' : ago);
}

function text(node, words) {
  words = String(words);
  if (node.textContent !== words) node.textContent = words;
}

function show() {
  const s = known.state;
  const alive = s.tasks.filter(t => t.phase === 'alive' || t.phase === 'mute').length;
  const lost = s.tasks.filter(t => t.phase === 'lost');
  const name = (s.job && s.job.name) || s.title || 'cluster';
  text($('title'), name);
  text($('subtitle'), [s.job && s.job.phase, `${s.tasks.length} tasks`, s.job && s.job.ended ? `took ${Format.span(s.job.ended.seconds)}` : `watched for ${Format.span(s.now - s.began)}`].filter(Boolean).join(' · '));
  document.title = `${lost.length ? '▲ ' : ''}${alive}/${s.tasks.length} · ${Format.rate(s.global_step.per_second)} steps/s · ${name}`;
  text($('foot'), `Downpour ${s.version}`);
  showEnding(s);
  showAlerts(s);
  tiles(s, alive, lost);
  drawTopology($('topology'), s);
  showCurves(s);
  showRates(s);
  showStaleness(s);
  showPlacement(s);
  if (s.recording) showTimeline(s);
  tables(s);
  showEvents(s);
  announce(s);
}

function showEnding(s) {
  const e = s.job && s.job.ended;
  $('ending').hidden = !e;
  if (!e) return;
  $('ending').className = `ending wide ${e.outcome}`;
  const accuracy = s.results.test_accuracy ?? s.results['test accuracy'];
  const step = s.global_step.value === null ? null : `global step ${s.global_step.value.toLocaleString('en')}`;
  text($('ending-head'), [e.outcome, accuracy === undefined ? null : `test accuracy ${(accuracy * 100).toFixed(2)} %`, step, Format.span(e.seconds)].filter(Boolean).join(' · '));
  text($('ending-why'), e.why);
  $('ending-cause').hidden = !e.cause;
  text($('ending-cause'), e.cause || '');
}

function showAlerts(s) {
  $('alerts').hidden = s.alerts.length === 0;
  const words = s.alerts.map(a => a.kind + a.text).join();
  if ($('alerts').dataset.words !== words) {
    $('alerts').dataset.words = words;
    $('alerts').replaceChildren(...s.alerts.map(a => el('li', { class: a.kind }, el('strong', {}, a.kind), ` ${a.text} `, el('time', {}, 'since ' + Format.clock(a.since)))));
  }
  for (const a of s.alerts) {
    const id = a.kind + a.since;
    if (known.alerted.has(id)) continue;
    known.alerted.add(id);
    if ($('notify').getAttribute('aria-pressed') === 'true') new Notification(`Downpour: ${a.kind}`, { body: a.text, tag: id });
  }
}

$('notify').addEventListener('click', async () => {
  const on = $('notify').getAttribute('aria-pressed') !== 'true' && await Notification.requestPermission() === 'granted';
  $('notify').setAttribute('aria-pressed', on);
});

// Whether steps were seen for the first time just now: how fast they are is not known yet.
function hasBegun(s) {
  return !(s.job && s.job.ended) && !s.global_step.mean_per_second && s.global_step.moved !== null && s.now - s.global_step.moved < 10;
}

function tiles(s, alive, lost) {
  const done = s.tasks.filter(t => t.phase === 'done').length;
  text($('tile-tasks'), `${alive} of ${s.tasks.length}`);
  text($('tile-tasks-note'), lost.length ? 'lost: ' + lost.map(t => t.short).join(', ') : alive === s.tasks.length ? 'all alive' : done ? `${done} done` : 'alive');
  const g = s.global_step;
  text($('tile-steps'), g.value === null ? '–' : g.value.toLocaleString('en'));
  text($('tile-steps-note'), g.value === null ? 'no global step seen' : g.per_second > 0 ? `${Format.rate(g.per_second)} steps/s` : hasBegun(s) ? 'has just begun' : `${s.job && s.job.ended ? '' : 'stands; '}${Format.rate(g.mean_per_second)} steps/s on average`);
  const rate = s.links.reduce((n, l) => n + l.bytes_per_second, 0);
  text($('tile-bytes'), Format.bytes(rate) + '/s');
  text($('tile-bytes-note'), Format.bytes(s.links.reduce((n, l) => n + l.bytes, 0)) + ' in all');
  text($('tile-variables'), Format.bytes(s.placement.parameter_bytes));
  const slots = s.placement.bytes - s.placement.parameter_bytes;
  text($('tile-variables-note'), `in ${s.placement.parameters} variables` + (slots > 0 ? `, and ${Format.bytes(slots)} beside them` : ''));
  const c = s.checkpoints[0];
  text($('tile-checkpoint'), c ? (c.step === null ? c.name : 'step ' + c.step.toLocaleString('en')) : '–');
  text($('tile-checkpoint-note'), c ? (c.time ? Format.span(s.now - c.time) + ' ago' : c.name) : 'none seen');
}

function marksOf(s, toX) {
  // Some jobs save every second: of many checkpoints, as many as can be told apart, over all of the time.
  const all = s.events.filter(e => e.kind === 'checkpoint'), stride = Math.ceil(all.length / 40) || 1;
  const saved = new Set(all.filter((e, i) => (all.length - 1 - i) % stride === 0));
  return s.events.filter(e => ['loss', 'restart'].includes(e.kind) || saved.has(e))
    .map(e => ({ x: toX(e), kind: e.kind, text: `${Format.clock(e.time)} ${e.task ? e.task + ' ' : ''}${e.text}` }))
    .filter(m => m.x !== null);
}

function showCurves(s) {
  const byTag = new Map();
  for (const c of known.curves) {
    if (!byTag.has(c.tag)) byTag.set(c.tag, []);
    byTag.get(c.tag).push(c);
  }
  $('curves-empty').hidden = byTag.size > 0;
  const runs = [...new Set(known.curves.map(c => c.run))];
  for (const [tag, chart] of charts.curves) if (!byTag.has(tag)) { chart.figure.remove(); charts.curves.delete(tag); }
  // What people look for first comes first.
  const rank = tag => /loss/i.test(tag) ? 0 : /acc/i.test(tag) ? 1 : 2;
  const tags = [...byTag.keys()].sort((a, b) => rank(a) - rank(b) || a.localeCompare(b)).slice(0, 24);
  for (const tag of tags) {
    const time = known.axis === 'time';
    if (!charts.curves.has(tag)) {
      charts.curves.set(tag, new LineChart($('curves'), {
        view, title: tag, label: tag, formatY: Format.number, time: () => known.axis === 'time',
        formatX: x => known.axis === 'time' ? Format.clock(x) : Format.number(x),
      }));
    }
    const series = byTag.get(tag).map(c => ({
      name: c.run || 'train', colour: runs.indexOf(c.run), points: c.points.map(p => [time ? p[1] : p[0], p[2]]),
    }));
    charts.curves.get(tag).update({ series, marks: marksOf(s, e => time ? e.time : e.step) });
  }
}

function showRates(s) {
  const colour = new Map(s.tasks.map((t, i) => [t.short, i]));
  const lines = (field, wanted) => known.tasks.map((task, i) => ({ name: task, colour: colour.get(task) || 0, points: known.rows.map(r => [r.time, r[field][i] === undefined ? null : r[field][i]]) }))
    .filter(line => wanted(line));
  const options = { time: () => true, formatX: Format.clock, fromZero: true };
  charts.steps ||= new LineChart($('chart-steps'), { ...options, label: 'Global steps per second', formatY: Format.rate });
  charts.runs ||= new LineChart($('chart-runs'), { ...options, label: 'Session runs per second', formatY: Format.rate });
  charts.cpu ||= new LineChart($('chart-cpu'), { ...options, label: 'Busy processors', formatY: Format.number });
  charts.memory ||= new LineChart($('chart-memory'), { ...options, label: 'Memory', formatY: Format.bytes });
  charts.bytes ||= new LineChart($('chart-bytes'), { ...options, label: 'Bytes received per second', formatY: Format.bytes });
  const some = line => line.points.some(p => p[1] > 0);
  const marks = marksOf(s, e => e.time).filter(m => m.kind !== 'checkpoint');
  charts.steps.update({ series: [{ name: 'global step', colour: 0, points: known.rows.map(r => [r.time, r.step === null ? null : r.steps_per_second]) }], marks });
  charts.runs.update({ series: lines('runs', line => some(line) || !line.name.startsWith('ps:')), marks });
  charts.cpu.update({ series: lines('cpu', some), marks });
  charts.memory.update({ series: lines('memory', some), marks });
  charts.bytes.update({ series: lines('received', some), marks });
}

function showStaleness(s) {
  const { from, counts } = s.staleness;
  let last = counts.length - 1;
  while (last > 5 && !counts[last]) last--;
  const name = i => i + 1 < from.length && from[i + 1] - from[i] > 1 ? `${from[i]}–${from[i + 1] - 1}` : i === from.length - 1 ? `${from[i]}+` : String(from[i]);
  // Ranges are named by where they begin: there is no room for more.
  const brief = i => name(i).includes('–') ? `${from[i]}+` : name(i);
  const bars = counts.slice(0, last + 1).map((value, i) => ({ name: brief(i), value, title: `${name(i)} updates late: ${value} times` }));
  const total = counts.reduce((a, b) => a + b, 0);
  const fresh = total ? Math.round(counts[0] / total * 100) : 0;
  barChart($('chart-staleness'), bars, total ? `Update staleness: ${total} updates measured, ${fresh}% on the newest value` : 'Update staleness: nothing measured yet');
}

function showPlacement(s) {
  const holders = s.tasks.filter(t => t.job === 'ps' || t.variables > 0);
  const bars = holders.map(t => ({ name: clip(t.short, 11), value: t.variable_bytes, text: `${Format.bytes(t.variable_bytes)}, ${t.variables} variables`, colour: s.tasks.indexOf(t) }));
  levelChart($('chart-placement'), bars, 'Parameter placement: ' + holders.map(t => `${t.short} ${Format.bytes(t.variable_bytes)}`).join(', '));
  text($('placement-note'), holders.length > 1 ? `largest is ${s.placement.imbalance.toFixed(2)}× the mean` : '');
}

// Cells are changed in place: whoever reads the table is not thrown out of it.
function table(node, columns, rows) {
  if (!node.tHead) {
    const head = el('tr', {}, ...columns.map(c => el('th', { scope: 'col', class: c.number ? 'number' : null }, c.name)));
    node.append(el('thead', {}, head), el('tbody', {}));
  }
  const body = node.tBodies[0];
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((row, i) => {
    const line = body.rows[i] || body.insertRow();
    columns.forEach((column, j) => {
      const cell = line.cells[j] || line.insertCell();
      const kind = column.number ? 'number' : column.long ? 'text' : '';
      if (cell.className !== kind) cell.className = kind;
      if (column.draw) column.draw(cell, row); else text(cell, column.of(row));
    });
  });
}

function drawPhase(cell, t) {
  if (cell.dataset.phase === t.phase) return;
  cell.dataset.phase = t.phase;
  cell.replaceChildren(el('span', { class: `phase ${t.phase}` }, el('span', { class: 'dot', 'aria-hidden': 'true' }), PHASES[t.phase] || t.phase));
}

function tables(s) {
  const whole = n => n.toLocaleString('en');
  const late = stale => stale.mean === null ? '–' : stale.mean.toFixed(2);
  table($('table-tasks'), [
    { name: 'Task', of: t => t.short }, { name: 'State', draw: drawPhase },
    { name: 'For', number: true, of: t => Format.span(s.now - t.since) }, { name: 'Address', of: t => t.address },
    { name: 'Runs', number: true, of: t => whole(t.session_runs.ended) }, { name: 'Failed', number: true, of: t => whole(t.session_runs.failed) },
    { name: 'Graphs', number: true, of: t => whole(t.graph_runs.ended) }, { name: 'Running', number: true, of: t => whole(t.graph_runs.started - t.graph_runs.ended) },
    { name: 'CPU', number: true, of: t => t.phase === 'alive' ? t.rates.cpu.toFixed(2) : '–' },
    { name: 'Waits for', number: true, of: t => whole(t.waiting) }, { name: 'Sessions', number: true, of: t => `${t.sessions} + ${t.guests}` },
    { name: 'Memory', number: true, of: t => Format.bytes(t.memory) }, { name: 'Restarts', number: true, of: t => t.restarts },
    { name: 'Note', long: true, of: t => t.phase === 'alive' ? (t.is_draining ? 'is stopping' : t.process || '') : t.phase === 'done' ? t.process || '' : [t.process, t.reason].filter(Boolean).join(': ') },
  ], s.tasks);
  table($('table-links'), [
    { name: 'From', of: l => l.from }, { name: 'To', of: l => l.to },
    { name: 'Per second', number: true, of: l => Format.bytes(l.bytes_per_second) },
    { name: 'In all', number: true, of: l => Format.bytes(l.bytes) }, { name: 'Tensors', number: true, of: l => whole(l.tensors) },
  ], s.links);
  table($('table-variables'), [
    { name: 'Variable', long: true, of: v => v.name }, { name: 'Task', of: v => v.task },
    { name: 'Type', of: v => v.dtype + (v.shape.length ? ` [${v.shape.join(', ')}]` : '') },
    { name: 'Bytes', number: true, of: v => v.is_initialized ? Format.bytes(v.bytes) : 'no value' }, { name: 'Updates', number: true, of: v => whole(v.updates) },
    { name: 'Stale', number: true, of: v => late(v.stale) }, { name: 'Worst', number: true, of: v => v.stale.updates ? whole(v.stale.worst) : '–' },
  ], s.variables);
  $('table-writers').parentElement.hidden = s.writers.length === 0;
  table($('table-writers'), [
    { name: 'Updated by', of: w => w.name }, { name: 'In', of: w => w.training || '–' },
    { name: 'Steps', number: true, of: w => w.clock !== null ? whole(w.clock) : w.training ? 'away' : '–' },
    { name: 'Updates', number: true, of: w => whole(w.stale.updates) },
    { name: 'Stale', number: true, of: w => late(w.stale) }, { name: 'Worst', number: true, of: w => w.stale.updates ? whole(w.stale.worst) : '–' },
  ], s.writers);
  text($('variables-note'), s.variables.length < s.placement.count ? `the largest ${s.variables.length} of ${s.placement.count}` : '');
  table($('table-checkpoints'), [
    { name: 'Checkpoint', long: true, of: c => c.name }, { name: 'Step', number: true, of: c => c.step === null ? '–' : whole(c.step) },
    { name: 'Saved', number: true, of: c => c.time ? Format.clock(c.time) : '–' }, { name: 'Run', of: c => c.run || '–' },
  ], s.checkpoints);
}

// Jobs save often: checkpoints with nothing between them are one line.
function told(events) {
  const rows = [];
  for (const e of events) {
    const last = rows[rows.length - 1];
    if (last && last.kind === 'checkpoint' && e.kind === 'checkpoint') {
      rows[rows.length - 1] = { ...e, count: (last.count || 1) + 1 };
    } else rows.push(e);
  }
  return rows.map(e => e.count ? { ...e, text: `${e.count} checkpoints, the last: ${e.text.replace(/^checkpoint /, '')}` } : e);
}

function showEvents(s) {
  const list = $('events'), rows = told(s.events).slice(-120).reverse();
  const stamp = rows.length + ':' + (rows[0] ? rows[0].time + rows[0].text : '');
  if (list.dataset.stamp === stamp) return;
  list.dataset.stamp = stamp;
  list.replaceChildren(...rows.map(e => el('li', { class: e.kind },
    el('time', {}, Format.clock(e.time)), el('span', { class: 'dot', 'aria-hidden': 'true' }),
    el('span', {}, (e.task ? e.task + ' ' : '') + e.text))));
}

function announce(s) {
  const news = s.events.filter(e => (e.kind === 'loss' || e.kind === 'restart') && (known.announced === null ? false : e.time > known.announced));
  known.announced = Math.max(known.announced || 0, ...s.events.map(e => e.time), 0);
  if (news.length) text($('announce'), news.map(e => `${e.task || ''} ${e.text}`).join('. '));
}

function showLog(lines) {
  const log = $('log'), select = $('log-source'), atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  for (const line of lines) {
    if (!known.sources.has(line.source)) {
      known.sources.set(line.source, known.sources.size);
      select.append(el('option', { value: line.source }, line.source));
    }
    const row = el('div', { 'data-source': line.source }, el('span', { class: `source s${known.sources.get(line.source) % COLOURS}` }, line.source), line.text);
    row.dataset.level = levelOf(line.text);
    row.hidden = !isWanted(row);
    log.append(row);
  }
  while (log.childElementCount > MAX_LOG) log.firstElementChild.remove();
  if (atEnd) log.scrollTop = log.scrollHeight;
}

// The level of a line: 3 for errors, 2 for warnings, 1 for other lines of a log, 0 for what a program printed.
function levelOf(line) {
  const found = line.match(/\b(ERROR|FATAL|CRITICAL|WARN(?:ING)?|INFO|panicked|Traceback)\b|^([EWIF])\d{4} /i);
  if (!found) return 0;
  const word = (found[1] || found[2]).toUpperCase();
  return word.startsWith('W') ? 2 : word.startsWith('I') ? 1 : 3;
}

function isWanted(row) {
  const source = $('log-source').value, find = $('log-find').value.toLowerCase();
  return (source === '' || row.dataset.source === source) && Number(row.dataset.level) >= Number($('log-level').value)
    && (find === '' || row.textContent.toLowerCase().includes(find));
}

for (const id of ['log-source', 'log-level', 'log-find']) {
  $(id).addEventListener('input', () => {
    for (const row of $('log').children) row.hidden = !isWanted(row);
    $('log').scrollTop = $('log').scrollHeight;
  });
}

$('record').addEventListener('click', async () => {
  $('record').disabled = true;
  await ask('/api/record').catch(() => {});
  await tick();
});
$('timeline-step').addEventListener('input', () => {
  chooseStep();
  if (known.state) showTimeline(known.state);
});
if (run) $('timeline-save').href = '/api/timeline?run=' + encodeURIComponent(run);

for (const button of document.querySelectorAll('[data-axis]')) {
  button.addEventListener('click', () => {
    known.axis = button.dataset.axis;
    for (const other of document.querySelectorAll('[data-axis]')) other.setAttribute('aria-pressed', other === button);
    if (known.state) showCurves(known.state);
  });
}

function theme(dark) {
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  $('theme').setAttribute('aria-pressed', dark);
}
$('theme').addEventListener('click', () => {
  const dark = $('theme').getAttribute('aria-pressed') !== 'true';
  theme(dark);
  try { localStorage.setItem('theme', dark ? 'dark' : 'light'); } catch (e) { /* private windows */ }
});
try {
  const kept = localStorage.getItem('theme');
  if (kept) theme(kept === 'dark');
  else $('theme').setAttribute('aria-pressed', matchMedia('(prefers-color-scheme: dark)').matches);
} catch (e) { /* the system's choice */ }

(async () => {
  const answer = await fetch('/api/runs', { cache: 'no-store' }).catch(() => null);
  const runs = answer && answer.ok ? await answer.json() : null;
  if (runs !== null && !run) location.replace('/runs');
  $('to-runs').hidden = runs === null;
})();

// A page that is closed or hidden need not be told the end: the job's process would wait for it.
function leave() {
  const path = `/api/state?page=${known.name}&shows=end` + (run ? '&run=' + encodeURIComponent(run) : '');
  if (document.hidden || known.leaving) fetch(path, { keepalive: true, cache: 'no-store' }).catch(() => {});
}
document.addEventListener('visibilitychange', leave);
addEventListener('pagehide', () => { known.leaving = true; leave(); });
addEventListener('pageshow', () => { known.leaving = false; });

addEventListener('resize', () => { if (known.state) show(); });
(async () => {
  for (;;) {
    // What is over changes no more.
    if (known.state && known.state.job && known.state.job.ended && run) await new Promise(go => setTimeout(go, 4 * EVERY));
    if (!document.hidden || !known.state) await tick();
    await new Promise(go => setTimeout(go, EVERY));
  }
})();
