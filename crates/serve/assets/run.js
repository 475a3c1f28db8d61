// One run: curves that grow while it trains, figures of its diagnosis, and its note.

import { AXES, Chart, ask, curves, repeat, tellMachine } from "./chart.js";
import { short } from "./scale.js";

const run = document.getElementById("run");
const address = `/api/runs/${run.dataset.link}`;
const by = document.getElementById("by");
const share = document.getElementById("smooth");
const live = document.getElementById("live");
const chart = (id) => new Chart(document.getElementById(id));
const charts = { loss: chart("loss"), gradient: chart("gradient"), speed: chart("speed"), accuracy: chart("accuracy") };
const tell = (id, text) => {
  const place = document.getElementById(id);
  if (place && text !== null) place.textContent = text;
};
const four = (value) => (value === null || value === undefined ? null : value.toFixed(4));
const TRAIN = ["step", "tokens", "seconds", "loss", "gradient_norm", "rate", "tokens_per_second"];
const HELD = ["step", "tokens", "seconds", "loss", "accuracy", "bits_per_byte"];
const columns = (names) => Object.fromEntries(names.map((name) => [name, []]));
let data = { train: columns(TRAIN), held_out: columns(HELD) };
// Everything that is measured of this run has the colour of its policy; what is held out is told by ink.
const colour = Number(run.dataset.colour);
let waiting = false;

function draw() {
  const { train, held_out: held } = data;
  const [key, amount] = [by.value, Number(share.value)];
  const x = AXES[key];
  const figure = (name, title, y, series) => ({ name, title, caption: "", x, y, marks: { kind: "lines", series } });
  const loss = curves([{ name: "training", x: train[key], y: train.loss, colour }], amount);
  if (held.step.length) loss.push({ name: "held-out", x: held[key], y: held.loss, ink: true, dots: held.step.length < 40 });
  charts.loss.set(figure("loss", "Loss", { label: "loss", unit: "nats" }, loss));
  const hasAccuracy = held.accuracy.some((value) => value !== null);
  document.getElementById("accuracy").hidden = !hasAccuracy;
  if (hasAccuracy) {
    const right = held.accuracy.map((value) => (value === null ? null : value * 100));
    charts.accuracy.set(figure("accuracy", "Held-out accuracy", { label: "right answers", unit: "%" }, [{ name: "held-out", x: held[key], y: right, ink: true, dots: right.length < 40 }]));
  }
  charts.gradient.set(figure("gradient", "Gradient norm", { label: "norm before clipping", scale: "log" }, curves([{ name: "gradient", x: train[key], y: train.gradient_norm, colour }], amount)));
  charts.speed.set(figure("speed", "Speed", { label: "tokens/s" }, curves([{ name: "speed", x: train[key], y: train.tokens_per_second, colour }], amount)));
}

/** Many events in a moment are one drawing. */
function drawSoon() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    draw();
  });
}

function append({ steps, evaluations }) {
  const { train, held_out: held } = data;
  for (const point of steps) {
    const [tokens, seconds] = [train.tokens.at(-1) ?? 0, train.seconds.at(-1) ?? 0];
    const took = point.tokens_per_second > 0 ? (point.tokens - tokens) / point.tokens_per_second : 0;
    for (const name of TRAIN) train[name].push(name === "seconds" ? seconds + took : point[name]);
  }
  for (const point of evaluations) {
    const place = { step: point.step, tokens: train.tokens.at(-1) ?? 0, seconds: train.seconds.at(-1) ?? 0 };
    for (const name of HELD) held[name].push(name in place ? place[name] : (point[name] ?? null));
  }
  const last = steps.at(-1);
  if (last) {
    tell("t-train", four(last.loss));
    tell("t-tokens", short(last.tokens));
    document.getElementById("t-step").firstChild.textContent = String(last.step);
    if (last.tokens_per_second !== null) tell("t-speed", short(Math.round(last.tokens_per_second)));
    live.textContent = `last point: step ${last.step}`;
    tellLeft(last);
  }
  if (evaluations.length) tell("t-held", four(evaluations.at(-1).loss));
  drawSoon();
}

/** How long the rest takes at the speed of the last steps. */
function tellLeft({ step, tokens }) {
  const speeds = data.train.tokens_per_second.slice(-50).filter((speed) => speed > 0).sort((a, b) => a - b);
  const steps = Number(run.dataset.steps);
  if (!document.getElementById("t-left") || !speeds.length || !step || !steps) return;
  const seconds = ((Math.max(0, steps - step) * tokens) / step) / speeds[speeds.length >> 1];
  const minutes = Math.ceil(seconds / 60);
  tell("t-left", seconds < 100 ? `${Math.round(seconds)} s` : minutes < 90 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`);
}

function listen(cursor) {
  let last = cursor;
  const source = new EventSource(`${address}/events?cursor=${encodeURIComponent(cursor)}`);
  source.addEventListener("points", (event) => {
    last = event.lastEventId;
    append(JSON.parse(event.data));
  });
  source.addEventListener("reset", (event) => {
    last = event.lastEventId;
    data = { train: columns(TRAIN), held_out: columns(HELD) };
    drawSoon();
  });
  source.addEventListener("status", (event) => {
    const { status } = JSON.parse(event.data);
    const pill = document.getElementById("status");
    [pill.textContent, pill.className] = [status, `pill ${status}`];
    if (status !== "running") tell("t-left", "–");
  });
  source.addEventListener("trouble", (event) => {
    live.textContent = JSON.parse(event.data).reason;
  });
  source.onopen = () => live.classList.remove("reason");
  source.onerror = () => {
    live.textContent = "the server does not answer; trying again";
    live.classList.add("reason");
    // A server that is too busy ends the stream for good, so it is asked again.
    if (source.readyState === EventSource.CLOSED) setTimeout(() => listen(last), 5000);
  };
}

async function figures() {
  const place = document.getElementById("figures");
  if (!place) return;
  for (const figure of await ask(`${address}/figures`)) {
    const host = document.createElement("div");
    host.className = "chart";
    host.id = `figure-${figure.name}`;
    place.append(host);
    new Chart(host).set(figure);
  }
}

/** A note and tags, with the token that is asked for once. */
function notes() {
  const [note, tags, token, saved] = ["note", "tags", "token", "saved"].map((id) => document.getElementById(id));
  if (!note) return;
  token.value = sessionStorage.getItem("token") ?? "";
  document.getElementById("save").onclick = async () => {
    sessionStorage.setItem("token", token.value);
    const headers = { authorization: `Bearer ${token.value}` };
    const put = async (what, text) => {
      const answer = await fetch(`${address}/${what}`, { method: "PUT", headers, body: JSON.stringify({ text }) });
      return answer.ok ? "" : (await answer.json()).error;
    };
    saved.textContent = (await put("note", note.value)) || (await put("tags", tags.value)) || "saved";
  };
}

const megabytes = (bytes) => `${(bytes / 1e6).toFixed(bytes < 1e8 ? 1 : 0)} MB`;
async function resources() {
  const { process, folder, machine } = await ask(`${address}/resources`);
  tellMachine(machine);
  tell("t-folder", megabytes(folder));
  if (process?.memory) tell("t-memory", megabytes(process.memory) + (process.cores === null ? "" : ` · ${process.cores.toFixed(1)} cores`));
}

by.onchange = draw;
share.onchange = draw;
data = await ask(`${address}/series`);
draw();
listen(data.cursor);
notes();
repeat(4000, resources);
await figures();
