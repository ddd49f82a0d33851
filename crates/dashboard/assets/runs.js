// The list of runs, and those that were chosen side by side.
'use strict';

const $ = id => document.getElementById(id);
const chosen = new Set(new URLSearchParams(location.search).getAll('compare'));
const curves = new Map(), charts = new Map(), view = chartTools($('chart-tools'), () => compare());
let runs = [];

async function ask(path) {
  const answer = await fetch(path, { cache: 'no-store', signal: AbortSignal.timeout(5000) });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

const percent = v => v > 0 && v <= 1 ? (v * 100).toFixed(2) + ' %' : Format.number(v);
const best = r => ['test_accuracy', 'accuracy', 'loss'].filter(t => r.results[t] !== undefined).slice(0, 1)
  .map(t => `${t.replace('_', ' ')} ${t === 'loss' ? Format.number(r.results[t]) : percent(r.results[t])}`)[0] || '–';

function list() {
  const wanted = $('find').value.toLowerCase();
  const fits = r => [r.name, r.dir, r.status, r.code, ...Object.entries(r.hyperparameters).map(p => p.join('='))].join(' ').toLowerCase().includes(wanted);
  const rows = runs.filter(fits);
  $('subtitle').textContent = `${runs.filter(r => r.status === 'running').length} running, ${runs.length} in all`;
  $('runs-empty').hidden = runs.length > 0;
  const head = el('thead', {}, el('tr', {}, ...['', 'Run', 'Status', 'Began', 'Took', 'Step', 'Result', 'Version', 'Why'].map((n, i) => el('th', { scope: 'col', class: i > 3 && i < 6 ? 'number' : null }, n))));
  const body = rows.map(r => {
    const box = el('input', { type: 'checkbox', 'aria-label': `compare ${r.name}`, 'data-run': r.id });
    box.checked = chosen.has(r.id);
    box.addEventListener('change', () => { box.checked ? chosen.add(r.id) : chosen.delete(r.id); refresh(); });
    const folder = r.dir.split('/').pop();
    return el('tr', { class: r.status }, el('td', {}, box), el('td', {}, el('a', { href: `/?run=${r.id}`, title: r.dir }, folder || r.name)),
      el('td', {}, el('span', { class: `status ${r.status}` }, r.status)), el('td', {}, r.started ? new Date(r.started * 1000).toLocaleString('en-GB') : '–'),
      el('td', { class: 'number' }, r.seconds === null ? '–' : Format.span(r.seconds)), el('td', { class: 'number' }, r.step === null ? '–' : r.step.toLocaleString('en')),
      el('td', {}, best(r)), el('td', {}, [r.version, r.code].filter(Boolean).join(' · ') || '–'), el('td', { class: 'text' }, r.why || ''));
  });
  const focus = document.activeElement && document.activeElement.dataset.run;
  $('table-runs').replaceChildren(head, el('tbody', {}, ...body));
  if (focus) document.querySelector(`input[data-run="${focus}"]`)?.focus();
}

function compare() {
  const picked = runs.filter(r => chosen.has(r.id));
  $('compared').hidden = picked.length < 1;
  $('chosen-note').textContent = picked.length ? `${picked.length} chosen` : 'Choose runs to compare them.';
  const tags = [...new Set(picked.flatMap(r => (curves.get(r.id) || []).map(c => c.tag)))].sort();
  for (const [tag, chart] of charts) if (!tags.includes(tag)) { chart.figure.remove(); charts.delete(tag); }
  for (const tag of tags) {
    if (!charts.has(tag)) charts.set(tag, new LineChart($('curves'), { title: tag, label: tag, formatY: Format.number, formatX: Format.number, time: () => false, view }));
    const series = picked.flatMap(r => (curves.get(r.id) || []).filter(c => c.tag === tag)
      .map(c => ({ name: r.dir.split('/').pop() + (c.run ? ' ' + c.run : ''), colour: picked.indexOf(r), points: c.points.map(p => [p[0], p[2]]) })));
    charts.get(tag).update({ series, marks: [] });
  }
  const names = f => [...new Set(picked.flatMap(r => Object.keys(f(r))))].sort();
  const rows = [
    ['status', r => r.status], ['took', r => r.seconds === null ? '–' : Format.span(r.seconds)], ['global step', r => r.step === null ? '–' : r.step.toLocaleString('en')],
    ...names(r => r.results).map(t => [t, r => r.results[t] === undefined ? '–' : Format.number(r.results[t])]),
    ...names(r => r.hyperparameters).map(h => ['--' + h, r => r.hyperparameters[h] ?? '–']),
    ['version', r => r.version || '–'], ['code', r => r.code || '–'], ['command', r => r.command.join(' ') || '–'],
  ];
  $('table-compared').replaceChildren(
    el('thead', {}, el('tr', {}, el('th', { scope: 'col' }, ''), ...picked.map(r => el('th', { scope: 'col' }, r.dir.split('/').pop())))),
    el('tbody', {}, ...rows.map(([name, of]) => {
      const cells = picked.map(of), differs = new Set(cells).size > 1;
      return el('tr', { class: differs ? 'differs' : null }, el('th', { scope: 'row' }, name), ...cells.map(c => el('td', { class: 'text' }, c)));
    })));
}

async function refresh() {
  const search = [...chosen].map(id => 'compare=' + id).join('&');
  history.replaceState(null, '', search ? '?' + search : location.pathname);
  for (const r of runs.filter(r => chosen.has(r.id))) {
    if (!curves.has(r.id) || r.status === 'running') curves.set(r.id, (await ask(`/api/scalars?run=${r.id}`)).curves || []);
  }
  compare();
}

async function tick() {
  try {
    runs = await ask('/api/runs') || [];
    list();
    await refresh();
  } catch (e) {
    $('subtitle').textContent = 'no answer';
  }
}
$('find').addEventListener('input', list);
try { const kept = localStorage.getItem('theme'); if (kept) document.documentElement.dataset.theme = kept; } catch (e) { /* the system's choice */ }
(async () => { for (;;) { if (!document.hidden || !runs.length) await tick(); await new Promise(go => setTimeout(go, 2000)); } })();
