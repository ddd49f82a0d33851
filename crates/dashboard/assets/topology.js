// The cluster as a picture: parameter servers above, those who use them below, links between.
'use strict';

const PHASES = {
  alive: 'alive', lost: 'lost', mute: 'there, says nothing', waiting: 'not there yet', done: 'done',
};

// From so many tasks on, links are cells of a matrix: lines would be a knot.
const MATRIX_FROM = 7;

// Who sends to whom: a row for each sender, a column for each receiver, the colour by bytes per second.
function drawMatrix(place, state) {
  const names = state.tasks.map(t => t.short), n = names.length, cell = n > 24 ? 14 : 24, left = 90, top = 74;
  const of = new Map(state.links.map(l => [l.from + '\n' + l.to, l]));
  const most = Math.max(1, ...state.links.map(l => l.bytes_per_second || l.bytes / 1e9));
  const parts = [];
  state.tasks.forEach((t, i) => {
    const y = top + i * cell + cell / 2 + 4, x = left + i * cell + cell / 2;
    parts.push(el('g', { class: `node ${t.phase}`, 'data-task': t.short }, el('title', {}, `${t.name}: ${PHASES[t.phase] || t.phase}`), el('circle', { cx: 8, cy: y - 4, r: 4 }), el('text', { x: 18, y }, clip(t.short, 10))));
    parts.push(el('text', { x: 0, y: 0, transform: `translate(${x + 4} ${top - 6}) rotate(-60)` }, clip(t.short, 10)));
    names.forEach((to, j) => {
      const link = of.get(t.short + '\n' + to), rate = link ? link.bytes_per_second : 0;
      const share = link ? Math.max(0.08, Math.sqrt((rate || link.bytes / 1e9) / most)) : 0;
      parts.push(el('rect', { class: 'cell' + (i === j ? ' self' : ''), x: left + j * cell + 1, y: top + i * cell + 1, width: cell - 2, height: cell - 2, rx: 3, 'fill-opacity': link ? share.toFixed(2) : null, 'data-link': link ? '1' : null },
        el('title', {}, link ? `${t.short} to ${to}: ${Format.bytes(rate)} per second, ${Format.bytes(link.bytes)} in all` : `${t.short} to ${to}: nothing`)));
    });
  });
  const width = left + n * cell + 60, height = top + n * cell + 4;
  const label = `Traffic between ${n} tasks, senders down, receivers across. The table of links below has the figures.`;
  place.replaceChildren(el('svg', { class: 'matrix', viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': label }, ...parts));
}

function drawTopology(place, state) {
  if (state.tasks.length >= MATRIX_FROM) { drawMatrix(place, state); return; }
  const width = Math.max(320, place.clientWidth || 900), box = { w: width < 600 ? 132 : 164, h: 62 }, gap = 18;
  const upper = state.tasks.filter(t => t.job === 'ps'), lower = state.tasks.filter(t => t.job !== 'ps');
  const perRow = Math.max(1, Math.floor((width + gap) / (box.w + gap)));
  const at = new Map(), parts = [];
  let y = 4;
  for (const group of [upper, lower]) {
    for (let i = 0; i < group.length; i += perRow) {
      const row = group.slice(i, i + perRow), span = row.length * (box.w + gap) - gap;
      row.forEach((task, n) => at.set(task.short, { x: (width - span) / 2 + n * (box.w + gap), y, task, upper: group === upper }));
      y += box.h + gap;
    }
    if (group === upper && upper.length && lower.length) y += width < 600 ? 50 : 90;
  }
  const height = Math.max(box.h + 8, y - gap + 4);
  for (const link of state.links) {
    const a = at.get(link.from), b = at.get(link.to);
    if (!a || !b || a === b) continue;
    parts.push(linkPath(link, a, b, box));
  }
  for (const { x, y, task } of at.values()) parts.push(node(x, y, box, task));
  const alive = state.tasks.filter(t => t.phase === 'alive').length;
  const lost = state.tasks.filter(t => t.phase === 'lost').map(t => t.short);
  const label = `Cluster: ${upper.length} parameter servers, ${lower.length} other tasks, ${alive} alive${lost.length ? ', lost: ' + lost.join(', ') : ''}. The table of tasks below has the details.`;
  place.replaceChildren(el('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': label }, ...parts));
}

function linkPath(link, a, b, box) {
  const rate = link.bytes_per_second, busy = rate >= 1;
  const same = a.y === b.y, down = a.y < b.y;
  // The two directions of a pair run side by side.
  const side = link.from < link.to ? -7 : 7;
  const x1 = a.x + box.w / 2 + side, x2 = b.x + box.w / 2 + side;
  const y1 = same ? a.y + box.h : a.y + (down ? box.h : 0), y2 = same ? b.y + box.h : b.y + (down ? 0 : box.h);
  const bend = same ? 36 : (y2 - y1) / 2;
  const d = `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${same ? y2 + bend : y2 - bend} ${x2} ${y2}`;
  const width = busy ? Math.min(7, 1.2 + Math.log10(1 + rate) * 0.7) : 1;
  return el('g', {}, el('title', {}, `${link.from} to ${link.to}: ${Format.bytes(rate)} per second, ${Format.bytes(link.bytes)} in all`),
    el('path', { class: 'link' + (busy ? '' : ' quiet'), d, 'stroke-width': width.toFixed(1) }),
    busy ? el('path', { class: 'link busy', d, 'stroke-width': Math.max(1.6, width * 0.5).toFixed(1) }) : null);
}

function node(x, y, box, task) {
  const runs = task.rates.session_runs >= 0.05 ? `${Format.rate(task.rates.session_runs)} runs/s` : task.rates.updates >= 0.05 ? `${Format.rate(task.rates.updates)} updates/s` : '';
  const words = { alive: runs || 'idle', lost: 'lost', mute: 'says nothing', waiting: 'not there yet', done: 'done' }[task.phase] || task.phase;
  const memory = task.phase === 'alive' ? Format.bytes(task.memory) : '';
  return el('g', { class: `node ${task.phase}`, 'data-task': task.short, transform: `translate(${x} ${y})` },
    el('title', {}, `${task.name} at ${task.address}: ${PHASES[task.phase] || task.phase}${task.reason ? ', ' + task.reason : ''}`),
    el('rect', { width: box.w, height: box.h, rx: 12 }),
    el('circle', { cx: 16, cy: 19, r: 5 }),
    el('text', { class: 'name', x: 28, y: 23 }, clip(task.short, box.w < 150 ? 12 : 17)),
    el('text', { x: 14, y: 41 }, words),
    el('text', { x: 14, y: 55 }, [memory, task.restarts ? (box.w < 150 ? `↻ ${task.restarts}` : `${task.restarts}× restarted`) : ''].filter(Boolean).join(' · ')));
}

function clip(text, n) {
  return text.length > n ? text.slice(0, n - 1) + '…' : text;
}
