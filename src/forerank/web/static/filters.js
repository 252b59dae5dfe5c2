// Filters by label, by any column of the CSV and by a text; they hold for the gallery and for searches.

import { $, ask, button, make } from "./dom.js";

let changed = () => {};
let query = null;

// `when(changes)` is called with new values of `where` or `text`.
export function begin(index, when) {
  changed = when;
  const names = [...(index.labelled ? ["label"] : []), ...index.columns];
  $("add-filter").hidden = !names.length;
  $("add-filter").replaceChildren(new Option("Filter by…", ""), ...names.map((name) => new Option(name, name)));
}

export function show(now) {
  query = now;
  if (document.activeElement !== $("filter")) $("filter").value = now.text;
  $("chips").replaceChildren(...now.where.map((condition, i) => {
    const [name, ...value] = condition.split("=");
    const chip = make("span", "chip", `${name}: ${value.join("=")}`);
    const off = button("off", "×", "", `Remove the filter ${name}`);
    off.addEventListener("click", () => {
      $("add-filter").focus();
      changed({ where: query.where.filter((_, j) => j !== i) });
    });
    chip.append(off);
    return chip;
  }));
}

export async function suggest(list, column, text) {
  const values = await ask(`api/values?limit=50&column=${encodeURIComponent(column)}&text=${encodeURIComponent(text)}`).catch(() => []);
  $(list).replaceChildren(...values.map((value) => new Option(value, value)));
}

let waiting = 0;
const later = (act) => {
  clearTimeout(waiting);
  waiting = setTimeout(act, 200);
};

$("filter").addEventListener("input", () => later(() => changed({ text: $("filter").value.trim() }, true)));
$("add-filter").addEventListener("change", () => {
  const column = $("add-filter").value;
  if (!column) return;
  $("value").placeholder = column;
  $("value").setAttribute("aria-label", `Value of ${column}`);
  $("value").value = "";
  $("value").hidden = false;
  $("value").focus();
  suggest("values", column, "");
});

function take() {
  const [column, value] = [$("add-filter").value, $("value").value];
  $("value").hidden = true;
  $("add-filter").value = "";
  if (!column || !value) return;
  $("add-filter").focus();
  const others = query.where.filter((condition) => !condition.startsWith(`${column}=`));
  changed({ where: [...others, `${column}=${value}`] });
}
$("value").addEventListener("keydown", (event) => {
  if (event.key === "Enter") take();
  else if (event.key === "Escape") {
    event.stopPropagation();
    $("value").value = "";
    take();
    $("add-filter").focus();
  }
});
$("value").addEventListener("change", take);
$("value").addEventListener("input", () => later(() => $("add-filter").value && suggest("values", $("add-filter").value, $("value").value)));
