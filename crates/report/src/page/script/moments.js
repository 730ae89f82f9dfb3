// Curves, and the two moments that the reader compares.
const curves = data.curves;
// The intervals of both moments. `choose` calls each of the watchers after a change.
const moments = { a: 0, b: curves ? curves.intervals - 1 : 0, watchers: [] };

// Unpacks varints (data.rs): lowest, highest and last reading of each interval; undefined before the first reading and
// after the last one, whose interval is `end`.
function unpack(curve, intervals) {
  const text = atob(curve.values);
  let at = 0;
  // Values have up to 53 bits, so no bitwise operator is used: those cut to 32 bits.
  const next = () => {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = text.charCodeAt(at);
      at += 1;
      value += (byte % 128) * scale;
      if (byte < 128) return value;
    }
  };
  const low = new Array(intervals), high = new Array(intervals), last = new Array(intervals);
  let held = 0, end = curve.first;
  for (let i = curve.first; at < text.length && i < intervals; i += 1) {
    const change = next();
    held += change % 2 === 0 ? change / 2 : -(change + 1) / 2;
    last[i] = held;
    low[i] = held - next();
    high[i] = held + next();
    end = i;
  }
  // A line leads from one reading to the next. `last` repeats a reading up to the next one.
  const line = last.slice();
  curve.read.slice(1).forEach((to, place) => {
    const from = curve.read[place];
    if (last[from] === undefined || last[to] === undefined) return;
    for (let i = from + 1; i < to; i += 1) line[i] = last[from] + ((last[to] - last[from]) * (i - from)) / (to - from);
  });
  return { low, high, last, line, end };
}
for (const set of curves ? curves.sets : []) {
  for (const curve of set.curves) Object.assign(curve, unpack(curve, curves.intervals));
}

// The end of an interval; its last reading is not later.
const timeOf = (interval) => curves.from + (interval + 1) * curves.step;
const dayOf = (interval) => new Date(timeOf(interval)).toISOString().slice(0, 10);
// Within one day the time alone is clear.
const isLong = () => Boolean(curves) && dayOf(0) !== dayOf(curves.intervals - 1);
// Within some seconds, moments differ by less than a second.
const isShort = () => Boolean(curves) && curves.intervals * curves.step < 10000;
const nameOf = (interval) => clock(timeOf(interval), isLong(), isShort());
// The time of the last reading, in words for a moment after it.
const lastRead = (curve) => (curve.once ? 'read once' : 'last read') + ' at ' + nameOf(curve.end);

function choose(which, interval) {
  moments[which] = Math.max(0, Math.min(curves.intervals - 1, Math.round(interval)));
  if (moments.a > moments.b) [moments.a, moments.b] = [moments.b, moments.a];
  moments.watchers.forEach((watch) => watch());
}

// A table of what differs, biggest change first: rows are [name, before, after].
function differences(title, rows, most) {
  const changed = rows.filter(([, before, after]) => before !== after);
  changed.sort((one, other) => Math.abs(other[2] - other[1]) - Math.abs(one[2] - one[1]));
  const body = make('tbody', {});
  for (const [name, before, after] of changed.slice(0, most)) {
    const by = after - before;
    body.append(make('tr', {},
      make('td', { class: 't', 'data-h': title }, name),
      make('td', { 'data-h': 'change', 'data-v': by, class: by > 0 ? 'grew' : 'shrank' }, change(by)),
      make('td', { 'data-h': 'at A', 'data-v': before }, bytes(before)),
      make('td', { 'data-h': 'at B', 'data-v': after }, bytes(after))));
  }
  const heads = [title, 'change', 'at A', 'at B'].map((head) => make('th', { scope: 'col' }, head));
  const left = changed.length > most ? '; the ' + most + ' biggest of ' + changed.length : '';
  const words = changed.length === 0 ? 'No difference between the two moments.' : 'Biggest change first' + left + '.';
  return sortable(make('table', { class: 'sortable' }, make('caption', {}, words),
    make('thead', {}, make('tr', {}, ...heads)), body));
}

if (curves) {
  const box = document.getElementById('charts');
  const slider = (which, name) => {
    const shown = make('output', {}), label = make('label', { for: 'moment-' + which }, name + ' ', shown);
    const input = make('input', { type: 'range', id: 'moment-' + which, min: 0, max: curves.intervals - 1, step: 1 });
    input.addEventListener('input', () => choose(which, Number(input.value)));
    moments.watchers.push(() => {
      input.value = moments[which];
      input.setAttribute('aria-valuetext', nameOf(moments[which]));
      shown.textContent = nameOf(moments[which]);
    });
    return [label, input];
  };
  const charts = make('div', { id: 'drawn' });
  const told = make('p', { 'aria-live': 'polite' }), tables = make('div', {});
  box.append(charts,
    make('div', { class: 'moments', role: 'group', 'aria-label': 'Two moments to compare' },
      ...slider('a', 'A'), ...slider('b', 'B')),
    make('h3', {}, 'What changed from A to B'), told, tables);
  const opened = new Set();
  moments.watchers.push(() => {
    // After its last reading, a curve is compared by that one, and the words say so.
    const value = (curve, at) => curve.last[Math.min(at, curve.end)] || 0;
    const isLate = (curve) => moments.b > curve.end;
    const rss = curves.sets.flatMap((set) => set.curves).find((curve) => curve.role === 'rss');
    const seconds = (timeOf(moments.b) - timeOf(moments.a)) / 1e3;
    const span = seconds >= 3600 ? (seconds / 3600).toFixed(1) + ' h' : seconds >= 60 ? (seconds / 60).toFixed(1) + ' min' : seconds.toFixed(1) + ' s';
    told.textContent = nameOf(moments.a) + ' to ' + nameOf(moments.b) + ', ' + span;
    if (rss) {
      const [from, to] = [value(rss, moments.a), value(rss, moments.b)];
      told.textContent += ': RSS ' + (rss.once ? bytes(to) : bytes(from) + ' → ' + bytes(to) + ' (' + change(to - from) + ')');
      if (rss.once || isLate(rss)) told.textContent += ', ' + lastRead(rss);
    }
    const parts = [];
    curves.sets.filter((set) => set.stacked).forEach((set, place) => {
      const rows = set.curves.map((curve) => [curve.name, value(curve, moments.a), value(curve, moments.b)]);
      const table = differences(set.name.replace(/.* by /, ''), rows, 50);
      // The curves of a stack end together.
      const [any] = set.curves;
      if (isLate(any)) table.caption.textContent += ' They were ' + lastRead(any) + '.';
      parts.push([set.name, table, place === 0]);
    });
    const sites = siteDifferences();
    if (sites) parts.push(['live by call site', sites, false]);
    tables.replaceChildren(...parts.map(([name, table, isFirst]) => {
      const folded = make('details', {}, make('summary', {}, name), table);
      folded.open = opened.has(name) || (isFirst && !opened.has('not ' + name));
      folded.addEventListener('toggle', () => {
        opened.delete(name);
        opened.delete('not ' + name);
        opened.add(folded.open ? name : 'not ' + name);
      });
      return folded;
    }));
  });
}

// The column of the sites that were recorded nearest to a moment.
function columnAt(interval) {
  const times = data.stacks.moments;
  let best = 0;
  times.forEach((time, place) => {
    if (Math.abs(time - timeOf(interval)) < Math.abs(times[best] - timeOf(interval))) best = place;
  });
  return best;
}

// The functions of a site, innermost first.
function stackOf(site) {
  const { parents, calls, functions, sites } = data.stacks, names = [];
  for (let call = sites[site][0]; call !== 0; call = parents[call]) names.push(functions[calls[call]]);
  return names;
}

function siteDifferences() {
  if (!data.stacks || data.stacks.moments.length < 2) return null;
  const { sites, categories, values, moments: times } = data.stacks;
  const [from, to] = [columnAt(moments.a), columnAt(moments.b)];
  const rows = [];
  sites.forEach(([, category], site) => {
    const [before, after] = [values[from][site], values[to][site]];
    if (before === after) return;
    const names = stackOf(site);
    const stack = names.slice(0, 6).join(' ← ') + (names.length > 6 ? ' ← …' : '');
    rows.push([(stack || '(no stack)') + (categories[category] ? ' [' + categories[category] + ']' : ''), before, after]);
  });
  const table = differences('call site', rows, 50);
  table.caption.textContent += ' Sites were recorded at ' + clock(times[from], isLong()) + ' and ' + clock(times[to], isLong()) + '.';
  return table;
}

