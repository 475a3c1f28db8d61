(() => {
  const root = document.documentElement, button = document.querySelector('button.theme');
  const dark = () => getComputedStyle(root).getPropertyValue('--scheme').trim() === 'dark';
  const name = () => { button.textContent = dark() ? '☀' : '☾'; button.setAttribute('aria-label', dark() ? 'Light colours' : 'Dark colours'); };
  button.onclick = () => { root.dataset.theme = dark() ? 'light' : 'dark'; name(); hadalCharts.again(); };
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', name);
  // Paper is white.
  let before;
  addEventListener('beforeprint', () => { before = root.dataset.theme; root.dataset.theme = 'light'; hadalCharts.onPaper(true); });
  addEventListener('afterprint', () => { if (before) root.dataset.theme = before; else delete root.dataset.theme; hadalCharts.onPaper(false); });
  name();
  hadalCharts.all();
})();
