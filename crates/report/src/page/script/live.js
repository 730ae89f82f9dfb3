'use strict';
// A page of `serve`: reads the page again every 15 s while it is visible. Unfolded parts and the scroll position stay.
// The reader can pause it. A text selection pauses it too, and so does a click or a key in a chart, a flame graph or the
// head of a table: the moments, the zoom and the order that were chosen stay.
(() => {
  const seconds = 15;
  const button = document.getElementById('pause'), state = document.getElementById('live');
  const store = sessionStorage;
  const place = location.pathname;
  // The name of a part: verdicts and tables may come and go between two readings.
  const nameOf = (one) => {
    const verdict = one.closest('article');
    return (verdict ? verdict.querySelector('.id').textContent + ' ' : '') + (one.id || one.firstElementChild.textContent);
  };
  const parts = () => Array.from(document.querySelectorAll('details'));
  let paused = store.getItem('paused ' + place) === 'yes';
  const show = () => {
    button.hidden = false;
    button.textContent = paused ? 'Continue' : 'Pause';
    state.textContent = paused ? 'paused' : 'read again every ' + seconds + ' s';
  };
  const pause = (now) => {
    paused = now;
    store.setItem('paused ' + place, paused ? 'yes' : 'no');
    show();
  };
  try {
    const kept = new Map(JSON.parse(store.getItem('unfolded ' + place) || '[]'));
    for (const one of parts()) one.open = kept.get(nameOf(one)) ?? one.open;
  } catch (damaged) {
    store.removeItem('unfolded ' + place);
  }
  show();
  button.addEventListener('click', () => pause(!paused));
  for (const kind of ['pointerdown', 'keydown']) {
    document.addEventListener(kind, (event) => {
      // Keys that only walk through the page choose nothing.
      if (/^(Tab|Shift|Control|Alt|Meta)$/.test(event.key)) return;
      if (event.target.closest('#charts, #flame, .sortable thead')) pause(true);
    });
  }
  setInterval(async () => {
    if (paused || document.hidden || String(getSelection()) !== '') return;
    store.setItem('unfolded ' + place, JSON.stringify(parts().map((one) => [nameOf(one), one.open])));
    // The server may be gone, or busy: then the page stays as it is.
    try {
      const answer = await fetch(place, { method: 'HEAD', cache: 'no-store' });
      if (paused) return;
      if (answer.ok) location.reload();
      else state.textContent = answer.status === 404 ? 'The process has ended.' : 'Not read now.';
    } catch (gone) {
      state.textContent = 'plimsoll serve does not answer.';
    }
  }, seconds * 1000);
})();
