// Charts: RSS beside the Java heap with the gap shaded, and curves stacked. A click or a drag moves the nearer moment.
if (curves) {
  const HEIGHT = 280, LEFT = 70, RIGHT = 10, TOP = 14, BOTTOM = 26, LAYERS = 8;
  const count = curves.intervals, place = document.getElementById('drawn');
  const stackedSets = curves.sets.filter((set) => set.stacked);
  let chosen = stackedSets[0];

  // `x,y` of the intervals where a curve turns; an interval between equal neighbours needs no point.
  function points(values, x, y) {
    const out = [];
    for (let i = 0; i < count; i += 1) {
      if (values[i] === undefined) continue;
      if (i > 0 && i + 1 < count && values[i - 1] === values[i] && values[i + 1] === values[i]) continue;
      out.push(x(i).toFixed(1) + ' ' + y(values[i]).toFixed(1));
    }
    return out;
  }

  // The only interval with a value, or undefined.
  function only(values) {
    const known = [...values.keys()].filter((i) => values[i] !== undefined);
    return known.length === 1 ? known[0] : undefined;
  }

  // One reading is a point: nothing is known about the time around it.
  function line(values, x, y, name) {
    const i = only(values);
    return i === undefined ? draw('path', { class: name, d: 'M' + points(values, x, y).join('L') })
      : draw('circle', { class: name, cx: x(i), cy: y(values[i]), r: 3 });
  }

  function area(lower, upper, x, y, name) {
    const tops = upper.map((value, i) => (value === undefined || lower[i] === undefined ? undefined : Math.max(value, lower[i])));
    const bottoms = lower.map((value, i) => (tops[i] === undefined ? undefined : value));
    const i = only(tops);
    if (i !== undefined) {
      return draw('rect', { class: name, x: x(i) - 4, width: 8, y: y(tops[i]), height: y(bottoms[i]) - y(tops[i]) });
    }
    const path = points(tops, x, y).concat(points(bottoms, x, y).reverse());
    return path.length ? draw('path', { class: name, d: 'M' + path.join('L') + 'Z' }) : draw('g');
  }

  // Marks at multiples of 1, 2 or 5 × 10^n KiB, MiB, GiB, …
  function marks(highest) {
    const unit = 1024 ** Math.min(5, Math.floor(Math.log2(Math.max(highest, 1)) / 10));
    const rough = highest / unit / 4, power = 10 ** Math.floor(Math.log10(Math.max(rough, 1e-9)));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) * unit;
    const out = [];
    for (let value = 0; out.length < 9; value += step) {
      out.push(value);
      if (value >= highest) break;
    }
    return out;
  }

  // A chart whose parts `paint(x, y)` returns; `legend` names them.
  function chart(title, highest, paint, legend) {
    const svg = draw('svg', { height: HEIGHT, role: 'img', 'aria-label': title + '. The tables below have the figures.' });
    const figure = make('figure', { class: 'chart' }, make('h3', {}, title), svg, make('ul', { class: 'legend' }));
    let width = 0;
    const x = (i) => LEFT + ((width - LEFT - RIGHT) * i) / Math.max(1, count - 1);
    const lines = marks(highest), top = lines[lines.length - 1] || 1;
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top);
    const pointers = draw('g');
    const point = () => {
      pointers.replaceChildren(...['a', 'b'].flatMap((which) => {
        const at = x(moments[which]);
        return [draw('line', { class: 'moment', x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM }),
          draw('text', { class: 'moment-name', x: at, y: TOP - 3, 'text-anchor': 'middle' }, which.toUpperCase())];
      }));
    };
    const paintAll = () => {
      if (svg.clientWidth === width || svg.clientWidth === 0) return;
      width = svg.clientWidth;
      svg.setAttribute('viewBox', '0 0 ' + width + ' ' + HEIGHT);
      const grid = lines.flatMap((value) => [
        draw('line', { class: 'grid', x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
        draw('text', { x: LEFT - 6, y: y(value) + 4, 'text-anchor': 'end' }, bytes(value))]);
      // A figure is 7 units wide, and two labels need a distance.
      const space = (width - LEFT - RIGHT) / (nameOf(0).length * 7 + 40);
      const labels = Math.max(2, Math.min(7, count, Math.floor(space)));
      for (let n = 0; n < labels; n += 1) {
        const i = Math.round(((count - 1) * n) / (labels - 1));
        const anchor = n === 0 ? 'start' : n === labels - 1 ? 'end' : 'middle';
        grid.push(draw('text', { x: x(i), y: HEIGHT - 8, 'text-anchor': anchor }, nameOf(i)));
      }
      svg.replaceChildren(...grid, ...paint(x, y), pointers);
      point();
    };
    new ResizeObserver(paintAll).observe(svg);
    moments.watchers.push(point);
    const at = (event) => ((event.clientX - svg.getBoundingClientRect().left - LEFT) / (width - LEFT - RIGHT)) * (count - 1);
    let held = null;
    svg.addEventListener('pointerdown', (event) => {
      held = Math.abs(at(event) - moments.a) < Math.abs(at(event) - moments.b) ? 'a' : 'b';
      svg.setPointerCapture(event.pointerId);
      choose(held, at(event));
    });
    svg.addEventListener('pointermove', (event) => {
      if (held) choose(held, held === 'a' ? Math.min(at(event), moments.b) : Math.max(at(event), moments.a));
    });
    for (const end of ['pointerup', 'pointercancel']) svg.addEventListener(end, () => { held = null; });
    figure.lastChild.append(...legend.map(([swatch, name]) => make('li', {},
      draw('svg', { viewBox: '0 0 10 10', 'aria-hidden': 'true' }, draw('rect', { class: swatch, width: 10, height: 10 })), name)));
    return figure;
  }

  const highestOf = (list) => list.reduce((most, value) => (value > most ? value : most), 0);
  const ends = (curve) => {
    const last = bytes(curve.last[curve.end] || 0);
    return curve.once ? last + ', 1 reading' : bytes(curve.last[curve.first] || 0) + ' → ' + last;
  };

  function processChart(set) {
    const [rss, heap, limit] = ['rss', 'heap', 'limit'].map((role) => set.curves.find((curve) => curve.role === role));
    const others = set.curves.filter((curve) => curve.role === '');
    const title = rss && heap ? 'RSS and committed Java heap' : rss ? 'RSS' : 'The process';
    const legend = [];
    if (rss) legend.push(['s-ink', 'RSS ' + ends(rss)]);
    if (heap) legend.push(['s0', heap.name + ' ' + ends(heap)]);
    if (rss && heap) legend.push(['s-gap', 'gap: RSS above the heap']);
    if (limit) legend.push(['s-limit', 'memory limit ' + ends(limit).split(' → ').pop()]);
    others.forEach((curve, i) => legend.push(['s' + (2 + i), curve.name + ' ' + ends(curve)]));
    const zero = new Array(count).fill(0);
    return chart(title, highestOf(set.curves.map((curve) => highestOf(curve.high))), (x, y) => {
      const spread = (curve, name) => area(curve.low, curve.high, x, y, 'spread ' + name);
      const out = [];
      if (heap) out.push(area(zero, heap.line, x, y, 'under s0'));
      if (rss && heap) out.push(area(heap.line, rss.line, x, y, 'gap'));
      others.forEach((curve, i) => out.push(line(curve.line, x, y, 'curve s' + (2 + i))));
      if (heap) out.push(line(heap.line, x, y, 'curve s0'));
      if (rss) out.push(spread(rss, 's-ink'), line(rss.line, x, y, 'curve s-ink'));
      if (limit) out.push(line(limit.line, x, y, 'curve s-limit dash'));
      return out;
    }, legend);
  }

  function stackedChart(set) {
    const layers = set.curves.slice(0, LAYERS), rest = set.curves.slice(LAYERS);
    if (rest.length > 0) {
      // The curves of a stack end together.
      const { end } = rest[0], first = Math.min(...rest.map((curve) => curve.first));
      const sum = (key) => Array.from({ length: count }, (_, i) => (
        i < first || i > end ? undefined : rest.reduce((whole, curve) => whole + (curve[key][i] || 0), 0)));
      const name = rest.length === 1 ? rest[0].name : rest.length + ' others';
      layers.push({ name, last: sum('last'), line: sum('line'), first, end, once: rest.every((curve) => curve.once) });
    }
    // Nothing is drawn before the first reading and after the last one.
    let below = Array.from({ length: count }, (_, i) => (layers.some((curve) => curve.line[i] !== undefined) ? 0 : undefined));
    const bands = layers.map((curve) => {
      const above = below.map((sum, i) => (sum === undefined ? undefined : sum + (curve.line[i] || 0))), band = [below, above];
      below = above;
      return band;
    });
    // The legend lists from the top of the stack down.
    const legend = layers.map((curve, i) => ['s' + i, curve.name + ' ' + ends(curve)]).reverse();
    return chart('Stacked: ' + set.name, highestOf(below), (x, y) =>
      bands.map(([lower, upper], i) => area(lower, upper, x, y, 'layer s' + i)), legend);
  }

  const process = curves.sets.find((set) => !set.stacked);
  if (process) place.append(processChart(process));
  if (chosen) {
    const holder = make('div', {}, stackedChart(chosen));
    if (stackedSets.length > 1) {
      const select = make('select', { id: 'stacked-set' }, ...stackedSets.map((set, i) => make('option', { value: i }, set.name)));
      select.addEventListener('change', () => {
        chosen = stackedSets[Number(select.value)];
        holder.replaceChildren(stackedChart(chosen));
      });
      place.append(make('p', {}, make('label', { for: 'stacked-set' }, 'Stack: '), select));
    }
    place.append(holder);
  }
  moments.watchers.forEach((watch) => watch());
}

