// Charts drawn as SVG. Text from outside only ever becomes a text node or an attribute's value.
'use strict';

const SVG = 'http://www.w3.org/2000/svg';
const COLOURS = 8;

function el(tag, attributes, ...children) {
  const svg = ['svg', 'g', 'path', 'line', 'rect', 'text', 'circle', 'title', 'polygon'].includes(tag);
  const made = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== undefined && value !== null && value !== false) made.setAttribute(name, value);
  }
  for (const child of children) {
    if (child !== undefined && child !== null) made.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return made;
}

const Format = {
  number(v) {
    if (v === null || v === undefined || !Number.isFinite(v)) return '–';
    const a = Math.abs(v);
    if (a !== 0 && (a < 0.001 || a >= 1e7)) return v.toExponential(2);
    if (a >= 1000) return Math.round(v).toLocaleString('en');
    return String(+v.toPrecision(a < 1 ? 3 : 4));
  },
  // A rate is measured: what follows the third digit is noise.
  rate(v) {
    if (v === null || v === undefined || !Number.isFinite(v)) return '–';
    return v >= 10 ? Math.round(v).toLocaleString('en') : v.toFixed(1);
  },
  bytes(v) {
    if (!Number.isFinite(v)) return '–';
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
    let i = 0;
    while (v >= 1024 && i < units.length - 1) { v /= 1024; i++; }
    return (i === 0 || v >= 100 ? Math.round(v) : v.toFixed(1)) + ' ' + units[i];
  },
  span(s) {
    if (!Number.isFinite(s)) return '–';
    s = Math.max(0, s);
    if (s < 60) return Math.floor(s) + ' s';
    if (s < 3600) return Math.floor(s / 60) + ' min ' + Math.floor(s % 60) + ' s';
    if (s < 86400) return Math.floor(s / 3600) + ' h ' + Math.floor(s % 3600 / 60) + ' min';
    return Math.floor(s / 86400) + ' d ' + Math.floor(s % 86400 / 3600) + ' h';
  },
  clock(t) {
    const d = new Date(t * 1000);
    return Number.isNaN(d.getTime()) ? '–' : d.toLocaleTimeString('en-GB');
  },
};

function ticks(low, high, count) {
  const span = high - low;
  if (!(span > 0) || !Number.isFinite(span)) return [low];
  const rough = span / count, power = Math.pow(10, Math.floor(Math.log10(rough)));
  const step = [1, 2, 2.5, 5, 10].map(f => f * power).find(s => s >= rough) || rough;
  const out = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-9 && out.length < 20; v += step) out.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  return out;
}

// How curves are shown: smoothing (0 to 0.99), a logarithmic axis. `changed` is called when either changes.
function chartTools(place, changed) {
  const view = { smooth: 0, log: false };
  const slide = el('input', { type: 'range', min: 0, max: 0.99, step: 0.01, value: 0, id: 'smooth', 'aria-label': 'Smoothing' });
  slide.addEventListener('input', () => { view.smooth = Number(slide.value); changed(); });
  const log = el('button', { type: 'button', id: 'log-axis', 'aria-pressed': 'false' }, 'Log');
  log.addEventListener('click', () => { view.log = !view.log; log.setAttribute('aria-pressed', view.log); changed(); });
  place.append(el('label', { class: 'filter' }, 'Smooth', slide), log);
  return view;
}

// An exponential mean that does not lag at its beginning, as TensorBoard's.
function smoothed(points, weight) {
  if (!weight) return points;
  let mean = 0, n = 0;
  return points.map(([x, y]) => {
    if (y === null) return [x, y];
    mean = mean * weight + (1 - weight) * y;
    n++;
    return [x, mean / (1 - Math.pow(weight, n))];
  });
}

// Lines over a common axis. `data`: series [{name, colour, points: [[x, y]]}], marks [{x, kind, text}].
class LineChart {
  constructor(place, options) {
    this.options = options;
    this.name = el('span', { class: 'name' }, options.title || '');
    this.value = el('span', { class: 'value' });
    this.svg = el('svg', { class: 'chart', role: 'img', tabindex: '0' });
    this.tip = el('p', { class: 'tip', 'aria-live': 'polite' });
    this.legend = el('ul', { class: 'legend' });
    this.figure = el('figure', {}, el('figcaption', {}, this.name, this.value), this.svg, this.tip, this.legend);
    if (!options.title) this.figure.firstChild.hidden = true;
    place.append(this.figure);
    this.at = null;
    this.svg.addEventListener('pointermove', e => this.point(e));
    this.svg.addEventListener('pointerleave', () => { this.at = null; this.draw(); });
    this.svg.addEventListener('blur', () => { this.at = null; this.draw(); });
    this.svg.addEventListener('keydown', e => this.key(e));
    this.svg.addEventListener('pointerdown', e => { this.drag = this.place(e); });
    this.svg.addEventListener('pointerup', e => this.release(e));
    this.svg.addEventListener('dblclick', () => { this.range = null; this.draw(); });
    this.data = { series: [], marks: [] };
    this.range = null;
  }

  place(e) {
    const box = this.svg.getBoundingClientRect();
    return this.scale ? this.scale.back((e.clientX - box.left) / box.width * this.scale.width) : null;
  }

  // What was dragged over is shown alone; a double click or 0 shows all again.
  release(e) {
    const to = this.place(e), from = this.drag;
    this.drag = null;
    if (from === null || from === undefined || to === null || !this.scale) return;
    if (Math.abs(to - from) > (this.scale.x1 - this.scale.x0) * 0.03) { this.range = [Math.min(from, to), Math.max(from, to)]; this.draw(); }
  }

  // + and - zoom, Shift with an arrow pans, 0 shows all.
  zoom(e) {
    if (!this.scale) return false;
    const { x0, x1 } = this.scale, span = x1 - x0, middle = this.at === null ? (x0 + x1) / 2 : this.at;
    if (e.key === '+' || e.key === '=') this.range = [middle - span / 4, middle + span / 4];
    else if (e.key === '-') this.range = this.range && [middle - span, middle + span];
    else if (e.key === '0') this.range = null;
    else if (e.shiftKey && e.key === 'ArrowLeft') this.range = [x0 - span / 4, x1 - span / 4];
    else if (e.shiftKey && e.key === 'ArrowRight') this.range = [x0 + span / 4, x1 + span / 4];
    else return false;
    e.preventDefault();
    this.draw();
    return true;
  }

  update(data) {
    this.data = data;
    this.draw();
  }

  key(e) {
    if (this.zoom(e)) return;
    const xs = this.xs();
    if (!xs.length || !['ArrowLeft', 'ArrowRight', 'Home', 'End', 'Escape'].includes(e.key)) return;
    e.preventDefault();
    let i = this.at === null ? xs.length - 1 : nearest(xs, this.at);
    const stride = Math.max(1, Math.round(xs.length / 40));
    if (e.key === 'ArrowLeft') i = Math.max(0, i - stride);
    if (e.key === 'ArrowRight') i = Math.min(xs.length - 1, i + stride);
    if (e.key === 'Home') i = 0;
    if (e.key === 'End') i = xs.length - 1;
    this.at = e.key === 'Escape' ? null : xs[i];
    this.draw();
  }

  point(e) {
    if (!this.scale) return;
    const box = this.svg.getBoundingClientRect();
    const x = (e.clientX - box.left) / box.width * this.scale.width;
    const xs = this.xs();
    if (!xs.length) return;
    this.at = xs[nearest(xs, this.scale.back(x))];
    this.draw();
  }

  xs() {
    const longest = this.data.series.reduce((a, s) => s.points.length > a.length ? s.points : a, []);
    return longest.map(p => p[0]);
  }

  draw() {
    const width = Math.max(260, this.svg.clientWidth || 520), height = this.options.height || 180;
    const m = { left: 52, right: 10, top: 12, bottom: 22 };
    const view = this.options.view || { smooth: 0, log: false }, marks = this.data.marks;
    const level = y => y === null ? null : !view.log ? y : y > 0 ? Math.log10(y) : null;
    const series = this.data.series.map(s => ({ ...s, points: smoothed(s.points, view.smooth).map(([x, y]) => [x, level(y)]) }));
    const inside = x => !this.range || x >= this.range[0] && x <= this.range[1];
    let x0 = Infinity, x1 = -Infinity, y0 = this.options.fromZero ? 0 : Infinity, y1 = this.options.fromZero ? 1e-9 : -Infinity;
    for (const s of series) for (const [x, y] of s.points) {
      if (!inside(x)) continue;
      x0 = Math.min(x0, x); x1 = Math.max(x1, x);
      if (y !== null) { y0 = Math.min(y0, y); y1 = Math.max(y1, y); }
    }
    const parts = [];
    this.svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    // Nothing but zeros needs an axis, too.
    if (this.options.fromZero && y1 <= 1e-9) y1 = 1;
    const isEmpty = !Number.isFinite(x0) || !Number.isFinite(y0) || !Number.isFinite(y1);
    if (this.range) [x0, x1] = this.range;
    if (x1 === x0) x1 = x0 + 1;
    const back = px => x0 + (px - m.left) / (width - m.left - m.right) * (x1 - x0);
    // Where nothing is, a part that was chosen can still be left.
    this.scale = isEmpty && !this.range ? null : { width, x0, x1, back };
    this.svg.dataset.range = this.scale ? `${x0} ${x1}` : '';
    if (isEmpty) {
      const words = this.range ? 'nothing here; 0 shows all' : 'nothing yet';
      this.svg.replaceChildren(el('text', { x: width / 2, y: height / 2, 'text-anchor': 'middle' }, words));
      this.svg.setAttribute('aria-label', `${this.options.label}: ${words}`);
      return;
    }
    const room = y1 === y0 ? Math.abs(y0) * 0.1 || 1 : (y1 - y0) * 0.06;
    y1 += room;
    if (!this.options.fromZero) y0 -= room;
    const X = x => m.left + (x - x0) / (x1 - x0) * (width - m.left - m.right);
    const Y = y => height - m.bottom - (y - y0) / (y1 - y0) * (height - m.top - m.bottom);
    // Bytes are counted in powers of two: ticks are round in the unit that is shown.
    const unit = this.options.formatY === Format.bytes ? Math.pow(1024, Math.max(0, Math.floor(Math.log(y1 || 1) / Math.log(1024)))) : 1;
    for (const t of ticks(y0 / unit, y1 / unit, 4).map(t => t * unit)) {
      parts.push(el('line', { class: 'grid', x1: m.left, x2: width - m.right, y1: Y(t), y2: Y(t) }));
      parts.push(el('text', { x: m.left - 6, y: Y(t) + 4, 'text-anchor': 'end' }, this.options.formatY(view.log ? Math.pow(10, t) : t)));
    }
    const xTicks = this.options.time() ? ticks(0, x1 - x0, Math.max(2, width / 130)).map(t => x0 + t) : ticks(x0, x1, Math.max(2, width / 110));
    for (const t of xTicks) {
      const anchor = X(t) > width - 40 ? 'end' : X(t) < m.left + 20 ? 'start' : 'middle';
      parts.push(el('text', { x: X(t), y: height - 6, 'text-anchor': anchor }, this.options.formatX(t)));
    }
    parts.push(el('line', { class: 'axis', x1: m.left, x2: width - m.right, y1: height - m.bottom, y2: height - m.bottom }));
    for (const mark of marks || []) {
      if (mark.x < x0 || this.range && mark.x > x1) continue;
      // What was done again after a loss may not have reached the step of the loss yet.
      const x = X(Math.min(mark.x, x1));
      parts.push(el('g', {}, el('title', {}, mark.text),
        el('line', { class: 'mark ' + mark.kind, x1: x, x2: x, y1: m.top, y2: height - m.bottom }),
        el('polygon', { class: 'flag ' + mark.kind, points: `${x - 4},${m.top - 8} ${x + 4},${m.top - 8} ${x},${m.top}` })));
    }
    for (const s of series) {
      let path = '', pen = false;
      for (const [x, y] of s.points) {
        if (y === null || !inside(x)) { pen = false; continue; }
        path += `${pen ? 'L' : 'M'}${X(x).toFixed(1)} ${Y(y).toFixed(1)}`;
        pen = true;
      }
      parts.push(el('path', { class: `curve s${s.colour % COLOURS}`, d: path || 'M0 0' }));
      // A line of one point is nothing to see: test accuracy has one.
      const seen = s.points.filter(([x, y]) => y !== null && inside(x));
      if (seen.length === 1) parts.push(el('circle', { class: `point s${s.colour % COLOURS}`, cx: X(seen[0][0]), cy: Y(seen[0][1]), r: 4 }));
    }
    if (this.at !== null && this.at >= x0 && this.at <= x1) this.cursor(parts, X, y => Y(level(y)), m, height);
    else this.tip.textContent = '';
    this.svg.replaceChildren(...parts);
    this.label();
  }

  cursor(parts, X, Y, m, height) {
    const x = X(this.at), said = [this.options.formatX(this.at)];
    parts.push(el('line', { class: 'cursor', x1: x, x2: x, y1: m.top, y2: height - m.bottom }));
    for (const s of this.data.series) {
      if (!s.points.length) continue;
      const p = s.points[nearest(s.points.map(p => p[0]), this.at)];
      if (p[1] === null) continue;
      parts.push(el('circle', { class: `cursor-dot s${s.colour % COLOURS}`, cx: X(p[0]), cy: Y(p[1]), r: 4 }));
      said.push((s.name ? s.name + ' ' : '') + this.options.formatY(p[1]));
    }
    this.tip.textContent = said.join(' · ');
  }

  label() {
    const last = this.data.series.map(s => {
      const known = s.points.filter(p => p[1] !== null);
      const p = known[known.length - 1];
      return p ? `${s.name || 'latest'} ${this.options.formatY(p[1])}` : `${s.name || 'latest'} unknown`;
    });
    this.svg.setAttribute('aria-label', `${this.options.label}: ${last.join(', ')}. Arrow keys read the values, + and - zoom, 0 shows all.`);
    this.svg.dataset.points = this.data.series.reduce((n, s) => n + s.points.length, 0);
    if (this.options.title && this.data.series.length === 1) this.value.textContent = last[0].replace(/^latest |^.* (?=\S+$)/, '');
    const entries = this.data.series.length > 1 ? this.data.series : [];
    const names = entries.map(s => s.name + s.colour).join('\n');
    if (names !== this.names) {
      this.names = names;
      this.legend.replaceChildren(...entries.map(s => el('li', {}, el('span', { class: `swatch s${s.colour % COLOURS}`, 'aria-hidden': 'true' }), s.name)));
    }
  }
}

function nearest(sorted, x) {
  let best = 0;
  for (let i = 1; i < sorted.length; i++) if (Math.abs(sorted[i] - x) <= Math.abs(sorted[best] - x)) best = i;
  return best;
}

// Upright bars. `bars`: [{name, value, title}].
function barChart(place, bars, label) {
  const width = Math.max(260, place.clientWidth || 520), height = 180, m = { left: 8, right: 8, top: 18, bottom: 22 };
  const most = Math.max(1, ...bars.map(b => b.value)), wide = (width - m.left - m.right) / Math.max(1, bars.length);
  const total = bars.reduce((n, b) => n + b.value, 0);
  const parts = bars.map((b, i) => {
    const h = b.value / most * (height - m.top - m.bottom), x = m.left + i * wide;
    const share = total ? b.value / total : 0;
    return el('g', {}, el('title', {}, b.title),
      el('rect', { class: 'bar s0', x: x + 2, y: height - m.bottom - h, width: Math.max(1, wide - 4), height: h, rx: 2 }),
      el('text', { x: x + wide / 2, y: height - 6, 'text-anchor': 'middle' }, b.name),
      share >= 0.005 ? el('text', { x: x + wide / 2, y: height - m.bottom - h - 4, 'text-anchor': 'middle' }, Math.round(share * 100) + '%') : null);
  });
  parts.push(el('line', { class: 'axis', x1: m.left, x2: width - m.right, y1: height - m.bottom, y2: height - m.bottom }));
  place.replaceChildren(el('svg', { class: 'chart', viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': label }, ...parts));
}

// Level bars. `bars`: [{name, value, text, colour}].
function levelChart(place, bars, label) {
  const width = Math.max(260, place.clientWidth || 520), row = 34, height = Math.max(row, bars.length * row);
  const most = Math.max(1, ...bars.map(b => b.value));
  const parts = bars.map((b, i) => {
    const y = i * row, w = b.value / most * (width - 210);
    return el('g', {}, el('text', { x: 0, y: y + 21 }, b.name),
      el('rect', { class: `bar s${b.colour % COLOURS}`, x: 76, y: y + 6, width: Math.max(1, w), height: row - 12, rx: 4 }),
      el('text', { x: 84 + w, y: y + 21 }, b.text));
  });
  place.replaceChildren(el('svg', { class: 'chart', viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': label }, ...parts));
}
