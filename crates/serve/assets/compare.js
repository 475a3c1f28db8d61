// Several runs in one chart: every seed, or the mean of each policy with a band over its seeds.

import { AXES, Chart, ask, curves, repeat, smooth, tellMachine } from "./chart.js";
import { mean } from "./means.js";

const [by, share, live, seeds] = ["by", "smooth", "live", "seeds"].map((id) => document.getElementById(id));
const charts = Object.fromEntries(["held", "train", "accuracy"].map((id) => [id, new Chart(document.getElementById(id), { height: 320 })]));
let runs = [];

/** Runs by policy, in the order of the first of each. */
function groups() {
  const made = new Map();
  for (const run of runs) made.set(run.group, [...(made.get(run.group) ?? []), run]);
  return [...made.entries()];
}

/** One line for each policy, or for each run. `column` takes the places and heights of a run. */
function series(column, amount = 0) {
  const rough = (run) => {
    const { x, y } = column(run);
    return { x, y: amount > 0 && y.length > 20 ? smooth(y, amount) : y };
  };
  const dots = (x) => x.length < 40;
  if (seeds.value !== "mean") {
    const parts = runs.map((run) => ({ name: run.name, look: run.look, ...column(run) })).filter(({ x }) => x.length);
    const lines = curves(parts, amount).map((line) => ({ ...line, dots: amount === 0 && dots(line.x) }));
    // Raw curves of many runs hide the smooth ones.
    return lines.filter((line) => !line.raw || runs.length <= 4);
  }
  return groups().flatMap(([name, members]) => {
    const { count, band, ...line } = mean(members.map(rough));
    if (count === 0) return [];
    const many = count > 1 ? { name: `${name} (${count} seeds)`, band } : { name };
    return [{ ...line, ...many, look: members[0].look, dots: amount === 0 && dots(line.x) }];
  });
}

function draw() {
  const [key, amount] = [by.value, Number(share.value)];
  const isMean = seeds.value === "mean";
  const caption = isMean ? "Lines are means over seeds, as far as all of them are; bands reach from the lowest to the highest seed." : "";
  const figure = (title, y, series) => ({ name: title, title, caption, x: AXES[key], y, marks: { kind: "lines", series } });
  const loss = { label: "loss", unit: "nats" };
  const show = (id, title, y, series) => {
    document.getElementById(id).hidden = series.length === 0;
    charts[id].set(figure(title, y, series));
  };
  show("held", "Held-out loss", loss, series((run) => ({ x: run.held_out[key], y: run.held_out.loss })));
  show("train", "Training loss", loss, series((run) => ({ x: run.train[key], y: run.train.loss }), amount));
  const right = (run) => {
    const known = run.held_out.accuracy.some((value) => value !== null);
    return known ? { x: run.held_out[key], y: run.held_out.accuracy.map((value) => (value === null ? null : value * 100)) } : { x: [], y: [] };
  };
  show("accuracy", "Held-out accuracy", { label: "right answers", unit: "%" }, series(right));
}

async function load() {
  const points = Math.max(100, Math.round(6000 / Math.max(1, runs.length || 20)));
  const news = await ask(`/api/compare${location.search}&points=${Math.min(points, 1200)}`);
  const steps = (all) => all.map((run) => `${run.id} ${run.cursor}`).join();
  const changed = steps(news.runs) !== steps(runs);
  runs = news.runs;
  document.getElementById("broken").textContent = news.broken.map(({ id, reason }) => `${id}: ${reason}`).join("; ");
  live.textContent = `${runs.length} runs`;
  if (changed) draw();
}

for (const choice of [by, share, seeds]) choice.onchange = draw;
repeat(4000, load);
repeat(5000, async () => tellMachine(await ask("/api/machine")));
