'use strict';
// A page of `serve`: reads the page again every 15 s while it is visible. Unfolded parts and the scroll position stay.
// The reader can pause it. A text selection, or a click on a chart or flame graph, pauses it too.
(() => {
  const seconds = 15;
  const button = document.getElementById('pause');
  const store = sessionStorage;
  const place = location.pathname;
  const unfolded = () => Array.from(document.querySelectorAll('details'), (one) => one.open);
  let paused = store.getItem('paused ' + place) === 'yes';
  const show = () => {
    button.hidden = false;
    button.textContent = paused ? 'Continue' : 'Pause';
    button.setAttribute('aria-pressed', String(paused));
  };
  const pause = (now) => {
    paused = now;
    store.setItem('paused ' + place, paused ? 'yes' : 'no');
    show();
  };
  try {
    const kept = JSON.parse(store.getItem('unfolded ' + place) || '[]');
    const all = document.querySelectorAll('details');
    if (kept.length === all.length) all.forEach((one, at) => { one.open = kept[at]; });
  } catch (damaged) {
    store.removeItem('unfolded ' + place);
  }
  show();
  button.addEventListener('click', () => pause(!paused));
  for (const part of ['charts', 'flame']) {
    const element = document.getElementById(part);
    if (element) element.addEventListener('pointerdown', () => pause(true));
  }
  setInterval(async () => {
    if (paused || document.hidden || String(getSelection()) !== '') return;
    store.setItem('unfolded ' + place, JSON.stringify(unfolded()));
    // The server may be gone, or busy: then the page stays as it is.
    try {
      const answer = await fetch(place, { method: 'HEAD', cache: 'no-store' });
      if (answer.ok) location.reload();
      else document.getElementById('live').textContent = answer.status === 404 ? 'The process has ended.' : 'Not read now.';
    } catch (gone) {
      document.getElementById('live').textContent = 'plimsoll serve does not answer.';
    }
  }, seconds * 1000);
})();
