// Names of axes: as many lines as there is room for, shortened only where there is none, and then whole in a title.

import { svg } from "./marks.js";

/** Height of a line, in pixels. */
export const LINE = 14;

/** Words in lines of at most `room` pixels. What does not fit into `most` lines ends in an ellipsis. */
export function wrapped(canvas, text, room, most = 2) {
  const probe = svg("text", { class: "label" }, canvas);
  const fits = (line) => {
    probe.textContent = line;
    return probe.getComputedTextLength() <= room;
  };
  const lines = [""];
  for (const word of text.split(" ")) {
    const longer = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
    if (lines.at(-1) === "" || lines.length === most || fits(longer)) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  const cut = lines.map((line) => {
    if (fits(line)) return line;
    let kept = line;
    while (kept.length > 1 && !fits(`${kept}…`)) kept = kept.slice(0, -1).trimEnd();
    return `${kept}…`;
  });
  probe.remove();
  return cut;
}

/** Lines below each other around a place, turned by -90 degrees if `turned`; the whole name is the title. */
export function label(canvas, lines, whole, x, y, turned = false) {
  const group = svg("g", turned ? { transform: `rotate(-90 ${x} ${y})` } : {}, canvas);
  svg("title", {}, group, whole);
  lines.forEach((line, i) => svg("text", { x, y: y + i * LINE, "text-anchor": "middle", class: "label" }, group, line));
}
