// What is drawn inside of the axes: one function for each kind of marks of a figure (see hadal_report::figure).

const SPACE = "http://www.w3.org/2000/svg";
const COLOURS = 12;

export function svg(name, attributes = {}, parent = null, text = null) {
  const element = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  parent?.append(element);
  return element;
}

export const colour = (index) => `k${index % COLOURS}`;

const dressed = (look) => (look ? `${colour(look.colour)} v${look.variant % 4}` : "reference");

/** Classes of a series: the look of its policy if it has one, or a colour by its place. A reference has none. */
export const style = (series, index) => (series.ink ? "ink" : series.look !== undefined ? dressed(series.look) : colour(series.colour ?? index));

/** Classes of what a series shows at a place; places may be policies. */
const styleAt = (figure, series, index, place) => (figure.places?.[place] ? dressed(figure.places[place]) : style(series, index));
const isNumber = (value) => value !== null && Number.isFinite(value);

function path(xs, ys, x, y, log) {
  let [text, pen] = ["", "M"];
  for (let i = 0; i < xs.length; i++) {
    if (!isNumber(ys[i]) || (log && ys[i] <= 0)) {
      pen = "M";
      continue;
    }
    text += `${pen}${x.place(xs[i]).toFixed(1)} ${y.place(ys[i]).toFixed(1)}`;
    pen = "L";
  }
  return text;
}

function lines(layer, figure, { x, y, log, shown }) {
  figure.marks.series.forEach((line, index) => {
    if (!shown(line.name)) return;
    const dress = style(line, index);
    if (line.band) {
      const [low, high] = line.band;
      const there = path(line.x, high, x, y, log);
      const back = path([...line.x].reverse(), [...low].reverse(), x, y, log).replace(/^M/, "L");
      if (there && back) svg("path", { d: `${there}${back}Z`, class: `band ${dress}` }, layer);
    }
    const second = !line.raw && index >= COLOURS && line.colour === undefined && !line.look ? " second" : "";
    const kind = (line.dashed ? " dashed" : "") + (line.raw ? " raw" : "") + (line.thin ? " thin" : "") + second;
    svg("path", { d: path(line.x, line.y, x, y, log), class: `curve ${dress}${kind}` }, layer);
    for (const i of line.marked ?? []) {
      if (isNumber(line.y[i]) && !(log && line.y[i] <= 0)) {
        svg("circle", { cx: x.place(line.x[i]), cy: y.place(line.y[i]), r: 6, class: `curve ${dress}` }, layer);
      }
    }
    const single = line.y.filter(isNumber).length;
    if (line.dots || single === 1) {
      line.y.forEach((value, i) => {
        if (isNumber(value) && !(log && value <= 0)) {
          svg("circle", { cx: x.place(line.x[i]), cy: y.place(value), r: 2.6, class: `fill ${dress}` }, layer);
        }
      });
    }
  });
}

function points(layer, figure, { x, y, log, shown }) {
  figure.marks.series.forEach((series, index) => {
    if (!shown(series.name)) return;
    series.x.forEach((value, i) => {
      if (!isNumber(series.y[i]) || (log && series.y[i] <= 0)) return;
      const dot = svg("circle", { cx: x.place(value), cy: y.place(series.y[i]), r: 2.8, class: `fill ${style(series, index)}`, opacity: 0.75 }, layer);
      if (series.labels?.[i]) svg("title", {}, dot, series.labels[i]);
    });
  });
}

/** Groups of things side by side, one for each category. */
function groups(figure, shown, x) {
  const seen = figure.marks.series.map((series, index) => ({ series, index })).filter(({ series }) => shown(series.name));
  const room = Math.abs(x.place(1) - x.place(0)) * 0.8;
  const width = room / Math.max(1, seen.length);
  return seen.map(({ series, index }, place) => ({
    series, index, width: Math.max(1, width * 0.9), left: (i) => x.place(i) - room / 2 + place * width + width * 0.05,
  }));
}

function bars(layer, figure, { x, y, log, shown }) {
  const ground = log ? y.place(y.low) : y.place(Math.min(Math.max(0, y.low), y.high));
  for (const { series, index, width, left } of groups(figure, shown, x)) {
    series.values.forEach((value, i) => {
      if (!isNumber(value) || (log && value <= 0)) return;
      const top = y.place(value);
      const box = { x: left(i), y: Math.min(top, ground), width, height: Math.max(1, Math.abs(ground - top)), rx: 1.5 };
      svg("rect", { ...box, class: `fill ${styleAt(figure, series, index, i)}` }, layer);
      const error = series.errors?.[i];
      if (isNumber(error) && error > 0) {
        const middle = left(i) + width / 2;
        const low = log ? Math.max(y.low, value - error) : value - error;
        const [foot, head] = [y.place(low), y.place(value + error)];
        const cap = Math.min(5, width / 4);
        const line = `M${middle} ${foot}V${head}M${middle - cap} ${foot}h${2 * cap}M${middle - cap} ${head}h${2 * cap}`;
        svg("path", { d: line, class: "interval" }, layer);
      }
    });
  }
}

function boxes(layer, figure, { x, y, log, shown }) {
  const at = (value) => y.place(log ? Math.max(value, y.low) : value);
  for (const { series, index, width, left } of groups(figure, shown, x)) {
    series.boxes.forEach((box, i) => {
      if (!box) return;
      const [middle, group] = [left(i) + width / 2, svg("g", { class: styleAt(figure, series, index, i) }, layer)];
      svg("line", { x1: middle, x2: middle, y1: at(box.min), y2: at(box.max), class: "box" }, group);
      const height = Math.max(1, at(box.q1) - at(box.q3));
      svg("rect", { x: left(i), y: at(box.q3), width, height, class: "box" }, group);
      svg("line", { x1: left(i), x2: left(i) + width, y1: at(box.median), y2: at(box.median), class: "box" }, group);
    });
  }
}

/** Dark is little, bright is much, and the steps look even: a ramp through these colours. */
const RAMP = [[38, 24, 74], [49, 77, 125], [33, 125, 134], [68, 170, 118], [164, 205, 84], [250, 231, 92]];

export function ramp(share) {
  const place = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1);
  const first = Math.min(Math.floor(place), RAMP.length - 2);
  const part = RAMP[first].map((value, i) => Math.round(value + (RAMP[first + 1][i] - value) * (place - first)));
  return `rgb(${part.join(" ")})`;
}

export function heatRange(values) {
  const all = values.flat().filter(isNumber);
  return all.length ? [all.reduce((a, b) => Math.min(a, b)), all.reduce((a, b) => Math.max(a, b))] : [0, 1];
}

function heat(layer, figure, { x, y }) {
  const [low, high] = heatRange(figure.marks.values);
  const width = Math.abs(x.place(1) - x.place(0)) + 0.4;
  const height = Math.abs(y.place(1) - y.place(0)) + 0.4;
  figure.marks.values.forEach((row, j) =>
    row.forEach((value, i) => {
      if (!isNumber(value)) return;
      const box = { x: x.place(i) - width / 2, y: y.place(j) - height / 2, width, height };
      svg("rect", { ...box, fill: ramp((value - low) / (high - low || 1)) }, layer);
    }));
}

export const MARKS = { lines, points, bars, boxes, heat };

/** Smallest and largest of what is shown, as [x, y]. */
export function extent(figure, shown, within, log) {
  const [xs, ys] = [[Infinity, -Infinity], [Infinity, -Infinity]];
  const grow = (range, value) => {
    if (!isNumber(value)) return;
    range[0] = Math.min(range[0], value);
    range[1] = Math.max(range[1], value);
  };
  const { marks } = figure;
  const places = Math.max(figure.x.categories?.length ?? 0, ...(marks.series ?? []).map((s) => (s.values ?? s.boxes ?? []).length), 0);
  if (marks.kind === "heat") {
    const columns = Math.max(...marks.values.map((row) => row.length), 1);
    return [[-0.5, columns - 0.5], [-0.5, Math.max(marks.values.length, 1) - 0.5]];
  }
  for (const series of marks.series.filter((series) => shown(series.name))) {
    if (series.values) series.values.forEach((value, i) => {
      if (!isNumber(value) || (log && value <= 0)) return;
      const error = series.errors?.[i] ?? 0;
      [value - error, value, value + error].forEach((end) => { if (!log || end > 0) grow(ys, end); });
      if (!log) grow(ys, 0);
    });
    else if (series.boxes) series.boxes.forEach((box) => { if (box) { grow(ys, log && box.min <= 0 ? null : box.min); grow(ys, box.max); } });
    else series.x.forEach((value, i) => {
      if (!isNumber(series.y[i])) return;
      grow(xs, value);
      if (within && (value < within[0] || value > within[1])) return;
      if (log && series.y[i] <= 0) return;
      grow(ys, series.y[i]);
      if (series.band) [series.band[0][i], series.band[1][i]].forEach((edge) => { if (!log || edge > 0) grow(ys, edge); });
    });
  }
  return [places ? [-0.5, places - 0.5] : xs, ys];
}
