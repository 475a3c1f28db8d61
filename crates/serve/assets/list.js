// The list: filter, sort, select, and rows that follow what runs do.

import { ask, repeat, tellMachine } from "./chart.js";

const table = document.getElementById("runs");
const body = table.tBodies[0];
const filter = document.getElementById("filter");
const states = document.getElementById("states");
const count = document.getElementById("count");
const compare = document.getElementById("compare");
const all = document.getElementById("all");
const picked = new Set();
const MOST = 60;
let [status, order] = ["", { key: "", down: false }];

const rows = () => [...body.rows];
const value = (row, key) => row.querySelector(`.c-${key}`).dataset.v;

function apply() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  const counts = new Map();
  let shown = 0;
  for (const row of rows()) {
    const fits = words.every((word) => row.dataset.words.includes(word));
    if (fits) counts.set(row.dataset.status, (counts.get(row.dataset.status) ?? 0) + 1);
    row.hidden = !fits || (status !== "" && row.dataset.status !== status);
    shown += row.hidden ? 0 : 1;
    row.querySelector("input").checked = picked.has(row.dataset.id);
  }
  count.textContent = `${shown} of ${rows().length} runs${picked.size ? `, ${picked.size} selected` : ""}`;
  compare.disabled = picked.size === 0 || picked.size > MOST;
  compare.textContent = picked.size > MOST ? `Compare (at most ${MOST})` : picked.size ? `Compare ${picked.size}` : "Compare";
  const kinds = ["running", "done", "stopped", "failed", "broken"].filter((kind) => counts.has(kind) || kind === status);
  states.replaceChildren(...(kinds.length > 1 || status ? kinds : []).map((kind) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = `${kind} ${counts.get(kind) ?? 0}`;
    button.setAttribute("aria-pressed", String(kind === status));
    button.onclick = () => {
      status = kind === status ? "" : kind;
      apply();
    };
    return button;
  }));
}

function sort() {
  if (!order.key) return;
  const isNumber = table.querySelector(`th.c-${order.key}`).classList.contains("number");
  const sign = order.down ? -1 : 1;
  const keyed = rows().map((row) => [value(row, order.key), row]);
  keyed.sort(([a, first], [b, second]) => {
    // What is unknown is last in either order.
    if ((a === "") !== (b === "")) return a === "" ? 1 : -1;
    const difference = isNumber ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true });
    return sign * difference || first.dataset.id.localeCompare(second.dataset.id, "en", { numeric: true });
  });
  body.append(...keyed.map(([, row]) => row));
  for (const button of table.tHead.querySelectorAll("button")) {
    button.dataset.order = button.dataset.key === order.key ? (order.down ? "down" : "up") : "";
  }
}

table.tHead.addEventListener("click", (event) => {
  const key = event.target.dataset?.key;
  if (!key) return;
  order = { key, down: order.key === key && !order.down };
  sort();
});
body.addEventListener("change", (event) => {
  const { id } = event.target.closest("tr").dataset;
  if (event.target.checked) picked.add(id);
  else picked.delete(id);
  apply();
});
all.addEventListener("change", () => {
  for (const row of rows().filter((row) => !row.hidden)) {
    if (all.checked) picked.add(row.dataset.id);
    else picked.delete(row.dataset.id);
  }
  apply();
});
compare.addEventListener("click", () => {
  location.href = `/compare?${[...picked].map((id) => `run=${encodeURIComponent(id)}`).join("&")}`;
});
filter.addEventListener("input", apply);

async function follow() {
  const news = await ask(`/api/rows?since=${table.dataset.revision}`);
  table.dataset.revision = news.revision;
  const known = new Map(rows().map((row) => [row.dataset.id, row]));
  for (const { id, html } of news.rows) {
    const holder = document.createElement("template");
    holder.innerHTML = html;
    const row = holder.content.firstElementChild;
    if (known.has(id)) known.get(id).replaceWith(row);
    else body.append(row);
  }
  if (news.total !== body.rows.length) location.reload();
  if (news.rows.length > 0) {
    sort();
    apply();
  }
}

apply();
repeat(3000, follow);
repeat(5000, async () => tellMachine(await ask("/api/machine")));
