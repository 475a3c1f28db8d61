// A suite: its figures, and policies whose runs fold out.

import { Chart, ask, repeat, tellMachine } from "./chart.js";

for (const fold of document.querySelectorAll(".fold")) {
  fold.onclick = () => {
    const open = fold.getAttribute("aria-expanded") !== "true";
    fold.setAttribute("aria-expanded", String(open));
    const { group } = fold.closest("tr").dataset;
    for (const row of document.querySelectorAll("tr.seed")) {
      if (row.dataset.of === group) row.hidden = !open;
    }
  };
}

const place = document.getElementById("figures");
if (place) {
  const { table } = await ask(`/api/suites/${place.dataset.link}`);
  // Differences are above, as the answer.
  for (const figure of table.figures.filter(({ name }) => name !== "differences")) {
    const host = document.createElement("div");
    host.className = "chart";
    place.append(host);
    new Chart(host).set(figure);
  }
}
repeat(5000, async () => tellMachine(await ask("/api/machine")));
