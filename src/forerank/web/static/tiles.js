// Tiles of images, and moving among them with the keyboard.

import { $, at, breakable, button, fileName, make, valueOf } from "./dom.js";

const results = $("results");
const SHOWN_COLUMNS = 3;

export function tile(row, hit) {
  const item = make("article", "tile");
  item.setAttribute("role", "listitem");
  item.tabIndex = -1;
  item.dataset.id = row.id;
  item.row = row;
  const frame = make("div", "frame");
  const image = make("img");
  image.loading = "lazy";
  image.decoding = "async";
  image.alt = row.label ? `${row.label}, ${fileName(row.path)}` : fileName(row.path);
  image.addEventListener("load", () => image.classList.toggle("tiny", image.naturalWidth <= 96));
  image.addEventListener("error", () => {
    image.classList.add("broken");
    frame.append(make("span", "gone", "not shown"));
  });
  image.src = at(`images/${row.id}`);
  frame.append(image);
  item.append(frame);
  const name = make("p", "name");
  name.append(...breakable(row.label || fileName(row.path)));
  name.title = row.path;
  item.append(name, columns(row, SHOWN_COLUMNS));
  item.dataset.act = hit ? "look" : "search";
  if (hit) addHit(item, frame, hit);
  return item;
}

function addHit(item, frame, hit) {
  frame.append(make("span", "rank", hit.rank));
  const near = make("p", "near");
  near.append(make("span", "", hit.similarity.toFixed(3)));
  const meter = make("span", "meter");
  const fill = make("i");
  fill.style.width = `${Math.max(0, Math.min(1, hit.similarity)) * 100}%`;
  meter.append(fill);
  near.append(meter);
  const ways = make("div", "ways");
  ways.append(
    button("more", "+", "more", "More like this"),
    button("again", "Search", "search", "Search with this one"),
    button("less", "−", "less", "Less like this"),
  );
  for (const one of ways.children) one.tabIndex = -1;
  item.append(near, ways);
  item.classList.toggle("faint", !hit.trusted);
  if (!hit.trusted) item.title = "below the similarity from which on a match is trusted";
  if (hit.folded?.length) {
    const behind = button("folded", `+${hit.folded.length}`, "unfold", `Show ${hit.folded.length} more behind this one`);
    behind.tabIndex = -1;
    frame.append(behind);
  }
  judge(item, hit.correct);
}

export function columns(row, most = Infinity) {
  const list = make("dl", "columns");
  for (const [name, value] of Object.entries(row.columns || {}).slice(0, most)) {
    const pair = make("div");
    const told = make("dd");
    told.append(valueOf(value));
    told.title = value;
    pair.append(make("dt", "", name), told);
    list.append(pair);
  }
  return list;
}

// Show what is folded behind a tile right after it.
export function unfold(item) {
  const hit = item.row;
  item.querySelector(".folded")?.remove();
  const more = hit.folded.map((one) => tile(one, one));
  for (const one of more) one.classList.add("unfolded");
  item.after(...more);
  hit.folded = [];
  focusTile(more[0]);
}

export function judge(item, correct) {
  item.querySelector(".mark")?.remove();
  item.classList.toggle("good", correct === true);
  item.classList.toggle("bad", correct === false);
  if (correct === null || correct === undefined) return;
  const mark = make("span", "mark", correct ? "✓" : "✕");
  mark.setAttribute("role", "img");
  mark.setAttribute("aria-label", correct ? "same label" : "another label");
  item.querySelector(".frame").append(mark);
}

// -- keyboard: one tile is in the tab order; arrows move from it ------------------------------------------------

export const tiles = () => [...results.querySelectorAll(".tile")];

export function rove() {
  const all = tiles();
  if (all.length && !all.some((item) => item.tabIndex === 0)) all[0].tabIndex = 0;
}

export function focusTile(item) {
  if (!item) return;
  tiles().forEach((other) => (other.tabIndex = -1));
  item.tabIndex = 0;
  item.focus({ preventScroll: true });
  item.scrollIntoView({ block: "nearest" });
}

export function move(key) {
  const all = tiles();
  if (!all.length) return;
  const here = all.indexOf(document.activeElement);
  if (here < 0) return focusTile(all.find((item) => item.tabIndex === 0) || all[0]);
  const wide = getComputedStyle(results).gridTemplateColumns.split(" ").length;
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: wide, ArrowUp: -wide }[key];
  focusTile(all[Math.max(0, Math.min(all.length - 1, here + step))]);
}
