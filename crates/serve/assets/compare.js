// Several runs in one chart.

import { AXES, Chart, ask, curves, repeat, tellMachine } from "./chart.js";

const [by, share, live] = ["by", "smooth", "live"].map((id) => document.getElementById(id));
const charts = Object.fromEntries(["held", "train", "accuracy"].map((id) => [id, new Chart(document.getElementById(id), { height: 320 })]));
let runs = [];

function draw() {
  const [key, amount] = [by.value, Number(share.value)];
  const figure = (title, y, series) => ({ name: title, title, caption: "", x: AXES[key], y, marks: { kind: "lines", series } });
  const loss = { label: "loss", unit: "nats" };
  const held = runs.filter((run) => run.held_out.step.length);
  const place = (run) => runs.indexOf(run);
  document.getElementById("held").hidden = held.length === 0;
  charts.held.set(figure("Held-out loss", loss, held.map((run) => ({ name: run.id, x: run.held_out[key], y: run.held_out.loss, colour: place(run), dots: run.held_out.step.length < 40 }))));
  const parts = runs.map((run) => ({ name: run.id, x: run.train[key], y: run.train.loss, colour: place(run) }));
  // Raw curves of many runs hide the smooth ones.
  const series = curves(parts, amount).filter((line) => !line.raw || runs.length <= 4);
  charts.train.set(figure("Training loss", loss, series));
  const answered = held.filter((run) => run.held_out.accuracy.some((value) => value !== null));
  document.getElementById("accuracy").hidden = answered.length === 0;
  const right = (run) => run.held_out.accuracy.map((value) => (value === null ? null : value * 100));
  charts.accuracy.set(figure("Held-out accuracy", { label: "right answers", unit: "%" }, answered.map((run) => ({ name: run.id, x: run.held_out[key], y: right(run), colour: place(run), dots: run.held_out.step.length < 40 }))));
}

async function load() {
  const points = Math.max(100, Math.round(6000 / Math.max(1, new URLSearchParams(location.search).getAll("run").length)));
  const news = await ask(`/api/compare${location.search}&points=${Math.min(points, 1200)}`);
  const steps = (all) => all.map((run) => `${run.cursor}`).join();
  const changed = steps(news.runs) !== steps(runs);
  runs = news.runs;
  document.getElementById("broken").textContent = news.broken.map(({ id, reason }) => `${id}: ${reason}`).join("; ");
  live.textContent = `${runs.length} runs`;
  if (changed) draw();
}

by.onchange = draw;
share.onchange = draw;
repeat(4000, load);
repeat(5000, async () => tellMachine(await ask("/api/machine")));
