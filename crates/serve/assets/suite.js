// Figures of a suite.

import { Chart, ask, repeat, tellMachine } from "./chart.js";

const place = document.getElementById("figures");
if (place) {
  const { table } = await ask(`/api/suites/${place.dataset.link}`);
  for (const figure of table.figures) {
    const host = document.createElement("div");
    host.className = "chart";
    place.append(host);
    new Chart(host).set(figure);
  }
}
repeat(5000, async () => tellMachine(await ask("/api/machine")));
