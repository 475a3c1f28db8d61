// Axes: from values to places, round ticks, and numbers for people.

const SUFFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

/** How many decimals a step needs to be told exactly: 2 for 0.25. */
function decimals(step) {
  for (let digits = 0; digits < 20; digits++) {
    const shifted = step * 10 ** digits;
    if (shifted >= 0.999 && Math.abs(shifted - Math.round(shifted)) < 1e-6 * shifted) return digits;
  }
  return 20;
}

/** A number in a few characters. `step` is the distance of ticks: two ticks never look the same. */
export function short(value, step = 0) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e15) {
    const digits = step ? decimals(step / 10 ** Math.floor(Math.log10(size) + 1e-9)) : 2;
    const [number, power] = value.toExponential(digits).split("e");
    return `${step ? number : trimmed(number)}e${Number(power)}`;
  }
  const [unit, suffix] = SUFFIXES.find(([unit]) => size >= 10 * unit || (size >= unit && unit > 1e3)) ?? [1, ""];
  // Three digits that mean something, where no step says otherwise.
  const digits = step ? decimals(step / unit) : Math.max(0, 2 - Math.floor(Math.log10(size / unit) + 1e-9));
  const text = (value / unit).toFixed(digits);
  return (step ? text : trimmed(text)) + (suffix && ` ${suffix}`);
}

const trimmed = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

/** A number with all the digits that mean something. */
export function exact(value) {
  if (value === null || !Number.isFinite(value)) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size >= 1e-3 && size < 1e6 ? value.toPrecision(size >= 1000 ? 6 : 5) : value.toExponential(3);
}

/** Ticks at round places; of what is counted in whole numbers, at whole ones. */
function linearTicks(low, high, count, whole = false) {
  const rough = Math.max((high - low) / Math.max(1, count), whole ? 1 : 0);
  const power = 10 ** Math.floor(Math.log10(rough));
  const fits = (step) => step >= rough * (1 - 1e-9) && (!whole || Number.isInteger(step));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find(fits) ?? rough;
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step);
  return ticks.map((value) => ({ value, text: short(Math.abs(value) < step * 1e-6 ? 0 : value, step) }));
}

function logTicks(low, high, count) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const every = Math.max(1, Math.ceil((last - first) / count));
  const all = (factors, every) => {
    const ticks = [];
    for (let power = first; power <= last; power += every) {
      for (const factor of factors) ticks.push(factor * 10 ** power);
    }
    return ticks.filter((value) => value >= low * 0.9999 && value <= high * 1.0001);
  };
  const choices = [all([1, 1.5, 2, 3, 4, 5, 6, 8], 1), all([1, 2, 5], 1), all([1, 3], 1), all([1], every)];
  const chosen = choices.find((ticks) => ticks.length <= count + 1) ?? choices[3];
  if (chosen.length < 2) return linearTicks(low, high, count);
  return chosen.map((value) => ({ value, text: short(Number(value.toPrecision(3))) }));
}

/** A scale from [low, high] to [from, to] pixels. */
export function scale(low, high, from, to, { log = false, count = 5, whole = false } = {}) {
  const forward = log ? Math.log : (value) => value;
  const [a, b] = [forward(low), forward(high)];
  const place = (value) => from + ((forward(value) - a) / (b - a || 1)) * (to - from);
  const back = (pixel) => {
    const value = a + ((pixel - from) / (to - from)) * (b - a);
    return log ? Math.exp(value) : value;
  };
  const ticks = log ? logTicks(low, high, count) : linearTicks(low, high, count, whole);
  return { place, back, ticks, low, high };
}

/** Differences that are smaller than this, compared with the values, are noise of arithmetic. */
const NOISE = 1e-5;

/** Whether all values are the same, but for noise. */
export const isFlat = (low, high) => low <= high && high - low <= NOISE * Math.max(Math.abs(low), Math.abs(high));

/** A range with some air around it. What is flat stands in the middle of a range that shows how flat it is. */
export function padded(low, high, { log = false, air = 0.05 } = {}) {
  if (!(low <= high)) return log ? [0.1, 1] : [0, 1];
  if (isFlat(low, high)) {
    const middle = (low + high) / 2;
    if (log) return [middle / 1.25, middle * 1.25];
    const room = Math.abs(middle) * 0.2 || 1;
    return [middle - room, middle + room];
  }
  if (log) {
    const air10 = Math.max((high / low) ** air, 1.02);
    return [low / air10, high * air10];
  }
  const room = (high - low) * air;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}
