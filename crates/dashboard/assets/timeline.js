// One recorded step: what each task computed when, and what it waited for. Reads a trace in the form of Chrome's viewer.
'use strict';

const MOST_BARS = 6000, MOST_LANES = 8;

// Microseconds.
function micros(us) {
  return us >= 1e6 ? (us / 1e6).toFixed(2) + ' s' : us >= 1000 ? (us / 1000).toFixed(us >= 1e5 ? 0 : 1) + ' ms' : Math.round(us) + ' µs';
}

// `ps:0` of `/job:ps/replica:0/task:0/device:CPU:0`, with the device if it is another.
function taskOf(device) {
  const found = String(device).match(/\/job:([^/]+)\/replica:\d+\/task:(\d+)(?:\/device:(\w+:\d+))?/);
  return found ? `${found[1]}:${found[2]}${!found[3] || found[3] === 'CPU:0' ? '' : ' ' + found[3]}` : String(device);
}

// `4 KiB` of `4096B`; a value without bytes only says that something is done.
function sizeOf(said) {
  const bytes = said.match(/^(\d+)B$/);
  return !bytes ? said : bytes[1] === '0' ? 'order only' : Format.bytes(Number(bytes[1]));
}

// The bars of a trace: what was computed, and what was waited for. Times are microseconds from the first on.
function readTrace(trace) {
  const devices = new Map(), bars = [];
  const events = (trace && trace.traceEvents) || [];
  for (const e of events) {
    if (e.ph === 'M' && e.name === 'process_name' && e.args) devices.set(e.pid, { step: e.args.step_of || '', task: taskOf(e.args.name) });
  }
  for (const e of events) {
    const device = devices.get(e.pid);
    if (e.ph !== 'X' || !device || !Number.isFinite(e.ts) || !Number.isFinite(e.dur)) continue;
    const bar = { ...device, op: String(e.name), node: String((e.args && e.args.name) || ''), from: e.ts, to: e.ts + Math.max(0, e.dur) };
    const edge = e.name === 'RecvTensor' && String((e.args && e.args.label) || '').match(/^\[([^\]]*)\] \[[^\]]*\] (.*) from (\S+) to (\S+)$/);
    if (edge) Object.assign(bar, { size: sizeOf(edge[1]), edge: edge[2], sender: taskOf(edge[3]) });
    bars.push(bar);
  }
  bars.sort((a, b) => a.from - b.from);
  return bars.slice(0, MOST_BARS);
}

// How long at least one of these was under way, without the time of `but`.
function covered(bars, but) {
  const points = [];
  for (const b of bars) points.push([b.from, 1, 0], [b.to, -1, 0]);
  for (const b of but || []) points.push([b.from, 0, 1], [b.to, 0, -1]);
  points.sort((a, b) => a[0] - b[0]);
  let open = 0, blocked = 0, since = 0, total = 0;
  for (const [at, more, less] of points) {
    if (open > 0 && blocked === 0) total += at - since;
    open += more;
    blocked += less;
    since = at;
  }
  return total;
}

// Puts each bar into the first lane that is free.
function lanes(bars) {
  const ends = [];
  for (const bar of bars) {
    let lane = ends.findIndex(end => end <= bar.from);
    if (lane < 0) lane = Math.min(ends.length, MOST_LANES - 1);
    ends[lane] = Math.max(ends[lane] || 0, bar.to);
    bar.lane = lane;
  }
  return ends.length;
}

const describe = bar => bar.edge !== undefined
  ? `${bar.task} waited ${micros(bar.to - bar.from)} for ${bar.sender}: ${bar.edge}, ${bar.size}`
  : `${bar.task} computed ${micros(bar.to - bar.from)}: ${bar.op} ${bar.node}`;

// Draws the bars of one step, or of all that were recorded.
class StepTimeline {
  constructor(place) {
    this.svg = el('svg', { class: 'chart steps', role: 'img', tabindex: '0' });
    this.tip = el('p', { class: 'tip', 'aria-live': 'polite' });
    place.append(this.svg, this.tip);
    this.bars = [];
    this.colours = [];
    this.at = -1;
    this.range = null;
    this.svg.addEventListener('pointermove', e => this.select(Number(e.target.dataset && e.target.dataset.bar || -1)));
    this.svg.addEventListener('pointerleave', () => this.select(-1));
    this.svg.addEventListener('keydown', e => this.key(e));
  }

  update(bars, colours) {
    this.colours = colours;
    if (bars !== this.bars) { this.bars = bars; this.at = -1; this.range = null; }
    this.draw();
  }

  key(e) {
    if (!this.bars.length) return;
    const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (step) this.select(Math.min(this.bars.length - 1, Math.max(0, this.at + step)));
    else if (e.key === 'Home') this.select(0);
    else if (e.key === 'End') this.select(this.bars.length - 1);
    else if (['+', '=', '-', '0'].includes(e.key)) this.zoom(e.key);
    else return;
    e.preventDefault();
  }

  // + and - zoom around the bar that is read, 0 shows all.
  zoom(key) {
    const [low, high] = this.range || this.whole(), bar = this.bars[this.at];
    const middle = bar ? (bar.from + bar.to) / 2 : (low + high) / 2, half = (high - low) / (key === '-' ? 1 : 4);
    const [first, last] = this.whole();
    const range = [Math.max(first, middle - half), Math.min(last, middle + half)];
    this.range = key === '0' || range[1] - range[0] >= last - first ? null : range;
    this.draw();
  }

  whole() {
    return [this.bars.reduce((m, b) => Math.min(m, b.from), Infinity), this.bars.reduce((m, b) => Math.max(m, b.to), -Infinity)];
  }

  select(at) {
    if (at === this.at) return;
    this.at = at;
    text(this.tip, at >= 0 ? describe(this.bars[at]) : '');
    for (const rect of this.svg.querySelectorAll('.selected')) rect.classList.remove('selected');
    const found = at >= 0 && this.svg.querySelector(`[data-bar="${at}"]`);
    if (found) found.classList.add('selected');
  }

  draw() {
    const width = Math.max(300, this.svg.parentElement.clientWidth || 900), left = Math.min(96, width / 4), right = width - 8, parts = [];
    if (!this.bars.length) { this.svg.replaceChildren(); this.svg.removeAttribute('viewBox'); return; }
    const [first] = this.whole(), [low, high] = this.range || this.whole(), span = Math.max(1, high - low);
    const x = t => left + (t - low) / span * (right - left);
    const tasks = [...new Set(this.bars.map(b => b.task))].sort((a, b) => Number(b.startsWith('ps')) - Number(a.startsWith('ps')) || a.localeCompare(b, 'en', { numeric: true }));
    let y = 6;
    for (const task of tasks) {
      const own = this.bars.filter(b => b.task === task), computed = own.filter(b => b.edge === undefined), waits = own.filter(b => b.edge !== undefined);
      const top = y;
      for (const [some, height, kind] of [[computed, 13, 'computed'], [waits, 7, 'awaited']]) {
        const count = lanes(some);
        for (const bar of some) {
          if (bar.to < low || bar.from > high) continue;
          const from = Math.max(left, x(bar.from)), to = Math.min(right, x(bar.to));
          const colour = Math.max(0, this.colours.indexOf((bar.sender || bar.task).split(' ')[0])) % COLOURS;
          parts.push(el('rect', { class: `${kind} s${colour}`, x: from.toFixed(1), y: y + bar.lane * (height + 2), width: Math.max(0.8, to - from).toFixed(1), height, 'data-bar': this.bars.indexOf(bar) }));
        }
        y += count * (height + 2);
      }
      y = Math.max(y, top + 15) + 8;
      parts.push(el('text', { x: 0, y: top + 11, class: 'row' }, clip(task, 14)), el('line', { class: 'grid', x1: 0, x2: width, y1: y - 4, y2: y - 4 }));
    }
    for (const t of ticks(low - first, high - first, Math.max(2, Math.floor((right - left) / 110)))) {
      parts.push(el('line', { class: 'grid', x1: x(first + t), x2: x(first + t), y1: 2, y2: y }), el('text', { x: x(first + t), y: y + 12, 'text-anchor': 'middle' }, micros(t)));
    }
    this.svg.setAttribute('viewBox', `0 0 ${width} ${y + 18}`);
    this.svg.setAttribute('aria-label', `Recorded step: ${tasks.length} tasks, ${micros(high - low)}. Arrow keys read its parts, plus and minus zoom. The tables below have the sums.`);
    this.svg.replaceChildren(...parts);
    this.at = -1;
  }
}

const recorded = { count: null, all: [], shown: null, drawing: null };

// Takes a trace that was fetched.
function takeTrace(trace) {
  recorded.all = readTrace(trace);
  const steps = [...new Set(recorded.all.map(b => b.step))].filter(Boolean);
  const options = steps.map(step => el('option', { value: step }, step));
  if (steps.length > 1) options.push(el('option', { value: '' }, 'all tasks'));
  $('timeline-step').replaceChildren(...options);
  chooseStep();
}

function chooseStep() {
  const step = $('timeline-step').value;
  recorded.shown = step ? recorded.all.filter(b => b.step === step) : recorded.all;
}

function showTimeline(s) {
  const r = s.recording, over = Boolean(s.job && s.job.ended), bars = recorded.shown || [];
  $('record').hidden = over;
  $('record').disabled = r.is_running;
  text($('record'), r.is_running ? 'Recording…' : 'Record a step');
  $('timeline-card').hidden = over && !bars.length;
  const failed = r.failed.length && !r.is_running ? 'Not recorded: ' + r.failed.join('; ') : '';
  text($('timeline-note'), [bars.length && r.began ? `Recorded at ${Format.clock(r.began)}.` : bars.length ? '' : 'What each task computes in a step, and which values it waits for from whom.', failed].filter(Boolean).join(' '));
  for (const id of ['timeline', 'timeline-legend', 'timeline-save', 'timeline-of', 'timeline-tables']) $(id).hidden = !bars.length;
  if (!bars.length) return;
  recorded.drawing ||= new StepTimeline($('timeline'));
  if (recorded.drawing.bars !== bars || recorded.drawing.width !== $('timeline').clientWidth) {
    recorded.drawing.width = $('timeline').clientWidth;
    recorded.drawing.update(bars, s.tasks.map(t => t.short));
  }
  const tasks = [...new Set(bars.map(b => b.task))];
  const [low, high] = recorded.drawing.whole();
  const rows = tasks.map(task => {
    const own = bars.filter(b => b.task === task), computed = own.filter(b => b.edge === undefined), waits = own.filter(b => b.edge !== undefined);
    const longest = waits.reduce((a, b) => !a || b.to - b.from > a.to - a.from ? b : a, null);
    return { task, computed: covered(computed), waited: covered(waits, computed), longest };
  });
  const share = t => `${micros(t)} (${Math.round(t / Math.max(1, high - low) * 100)} %)`;
  table($('table-computed'), [
    { name: 'Task', of: r => r.task }, { name: 'Computed', number: true, of: r => share(r.computed) },
    { name: 'Only waited', number: true, of: r => share(r.waited) }, { name: 'Longest for', of: r => r.longest ? r.longest.sender : '–' },
  ], rows);
  const waits = bars.filter(b => b.edge !== undefined).sort((a, b) => (b.to - b.from) - (a.to - a.from)).slice(0, 20);
  table($('table-waits'), [
    { name: 'Task', of: w => w.task }, { name: 'Waited for', of: w => w.sender }, { name: 'Value', long: true, of: w => w.edge },
    { name: 'Size', number: true, of: w => w.size }, { name: 'Time', number: true, of: w => micros(w.to - w.from) },
  ], waits);
}
