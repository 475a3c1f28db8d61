// The list: filter, sort, fold, select, and lines that follow what runs do.
//
// A section (a suite, or a folder) is a `tbody`: a title, then lines of policies with their seeds folded in, and runs.

import { ask, repeat, tellMachine } from "./chart.js";

const table = document.getElementById("runs");
const filter = document.getElementById("filter");
const states = document.getElementById("states");
const count = document.getElementById("count");
const compare = document.getElementById("compare");
const all = document.getElementById("all");
/** What is selected: `run=..` or `group=..`. */
const picked = new Set();
const unfolded = new Set();
const MOST = 60;
let [status, order] = ["", { key: "", down: false }];

const sections = () => [...table.tBodies];
const runs = () => [...table.querySelectorAll("tr[data-id]")];
const seeds = (policy) => runs().filter((row) => row.dataset.of === policy.dataset.group);
const value = (row, key) => row.querySelector(`.c-${key}`).dataset.v;
const key = (row) => (row.dataset.id !== undefined ? `run=${encodeURIComponent(row.dataset.id)}` : `group=${encodeURIComponent(row.dataset.group)}`);

/** A section's lines: each run or policy with the lines that are folded into it. */
function units(body) {
  const made = [];
  for (const row of body.rows) {
    if (row.dataset.of !== undefined) made.at(-1).seeds.push(row);
    else if (row.dataset.title === undefined) made.push({ row, seeds: [] });
  }
  return made;
}

/** How many runs are selected: a policy counts as all its seeds, and no run counts twice. */
function selected() {
  const ids = new Set();
  for (const row of runs()) {
    const group = row.dataset.of === undefined ? null : `group=${encodeURIComponent(row.dataset.of)}`;
    if (picked.has(key(row)) || picked.has(group)) ids.add(row.dataset.id);
  }
  return ids.size;
}

function apply() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (row) => words.every((word) => ` ${row.dataset.words} `.includes(word.startsWith("#") ? ` ${word} ` : word));
  const counts = new Map();
  let [shown, total] = [0, 0];
  for (const body of sections()) {
    let any = false;
    for (const { row, seeds } of units(body)) {
      const members = seeds.length ? seeds : [row];
      for (const member of members) {
        total++;
        const fit = fits(member);
        if (fit) counts.set(member.dataset.status, (counts.get(member.dataset.status) ?? 0) + 1);
        member.hidden = !fit || (status !== "" && member.dataset.status !== status);
        shown += member.hidden ? 0 : 1;
      }
      row.hidden = members.every((member) => member.hidden);
      any ||= !row.hidden;
      const open = unfolded.has(row.dataset.group);
      row.querySelector(".fold")?.setAttribute("aria-expanded", String(open));
      for (const seed of seeds) seed.hidden ||= !open;
      for (const line of [row, ...seeds]) line.querySelector("input").checked = picked.has(key(line));
    }
    body.hidden = !any && total > 0 && (words.length > 0 || status !== "");
  }
  const many = selected();
  count.textContent = `${shown} of ${total} runs${many ? `, ${many} selected` : ""}`;
  compare.disabled = many === 0 || many > MOST;
  compare.textContent = many > MOST ? `Compare (at most ${MOST})` : many ? `Compare ${many}` : "Compare";
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

/** Without a click the newest section is first, in a suite the best policy, elsewhere the newest run. */
const orderIn = (body) => (order.key ? order : body.classList.contains("suite") ? { key: "held", down: false } : { key: "changed", down: true });

function comparing({ key, down }, take) {
  const isNumber = table.querySelector(`th.c-${key}`).classList.contains("number");
  return (first, second) => {
    const [a, b] = [take(first), take(second)];
    // What is unknown is last in either order.
    if ((a === "") !== (b === "")) return a === "" ? 1 : -1;
    const difference = isNumber ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true });
    return (down ? -1 : 1) * difference;
  };
}

function sort() {
  const heads = new Map();
  for (const body of sections()) {
    const by = orderIn(body);
    const compared = comparing(by, (row) => value(row, by.key));
    const steady = (a, b) => compared(a, b) || value(a, "name").localeCompare(value(b, "name"), "en", { numeric: true });
    const sorted = units(body).sort((a, b) => steady(a.row, b.row));
    for (const { row, seeds } of sorted) body.append(row, ...(order.key ? seeds.sort(steady) : seeds));
    const key = order.key || "changed";
    const newest = Math.max(0, ...sorted.map(({ row }) => Number(value(row, "changed"))));
    heads.set(body, order.key ? (sorted.length ? value(sorted[0].row, key) : "") : String(newest));
  }
  const by = order.key ? order : { key: "changed", down: true };
  table.append(...sections().sort(comparing(by, (body) => heads.get(body))));
  for (const button of table.tHead.querySelectorAll("button")) {
    button.dataset.order = button.dataset.key === by.key ? (by.down ? "down" : "up") : "";
  }
}

table.tHead.addEventListener("click", (event) => {
  const key = event.target.dataset?.key;
  if (!key) return;
  order = { key, down: order.key === key ? !order.down : key === "changed" };
  sort();
});
table.addEventListener("click", (event) => {
  const fold = event.target.closest(".fold");
  const tag = event.target.closest(".tag");
  if (fold) {
    const { group } = fold.closest("tr").dataset;
    if (!unfolded.delete(group)) unfolded.add(group);
    apply();
  } else if (tag) {
    filter.value = filter.value.trim() === `#${tag.dataset.tag}` ? "" : `#${tag.dataset.tag}`;
    apply();
  }
});
const pick = (row, on) => (on ? picked.add(key(row)) : picked.delete(key(row)));
table.addEventListener("change", (event) => {
  const row = event.target.closest("tr");
  if (event.target === all) {
    sections().filter((body) => !body.hidden).flatMap(units).filter(({ row }) => !row.hidden).forEach(({ row }) => pick(row, all.checked));
  } else if (row.dataset.title !== undefined) {
    units(row.parentElement).filter(({ row }) => !row.hidden).forEach(({ row }) => pick(row, event.target.checked));
  } else {
    pick(row, event.target.checked);
    // A policy that is not selected any more takes its seeds with it.
    if (row.dataset.group !== undefined && !event.target.checked) seeds(row).forEach((seed) => pick(seed, false));
  }
  apply();
});
compare.addEventListener("click", () => {
  location.href = `/compare?${[...picked].join("&")}`;
});
filter.addEventListener("input", apply);

const made = (html) => {
  const holder = document.createElement("template");
  holder.innerHTML = `<table><tbody>${html}</tbody></table>`;
  return holder.content.querySelector("tr");
};

/** Puts a changed line in the place of the old one; false if there was none. */
function replace(list, name, { id, html }) {
  const old = list.find((row) => row.dataset[name] === id);
  const row = made(html);
  if (!old || old.dataset.of !== row.dataset.of) return false;
  row.hidden = old.hidden;
  old.replaceWith(row);
  return true;
}

async function follow() {
  const news = await ask(`/api/rows?since=${table.dataset.revision}`);
  const rows = [...table.querySelectorAll("tbody tr")];
  const fits = [
    ...news.rows.map((one) => replace(rows, "id", one)),
    ...news.policies.map((one) => replace(rows, "group", one)),
    ...news.titles.map((one) => rows.every((row) => row.dataset.title === undefined) || replace(rows, "title", one)),
  ];
  if (fits.includes(false) || news.total !== runs().length) await again();
  else table.dataset.revision = news.revision;
  if (fits.length > 0) {
    sort();
    apply();
  }
}

/** Runs have come or gone: the whole table is read again. */
async function again() {
  const page = new DOMParser().parseFromString(await (await fetch("/")).text(), "text/html");
  const fresh = page.getElementById("runs");
  if (!fresh) return;
  table.dataset.revision = fresh.dataset.revision;
  for (const body of sections()) body.remove();
  table.append(...fresh.tBodies);
  document.querySelector(".empty")?.remove();
  sort();
  apply();
}

sort();
apply();
repeat(3000, follow);
repeat(5000, async () => tellMachine(await ask("/api/machine")));
