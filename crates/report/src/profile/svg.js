'use strict';
for (const svg of document.querySelectorAll('svg.flame')) {
  const SVG = 'http://www.w3.org/2000/svg', XHTML = 'http://www.w3.org/1999/xhtml';
  const LEFT = 10, WIDE = 1180, CHARACTER = 6.63, GAP = 0.6;
  const name = svg.querySelector('.name'), details = svg.querySelector('.details'), matched = svg.querySelector('.matched');
  // By row, the last box seen: the caller of the next one below it.
  const last = new Map(), ofGroup = new Map();
  const boxes = Array.from(svg.querySelectorAll('.boxes > g'), (g) => {
    const rect = g.querySelector('rect'), number = (attribute) => parseFloat(rect.getAttribute(attribute));
    const told = g.querySelector('title').textContent.split('\n');
    const drawn = number('width'), y = number('y'), height = number('height') + 1;
    const box = { g, rect, told, x: number('x'), y, width: drawn > 3 - GAP ? drawn + GAP : drawn,
      text: g.querySelector('text'), caller: last.get(y - height) || null };
    last.set(y, box);
    ofGroup.set(g, box);
    return box;
  });
  const all = boxes[0];
  let zoomed = all;

  function cut(text, room) {
    const characters = Array.from(text);
    return characters.length <= room ? text : characters.slice(0, room - 1).join('') + '…';
  }

  // A Java name loses its package first.
  function fitted(name, room) {
    return Array.from(name).length <= room ? name : cut(name.replace(/^(?:[a-z][A-Za-z0-9_]*\.)+(?=[A-Z])/, ''), room);
  }

  function zoom(into) {
    zoomed = into;
    const scale = WIDE / into.width, callers = new Set();
    for (let box = into.caller; box; box = box.caller) callers.add(box);
    for (const box of boxes) {
      const above = callers.has(box);
      box.inside = box === into || (box.caller !== null && box.caller.inside === true);
      box.g.style.display = above || box.inside ? '' : 'none';
      box.g.classList.toggle('outside', above);
      if (!above && !box.inside) continue;
      const x = above ? LEFT : LEFT + (box.x - into.x) * scale, width = above ? WIDE : box.width * scale;
      box.rect.setAttribute('x', x.toFixed(2));
      box.rect.setAttribute('width', (width > 3 ? width - GAP : width).toFixed(2));
      const room = Math.floor((width - 6) / CHARACTER);
      if (room >= 3 && !box.text) {
        box.text = document.createElementNS(SVG, 'text');
        box.text.setAttribute('y', (box.y + 12.5).toFixed(1));
        box.g.appendChild(box.text);
      }
      if (!box.text) continue;
      box.text.setAttribute('x', (x + 3).toFixed(2));
      box.text.textContent = room >= 3 ? fitted(box.told[0], room) : '';
    }
  }

  function search(pattern) {
    let wanted = null;
    try {
      wanted = pattern ? new RegExp(pattern, 'i') : null;
      field.setCustomValidity('');
    } catch (problem) {
      field.setCustomValidity(problem.message);
    }
    let hits = 0, covered = 0;
    for (const box of boxes) {
      const hit = wanted !== null && box !== all && box.told.some((line, i) => i !== 1 && wanted.test(line));
      // A match below another match is already counted with it.
      const below = box.caller !== null && box.caller.found === true;
      if (hit) hits += 1;
      if (hit && !below) covered += box.width;
      box.found = hit || below;
      box.g.classList.toggle('hit', hit);
    }
    const percent = hits === 0 ? 0 : (100 * covered) / all.width;
    const boxesMatch = hits === 1 ? '1 box matches' : hits + ' boxes match';
    matched.textContent = wanted === null ? '' : boxesMatch + ', ' + percent.toFixed(1) + ' % of all';
  }

  const place = document.createElementNS(SVG, 'foreignObject');
  for (const [key, value] of [['x', 910], ['y', 6], ['width', 280], ['height', 26]]) place.setAttribute(key, value);
  const field = document.createElementNS(XHTML, 'input');
  field.type = 'search';
  field.placeholder = 'search (regular expression)';
  field.addEventListener('input', () => search(field.value));
  place.appendChild(field);
  svg.appendChild(place);

  const boxAt = (event) => ofGroup.get(event.target.closest('.boxes > g'));
  svg.addEventListener('mouseover', (event) => {
    const box = boxAt(event), room = Math.floor(WIDE / CHARACTER);
    name.textContent = box ? cut(box.told[0], room) : '';
    details.textContent = box ? cut(box.told.slice(1).join('   '), room) : '';
  });
  svg.addEventListener('click', (event) => {
    const box = boxAt(event);
    // A click on the zoomed box zooms out.
    if (box) zoom(box === zoomed ? all : box);
  });
  document.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape' || !all) return;
    field.value = '';
    search('');
    zoom(all);
  });
}
