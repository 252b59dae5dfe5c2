// One image enlarged, with arrows to the next and the one before.

import { $, at, fileName } from "./dom.js";
import { columns, focusTile, tiles } from "./tiles.js";

const dialog = $("closer");
let rows = [];
let place = 0;

function show(next) {
  if (!rows.length) return;
  place = (next + rows.length) % rows.length;
  const row = rows[place];
  $("closer-image").src = at(`images/${row.id}?size=large`);
  $("closer-image").alt = row.label || row.path;
  $("closer-label").textContent = row.label || fileName(row.path);
  $("closer-path").textContent = row.path;
  $("closer-place").textContent = `${place + 1} of ${rows.length}` + (row.similarity === undefined ? "" : `, similarity ${row.similarity.toFixed(3)}`);
  $("closer-columns").replaceChildren(...columns(row).children);
}

export const current = () => rows[place];

export function lookCloser(row, all) {
  rows = all.some((one) => one.id === row.id) ? all : [row];
  show(rows.findIndex((one) => one.id === row.id));
  dialog.showModal();
  $("closer-image").focus();
}

$("closer-image").addEventListener("load", () => $("closer-image").classList.toggle("tiny", $("closer-image").naturalWidth <= 96));
$("closer-before").addEventListener("click", () => show(place - 1));
$("closer-next").addEventListener("click", () => show(place + 1));
$("closer-close").addEventListener("click", () => dialog.close());
dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
dialog.addEventListener("keydown", (event) => {
  if (event.key === "ArrowLeft") show(place - 1);
  else if (event.key === "ArrowRight") show(place + 1);
  else return;
  event.preventDefault();
});
// The keyboard goes on at the image that was seen last.
dialog.addEventListener("close", () => focusTile(tiles().find((item) => item.row.id === current()?.id)));
