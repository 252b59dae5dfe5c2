// What the colours of the map mean: the most frequent labels among the points in view.

import { make } from "./dom.js";

const MOST = 12;

// `counts`: points in view of each label; `only(name)` limits the map to one label.
export function fill(place, names, counts, colours, only) {
  const seen = [...counts.keys()].filter((code) => counts[code] && names[code]).sort((a, b) => counts[b] - counts[a]);
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.label : null;
  place.replaceChildren(...seen.slice(0, MOST).map((code) => entry(names[code], counts[code], colours[code], only)));
  if (seen.length > MOST) place.append(make("span", "soft", `and ${(seen.length - MOST).toLocaleString("en")} more in view`));
  if (focused !== null) ([...place.children].find((one) => one.dataset.label === focused) || place.querySelector("button"))?.focus();
}

function entry(name, count, colour, only) {
  const made = make("button", "plain soft");
  made.type = "button";
  made.dataset.label = name;
  made.title = `Show only ${name}`;
  const dot = make("i");
  dot.style.background = `rgb(${colour & 255} ${(colour >> 8) & 255} ${(colour >> 16) & 255})`;
  made.append(dot, `${name} (${count.toLocaleString("en")})`);
  made.addEventListener("click", () => only(name));
  return made;
}
