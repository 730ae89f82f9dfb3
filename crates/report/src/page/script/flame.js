// Flame graph: the outermost function on top, each box as wide as what it holds. Boxes are elements, so they fit any
// screen; arrow keys walk, Enter zooms, Escape leads back.
if (data.stacks) {
  const { functions, kinds, modules, parents, calls, sites, values, columns, moments: times } = data.stacks;
  const KINDS = [['n', 'native'], ['j', 'Java'], ['c', 'generated code'], ['o', 'kernel'], ['u', 'unknown']];
  const NARROWEST = 0.0015, ROW = 20, DEEPEST = 200;
  const place = document.getElementById('flame');
  const isRecording = times.length > 0;
  const views = isRecording
    ? [['growth from A to B', () => difference()], ['live at B', () => values[columnAt(moments.b)]]].slice(times.length > 1 && curves ? 0 : 1)
    : columns.map((name, i) => [name, () => values[i]]);
  const children = parents.map(() => []);
  for (let call = 1; call < parents.length; call += 1) children[parents[call]].push(call);
  let weights = [], view = 0, zoomed = 0, pattern = null, focused = 0;

  function difference() {
    const [from, to] = [values[columnAt(moments.a)], values[columnAt(moments.b)]];
    return to.map((after, site) => Math.max(0, after - from[site]));
  }

  const select = make('select', { id: 'flame-view' }, ...views.map(([name], i) => make('option', { value: i }, name)));
  const field = make('input', { id: 'flame-search', type: 'search', placeholder: 'regular expression' });
  const back = make('button', { type: 'button' }, 'Zoom out');
  const matched = make('span', { role: 'status' });
  const boxes = make('div', { class: 'flame-boxes', role: 'tree', 'aria-label': 'Call stacks by size' });
  const told = make('p', { class: 'flame-told' });
  place.append(make('div', { class: 'flame-bar' },
    make('label', { for: 'flame-view' }, 'Show '), select, make('label', { for: 'flame-search' }, 'Search '), field, back, matched),
  boxes, told,
  make('ul', { class: 'legend' }, ...KINDS.filter(([kind]) => kinds.includes(kind)).map(([kind, name]) =>
    make('li', {}, make('span', { class: 'swatch f-' + kind }), name))));

  const nameOfCall = (call) => (call === 0 ? 'all' : functions[calls[call]]);
  function words(call) {
    const share = weights[0] > 0 ? ((100 * weights[call]) / weights[0]).toFixed(1) + ' % of all' : '';
    const module = call === 0 ? '' : modules[calls[call]];
    return [nameOfCall(call), bytes(weights[call]), share, module].filter((word) => word !== '').join(', ');
  }
  const isHit = (call) => pattern !== null && call !== 0 && (pattern.test(functions[calls[call]]) || pattern.test(modules[calls[call]]));

  function weigh() {
    const amounts = views[view][1]();
    weights = new Array(parents.length).fill(0);
    sites.forEach(([call], site) => { weights[call] += Math.max(0, amounts[site]); });
    // A call has a higher number than its caller, so one pass from the end adds up all weights.
    for (let call = parents.length - 1; call > 0; call -= 1) weights[parents[call]] += weights[call];
    for (const list of children) list.sort((one, other) => weights[other] - weights[one]);
    if (weights[zoomed] === 0) zoomed = 0;
    paint();
  }

  function box(call, left, width, row, isAbove) {
    const kind = call === 0 ? 'r' : kinds[calls[call]];
    const element = make('div', {
      role: 'treeitem', 'aria-level': row + 1, 'aria-label': words(call), tabindex: call === focused ? 0 : -1,
      class: 'f-' + kind + (isAbove ? ' above' : '') + (isHit(call) ? ' hit' : ''), 'data-call': call,
    }, nameOfCall(call));
    element.style.left = (left * 100).toFixed(3) + '%';
    element.style.width = (width * 100).toFixed(3) + '%';
    element.style.top = row * ROW + 'px';
    return element;
  }

  function paint() {
    const out = [], path = [];
    for (let call = zoomed; ; call = parents[call]) {
      path.unshift(call);
      if (call === 0) break;
    }
    if (!path.includes(focused)) focused = zoomed;
    path.slice(0, -1).forEach((call, row) => out.push(box(call, 0, 1, row, true)));
    let rows = 0;
    const open = [[zoomed, 0, 1, path.length - 1]];
    while (open.length > 0 && weights[0] > 0) {
      const [call, left, width, row] = open.pop();
      out.push(box(call, left, width, row, false));
      rows = Math.max(rows, row + 1);
      let x = left;
      for (const child of children[call]) {
        const wide = (width * weights[child]) / weights[call];
        if (wide >= NARROWEST && row < DEEPEST) open.push([child, x, wide, row + 1]);
        x += wide;
      }
    }
    boxes.replaceChildren(...out);
    boxes.style.height = rows * ROW + 'px';
    back.disabled = zoomed === 0;
    if (weights[0] === 0) told.textContent = isRecording && view === 0 ? 'No call site grew from A to B.' : 'Nothing to show.';
    else tell(zoomed);
  }

  function tell(call) { told.textContent = words(call); }
  function zoom(call) {
    zoomed = call;
    focused = call;
    paint();
  }
  function focus(call) {
    const element = boxes.querySelector('[data-call="' + call + '"]');
    if (!element) return;
    for (const other of boxes.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    focused = call;
    element.tabIndex = 0;
    element.focus();
  }

  const callAt = (event) => {
    const element = event.target.closest('[data-call]');
    return element ? Number(element.dataset.call) : null;
  };
  boxes.addEventListener('mouseover', (event) => { if (callAt(event) !== null) tell(callAt(event)); });
  boxes.addEventListener('focusin', (event) => { if (callAt(event) !== null) tell(callAt(event)); });
  boxes.addEventListener('click', (event) => {
    const call = callAt(event);
    if (call !== null) zoom(call === zoomed ? 0 : call);
    focus(focused);
  });
  boxes.addEventListener('keydown', (event) => {
    const call = callAt(event);
    if (call === null) return;
    const beside = call === 0 ? [] : children[parents[call]], at = beside.indexOf(call);
    const next = { ArrowDown: children[call][0], ArrowUp: call === 0 ? undefined : parents[call], ArrowLeft: beside[at - 1], ArrowRight: beside[at + 1] };
    if (event.key === 'Enter' || event.key === ' ') {
      zoom(call === zoomed ? 0 : call);
      focus(focused);
    } else if (event.key === 'Escape') {
      zoom(0);
      focus(0);
    } else if (event.key in next) {
      if (next[event.key] !== undefined) focus(next[event.key]);
    } else {
      return;
    }
    event.preventDefault();
  });
  back.addEventListener('click', () => zoom(0));
  select.addEventListener('change', () => {
    view = Number(select.value);
    weigh();
    search();
  });

  function search() {
    try {
      pattern = field.value ? new RegExp(field.value, 'i') : null;
      field.setCustomValidity('');
    } catch (problem) {
      pattern = null;
      field.setCustomValidity(problem.message);
    }
    let hits = 0, covered = 0;
    const inside = new Array(parents.length).fill(false);
    for (let call = 1; pattern !== null && call < parents.length; call += 1) {
      const hit = isHit(call) && weights[call] > 0;
      // A match below another match is already counted with it.
      if (hit && !inside[parents[call]]) covered += weights[call];
      inside[call] = hit || inside[parents[call]];
      hits += hit ? 1 : 0;
    }
    const share = weights[0] > 0 ? ((100 * covered) / weights[0]).toFixed(1) : '0';
    matched.textContent = pattern === null ? field.validationMessage : (hits === 1 ? '1 call matches' : hits + ' calls match') + ', ' + share + ' % of all';
    paint();
  }
  field.addEventListener('input', search);
  if (isRecording && curves) moments.watchers.push(weigh);
  weigh();
}
