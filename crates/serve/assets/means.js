// Several seeds as one curve: their mean, and a band from the lowest to the highest.

const isNumber = (value) => value !== null && value !== undefined && Number.isFinite(value);

/** The height of a curve between its points. */
function between({ x, y }, at, place) {
  const [a, b] = [x[place], x[place + 1]];
  return b === undefined || a === at ? y[place] : y[place] + ((at - a) / (b - a)) * (y[place + 1] - y[place]);
}

/** Mean of curves, as far as all of them reach. Those without a point are left out. */
export function mean(curves) {
  const whole = curves
    .map(({ x, y }) => ({ x: x.filter((_, i) => isNumber(y[i])), y: y.filter(isNumber) }))
    .filter(({ x }) => x.length > 0);
  if (whole.length === 0) return { x: [], y: [], band: [[], []], count: 0 };
  const first = Math.max(...whole.map(({ x }) => x[0]));
  const last = Math.min(...whole.map(({ x }) => x.at(-1)));
  const places = [...new Set(whole.flatMap(({ x }) => x))].filter((x) => x >= first && x <= last).sort((a, b) => a - b);
  const [y, low, high] = [[], [], []];
  const at = whole.map(() => 0);
  for (const place of places) {
    const heights = whole.map((curve, i) => {
      while (curve.x[at[i] + 1] <= place) at[i]++;
      return between(curve, place, at[i]);
    });
    y.push(heights.reduce((a, b) => a + b) / heights.length);
    low.push(Math.min(...heights));
    high.push(Math.max(...heights));
  }
  return { x: places, y, band: [low, high], count: whole.length };
}
