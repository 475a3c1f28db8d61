(() => {
  const root = document.documentElement, button = document.querySelector('button.theme');
  const dark = () => getComputedStyle(root).getPropertyValue('--scheme').trim() === 'dark';
  const name = () => { button.textContent = dark() ? '☀' : '☾'; button.setAttribute('aria-label', dark() ? 'Light colours' : 'Dark colours'); };
  const swatches = () => document.querySelectorAll('i[data-colour]').forEach(mark => { mark.style.background = hadalCharts.palette(Number(mark.dataset.colour)); });
  button.onclick = () => { root.dataset.theme = dark() ? 'light' : 'dark'; name(); swatches(); hadalCharts.again(); };
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { name(); swatches(); });
  // Paper is white.
  let before;
  addEventListener('beforeprint', () => { before = root.dataset.theme; root.dataset.theme = 'light'; swatches(); hadalCharts.again(); });
  addEventListener('afterprint', () => { if (before) root.dataset.theme = before; else delete root.dataset.theme; swatches(); hadalCharts.again(); });
  name();
  swatches();
  hadalCharts.all();
})();
