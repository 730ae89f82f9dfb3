// Shared helpers, copy buttons, and tables that sort. Names of a target only ever become text nodes.
const data = JSON.parse(document.getElementById('data').textContent);
const SVG = 'http://www.w3.org/2000/svg';

// An element with attributes; children are elements or text.
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}
const make = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// Binary units with three digits, as everywhere else in Plimsoll.
function bytes(n) {
  const sign = n < 0 ? '−' : '';
  let value = Math.abs(n);
  if (value < 1024) return sign + Math.round(value) + ' B';
  const units = ['KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
  let unit = 0;
  for (value /= 1024; value >= 999.5 && unit < 5; unit += 1) value /= 1024;
  return sign + value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0) + ' ' + units[unit];
}
const change = (n) => (n > 0 ? '+' : '') + bytes(n);
function clock(ms, withDay, withMilliseconds) {
  const iso = new Date(ms).toISOString();
  const time = iso.slice(11, withMilliseconds ? 23 : 19);
  return withDay ? iso.slice(0, 10) + ' ' + time : time;
}

for (const command of document.querySelectorAll('pre.copy')) {
  const button = make('button', { type: 'button', 'aria-label': 'Copy the command' }, 'Copy');
  button.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(command.textContent);
      button.textContent = 'Copied';
    } catch (refused) {
      // Without permission the text is selected, so that a key copies it.
      getSelection().selectAllChildren(command);
      button.textContent = 'Selected';
    }
    setTimeout(() => { button.textContent = 'Copy'; }, 2000);
  });
  const box = make('div', { class: 'copied' });
  command.replaceWith(box);
  box.append(command, button);
}

// A click on a head sorts by its column: numbers by data-v, biggest first, names by their text.
function sortable(table) {
  const heads = table.tHead.rows[0].cells;
  Array.from(heads).forEach((head, place) => {
    const button = make('button', { type: 'button' }, head.textContent);
    head.replaceChildren(button);
    button.addEventListener('click', () => {
      const rows = Array.from(table.tBodies[0].rows);
      const number = (row) => (row.cells[place].hasAttribute('data-v') ? parseFloat(row.cells[place].dataset.v) : NaN);
      const isText = rows.every((row) => Number.isNaN(number(row)));
      const was = head.getAttribute('aria-sort');
      const falls = was ? was === 'ascending' : !isText;
      for (const other of heads) other.removeAttribute('aria-sort');
      head.setAttribute('aria-sort', falls ? 'descending' : 'ascending');
      const keyed = rows.map((row) => [isText ? row.cells[place].textContent : number(row), row]);
      keyed.sort(([one], [other]) => {
        if (isText) return one.localeCompare(other);
        return (Number.isNaN(one) ? -Infinity : one) - (Number.isNaN(other) ? -Infinity : other);
      });
      if (falls) keyed.reverse();
      table.tBodies[0].append(...keyed.map(([, row]) => row));
    });
  });
  return table;
}
document.querySelectorAll('table.sortable').forEach(sortable);

// Printing unfolds the parts that are short.
addEventListener('beforeprint', () => {
  for (const folded of document.querySelectorAll('details')) {
    if (folded.querySelectorAll('tr').length <= 60) folded.open = true;
  }
});

