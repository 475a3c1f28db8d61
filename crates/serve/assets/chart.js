// A figure with axes, hover, zoom (drag; double click goes back), series that can be switched off, and a log axis.

import { LINE, label, wrapped } from "./labels.js";
import { MARKS, extent, heatRange, ramp, style, svg } from "./marks.js";
import { exact, isFlat, padded, scale, short } from "./scale.js";

const HEIGHT = 270;
const MARGIN = { top: 10, right: 16, bottom: 28, left: 14 };
/** Width of a digit of a tick. */
const DIGIT = 6.8;
const TIPS = 14;

const element = (name, attributes = {}, text = "") => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
};
const named = (axis) => (axis.unit ? `${axis.label} (${axis.unit})` : axis.label);

export class Chart {
  constructor(host, { height = HEIGHT } = {}) {
    Object.assign(this, { host, height, hidden: new Set(), zoom: null, log: null, figure: null });
    host.replaceChildren();
    const head = element("header");
    this.title = element("h3");
    this.back = element("button", { type: "button", hidden: "" }, "whole");
    this.logs = element("button", { type: "button", "aria-pressed": "false" }, "log");
    head.append(this.title, this.back, this.logs);
    this.canvas = svg("svg", { height, role: "img" });
    this.legend = element("div", { class: "legend" });
    this.caption = element("p");
    this.tip = element("div", { class: "tip", hidden: "" });
    host.append(head, this.canvas, this.legend, this.caption, this.tip);
    this.back.onclick = () => this.show({ zoom: null });
    this.logs.onclick = () => this.show({ log: !this.isLog() });
    this.canvas.addEventListener("dblclick", () => this.show({ zoom: null }));
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.leave());
    this.canvas.addEventListener("pointerdown", (event) => this.press(event));
    this.canvas.addEventListener("pointerup", (event) => this.release(event));
    new ResizeObserver(() => this.draw()).observe(host);
  }

  /** Shows a figure, in the same zoom and with the same series as before. */
  set(figure) {
    this.figure = figure;
    this.draw();
  }

  show(change) {
    Object.assign(this, change);
    this.draw();
  }

  isLog() {
    return this.log ?? this.figure.y.scale === "log";
  }

  /** Raw curves behind smooth ones share a name with them, and so a switch. */
  series() {
    return this.figure.marks.series ?? [];
  }

  draw() {
    const { figure, canvas } = this;
    const width = canvas.clientWidth || this.host.clientWidth - 28;
    if (!figure || width < 50) return;
    canvas.replaceChildren();
    canvas.setAttribute("aria-label", figure.title);
    canvas.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    this.title.textContent = figure.title;
    this.caption.textContent = figure.caption ?? "";
    this.caption.hidden = !figure.caption;
    const isHeat = figure.marks.kind === "heat";
    const shown = (name) => !this.hidden.has(name);
    let log = this.isLog() && !isHeat;
    const [xs, ys] = extent(figure, shown, this.zoom, log);
    if (log && !(ys[0] > 0)) log = false;
    this.logs.hidden = isHeat;
    this.logs.setAttribute("aria-pressed", String(log));
    this.back.hidden = !this.zoom;
    const beyond = isHeat ? wrapped(canvas, figure.marks.legend, this.height - 80) : [];
    const inner = { top: MARGIN.top, right: width - (isHeat ? 58 + beyond.length * LINE : MARGIN.right) };
    // The name below may take a line more.
    const below = wrapped(canvas, named(figure.x), width - 120);
    inner.bottom = this.height - MARGIN.bottom - below.length * LINE;
    const places = figure.x.categories?.length > 0 || isHeat || figure.marks.kind === "bars" || figure.marks.kind === "boxes";
    const yRange = isHeat ? ys : padded(...ys, { log });
    const y = scale(...yRange, inner.bottom, inner.top, { log, count: Math.round(this.height / 50) });
    if (isHeat) y.ticks = this.names(figure.y, ys, Math.floor((inner.bottom - inner.top) / 22));
    const beside = wrapped(canvas, named(figure.y), inner.bottom - inner.top);
    inner.left = MARGIN.left + beside.length * LINE + Math.min(18, Math.max(3, ...y.ticks.map(({ text }) => text.length))) * DIGIT;
    const xLog = figure.x.scale === "log" && !places && xs[0] > 0;
    const count = Math.max(2, Math.floor((inner.right - inner.left) / 80));
    const range = this.zoom ?? (places ? xs : padded(...xs, { air: 0.01, log: xLog }));
    const whole = this.series().every(({ x }) => x?.every(Number.isInteger));
    const x = scale(...range, inner.left, inner.right, { log: xLog, count, whole });
    Object.assign(this, { x, y, inner, drawnLog: log });
    if (places) x.ticks = this.names(figure.x, range, Math.floor((inner.right - inner.left) / 46));
    this.axes(x, y, inner);
    label(canvas, below, named(figure.x), (inner.left + inner.right) / 2, inner.bottom + 18 + LINE);
    label(canvas, beside, named(figure.y), 12, (inner.top + inner.bottom) / 2, true);
    if (figure.marks.kind === "lines" && isFlat(...ys)) {
      svg("text", { x: inner.right, y: inner.top + 12, "text-anchor": "end" }, canvas, `always ${short(ys[0])}`);
    }
    const clip = `clip-${Math.random().toString(36).slice(2)}`;
    const frame = { x: inner.left, y: inner.top - 2, width: inner.right - inner.left, height: inner.bottom - inner.top + 4 };
    svg("rect", frame, svg("clipPath", { id: clip }, svg("defs", {}, canvas)));
    const layer = svg("g", { "clip-path": `url(#${clip})` }, canvas);
    MARKS[figure.marks.kind](layer, figure, { x, y, log, shown });
    if (isHeat) this.bar(inner, beyond);
    this.over = svg("g", {}, canvas);
    this.switches();
  }

  /** Ticks of places; as many as have room. */
  names(axis, [low, high], room) {
    const first = Math.max(0, Math.ceil(low));
    const total = Math.floor(high) - first + 1;
    const longest = Math.max(1, ...(axis.categories ?? []).map((name) => name.length)) / 6;
    const every = Math.max(1, Math.ceil((total * Math.max(1, longest)) / Math.max(1, room)));
    const ticks = [];
    for (let i = first; i <= high; i += every) ticks.push({ value: i, text: axis.categories?.[i] ?? String(i) });
    return ticks;
  }

  axes(x, y, { left, right, bottom }) {
    const { canvas } = this;
    for (const { value, text } of y.ticks) {
      const place = y.place(value);
      svg("line", { x1: left, x2: right, y1: place, y2: place, class: "grid" }, canvas);
      svg("text", { x: left - 8, y: place + 4, "text-anchor": "end" }, canvas, text);
    }
    svg("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" }, canvas);
    let end = -Infinity;
    for (const { value, text } of x.ticks) {
      const place = x.place(value);
      const half = text.length * 3.4;
      if (place < left - 1 || place > right + 1 || place - half < end + 6) continue;
      end = place + half;
      svg("line", { x1: place, x2: place, y1: bottom, y2: bottom + 4, class: "axis" }, canvas);
      svg("text", { x: place, y: bottom + 17, "text-anchor": "middle" }, canvas, text);
    }
  }

  /** What colours of a heat map mean. */
  bar({ right, top, bottom }, lines) {
    const [low, high] = heatRange(this.figure.marks.values);
    const parts = 40;
    const height = (bottom - top) / parts;
    for (let i = 0; i < parts; i++) {
      svg("rect", { x: right + 14, y: bottom - (i + 1) * height, width: 10, height: height + 0.5, fill: ramp((i + 0.5) / parts) }, this.canvas);
    }
    const side = scale(low, high === low ? low + 1 : high, bottom, top, { count: 4 });
    for (const { value, text } of side.ticks) {
      svg("text", { x: right + 29, y: side.place(value) + 4 }, this.canvas, text);
    }
    label(this.canvas, lines, this.figure.marks.legend, right + 66, (top + bottom) / 2, true);
  }

  switches() {
    const seen = new Set();
    const all = this.series().map((series, index) => ({ name: series.name, dress: style(series, index) }));
    const names = all.filter(({ name }) => !seen.has(name) && seen.add(name));
    this.legend.hidden = names.length < 2;
    const key = JSON.stringify([names, [...this.hidden]]);
    if (key === this.drawnLegend) return;
    this.drawnLegend = key;
    this.legend.replaceChildren(...names.map(({ name, dress }) => {
      const button = element("button", { type: "button", "aria-pressed": String(!this.hidden.has(name)), title: "Click: on or off. Double click: this one alone" });
      button.append(element("i", { class: dress }), element("span", {}, name));
      button.onclick = () => {
        const hidden = new Set(this.hidden);
        if (!hidden.delete(name)) hidden.add(name);
        this.show({ hidden });
      };
      button.ondblclick = () => this.show({ hidden: new Set(names.map((other) => other.name).filter((other) => other !== name)) });
      return button;
    }));
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  press(event) {
    if (event.button !== 0 || !this.inner || event.pointerType === "touch") return;
    const [start] = this.at(event);
    if (start < this.inner.left || start > this.inner.right || this.figure.marks.kind === "heat") return;
    this.canvas.setPointerCapture(event.pointerId);
    this.start = start;
  }

  release(event) {
    if (this.start === undefined) return;
    const [start, end] = [this.start, Math.min(Math.max(this.at(event)[0], this.inner.left), this.inner.right)];
    this.start = undefined;
    if (Math.abs(end - start) > 8) this.show({ zoom: [this.x.back(Math.min(start, end)), this.x.back(Math.max(start, end))] });
  }

  leave() {
    this.tip.hidden = true;
    this.over?.replaceChildren();
  }

  point(event) {
    if (!this.figure || !this.over) return;
    const [px, py] = this.at(event);
    const { left, right, top, bottom } = this.inner;
    this.leave();
    if (px < left || px > right || py < top - 8 || py > bottom + 8) return;
    if (this.start !== undefined) {
      svg("rect", { x: Math.min(px, this.start), y: top, width: Math.abs(px - this.start), height: bottom - top, class: "zoomed" }, this.over);
    }
    const found = this.figure.marks.kind === "heat" ? this.cell(px, py) : this.nearest(px);
    if (!found) return;
    this.tip.replaceChildren(element("div", {}, ""), ...found.rows.map(({ name, value, dress }) => {
      const row = element("div");
      row.append(element("span", dress === undefined ? {} : { class: dress }, name), element("b", {}, value));
      return row;
    }));
    this.tip.firstChild.append(element("b", {}, found.title));
    this.tip.hidden = false;
    const place = found.place ?? px;
    const shift = place > (left + right) / 2 ? -this.tip.offsetWidth - 14 : 14;
    this.tip.style.left = `${this.canvas.offsetLeft + place + shift}px`;
    this.tip.style.top = `${this.canvas.offsetTop + top}px`;
  }

  cell(px, py) {
    const [i, j] = [Math.round(this.x.back(px)), Math.round(this.y.back(py))];
    const value = this.figure.marks.values[j]?.[i];
    if (value === undefined) return null;
    const name = (axis, place) => `${axis.label} ${axis.categories?.[place] ?? place}`;
    return { title: `${name(this.figure.x, i)}, ${name(this.figure.y, j)}`, rows: [{ name: this.figure.marks.legend, value: exact(value) }] };
  }

  /** What all series say at the place that is nearest to the pointer. */
  nearest(px) {
    const { x, y, figure } = this;
    const value = x.back(px);
    const rows = [];
    let best = null;
    const isPlaces = figure.marks.kind === "bars" || figure.marks.kind === "boxes";
    this.series().forEach((series, index) => {
      if (this.hidden.has(series.name) || series.raw || series.thin) return;
      const i = isPlaces ? Math.round(value) : closest(series.x, value);
      const height = isPlaces ? (series.values?.[i] ?? series.boxes?.[i]?.median) : series.y[i];
      if (height === undefined || height === null) return;
      const at = isPlaces ? i : series.x[i];
      if (best === null || Math.abs(at - value) < Math.abs(best - value)) best = at;
      rows.push({ name: series.name, value: exact(height), height, dress: style(series, index), at });
    });
    if (best === null) return null;
    const place = x.place(best);
    svg("line", { x1: place, x2: place, y1: this.inner.top, y2: this.inner.bottom, class: "rule" }, this.over);
    for (const row of isPlaces ? [] : rows) {
      if (this.drawnLog && row.height <= 0) continue;
      svg("circle", { cx: x.place(row.at), cy: y.place(row.height), r: 3.4, class: `fill ${row.dress}` }, this.over);
    }
    rows.sort((a, b) => b.height - a.height);
    const more = rows.length - TIPS;
    const kept = more > 0 ? [...rows.slice(0, TIPS), { name: `and ${more} more`, value: "" }] : rows;
    return { title: `${figure.x.label} ${figure.x.categories?.[best] ?? (figure.x.unit === "s" ? short(best) : exact(best))}`, rows: kept, place };
  }
}

/** The place of the value that is nearest, in ascending values. */
function closest(values, wanted) {
  let [low, high] = [0, values.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (values[middle] < wanted) low = middle;
    else high = middle;
  }
  return Math.abs(values[high] - wanted) < Math.abs(values[low] - wanted) ? high : low;
}

/** A mean over neighbours on both sides that weigh less the further they are, so that it lags behind nothing. */
export function smooth(values, share) {
  const isNumber = (value) => value !== null && Number.isFinite(value);
  const oneWay = (values) => {
    let [sum, weight] = [0, 0];
    return values.map((value) => {
      if (!isNumber(value)) return [sum, weight];
      [sum, weight] = [sum * share + value, weight * share + 1];
      return [sum, weight];
    });
  };
  const [before, after] = [oneWay(values), oneWay([...values].reverse()).reverse()];
  return values.map((value, i) => (isNumber(value) ? (before[i][0] + after[i][0] - value) / (before[i][1] + after[i][1] - 1) : null));
}

export const AXES = {
  step: { label: "step" },
  tokens: { label: "tokens" },
  seconds: { label: "training time", unit: "s" },
};

/** Smoothed curves with the raw ones behind them. */
export function curves(parts, share) {
  return parts.flatMap(({ y, ...rest }) =>
    share > 0 && y.length > 20 ? [{ ...rest, y, raw: true }, { ...rest, y: smooth(y, share) }] : [{ ...rest, y }]);
}

const gigabytes = (bytes) => (bytes / 1e9).toFixed(1);

/** How the machine is doing, in the head of each page. */
export function tellMachine(machine) {
  const parts = [];
  if (machine.cpu !== null) parts.push(`CPU ${Math.round(machine.cpu * 100)} % of ${machine.cores}`);
  if (machine.memory_used !== null) parts.push(`memory ${gigabytes(machine.memory_used)} of ${gigabytes(machine.memory_total)} GB`);
  if (machine.disk_free !== null) parts.push(`disk ${gigabytes(machine.disk_free)} GB free`);
  document.getElementById("machine").textContent = parts.join(" · ");
}

/** Asks again and again while somebody looks. */
export function repeat(milliseconds, task) {
  const turn = async () => {
    if (!document.hidden) await task().catch(() => {});
    setTimeout(turn, milliseconds);
  };
  turn();
}

export async function ask(address) {
  const answer = await fetch(address);
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error ?? answer.statusText);
  return value;
}
