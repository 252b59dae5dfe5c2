// Curating a collection. Every decision is sent at once and shown only when the server has written it down.

import { $, breakable, complain, make } from "./dom.js";

const VIEWS = ["labels", "copies", "issues", "classes", "finish"];
let collection = null;
let place = 0; // of the suspect that is shown
let queue = Promise.resolve(); // decisions go out one after the other, in the order of the keys
let sortBy = { key: "recall", down: false };

async function ask(address, body) {
  const options = body === undefined ? {} : { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  const response = await fetch(address, options).catch(() => {
    throw new Error("the server does not answer: the last decision was not kept. Start forerank audit --serve again");
  });
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.error || `the server answered ${response.status}`);
  return answer;
}

function button(className, text, action) {
  const element = make("button", className, text);
  element.type = "button";
  element.addEventListener("click", action);
  return element;
}

function shot(item, size = "small") {
  const framed = button("shot", undefined, () => {
    $("closer-image").src = `/images/${item.row}?size=large`;
    $("closer-image").alt = item.label;
    $("closer-path").textContent = `${item.label} · ${item.split} · ${item.path}`;
    $("closer").showModal();
  });
  const image = make("img");
  image.loading = "lazy";
  image.alt = `${item.label}, ${item.path}`;
  image.title = item.path;
  image.addEventListener("load", () => image.classList.toggle("tiny", image.naturalWidth <= 96));
  image.src = `/images/${item.row}?size=${size}`;
  framed.append(image);
  return framed;
}

// The folder and the name of a file: enough to know it, short enough to read.
const short = (path) => path.split("/").slice(-2).join("/");

// -- decisions -----------------------------------------------------------------------------------------------

function send(address, body, then) {
  queue = queue.then(async () => {
    try {
      const answer = await ask(address, body);
      complain(null);
      Object.assign(collection, { decisions: answer.decisions, changed: answer.changed, removed: answer.removed, moved: answer.moved });
      if (then) then(answer);
      refresh();
    } catch (error) {
      complain(error);
    }
  });
  return queue;
}

const decide = (row, action, label, then) => send("/api/decide", { row, action, label }, then);
const goOn = () => { place = Math.min(place + 1, collection.suspects.length - 1); };

function decideSuspect(action, label) {
  const suspect = collection.suspects[place];
  if (suspect) decide(suspect.row, action, label, goOn);
}

function undo() {
  send("/api/undo", {}, (answer) => {
    if (answer.undone === null) return;
    const at = collection.suspects.findIndex((suspect) => suspect.row === answer.undone.row);
    if (at >= 0) place = at;
  });
}

function said(item) {
  const decision = collection.decisions[item.row];
  if (!decision) return "";
  return { keep: `Kept as ${item.label}`, change: `Changed to ${decision.label}`, remove: "Removed" }[decision.action];
}

// -- views ---------------------------------------------------------------------------------------------------

function showSuspect() {
  const suspect = collection.suspects[place];
  $("suspect").hidden = !suspect;
  $("no-suspects").hidden = Boolean(suspect);
  const decided = collection.suspects.filter((one) => collection.decisions[one.row]).length;
  $("progress").max = Math.max(1, collection.suspects.length);
  $("progress").value = decided;
  const all = decided === collection.suspects.length;
  $("decided").textContent = `${decided} of ${collection.suspects.length} decided${decided && all ? ": W writes the table" : ""}`;
  if (!suspect) return;
  $("suspect-decision").textContent = said(suspect);
  if ($("suspect").dataset.row === String(suspect.row)) return;
  $("suspect").dataset.row = suspect.row;
  $("suspect-picture").replaceChildren(shot(suspect, "large"));
  $("suspect-path").replaceChildren(...breakable(short(suspect.path)));
  $("suspect-path").title = suspect.path;
  $("suspect-label").textContent = suspect.label;
  $("suspect-suggestion").textContent = suspect.suggestion;
  $("keep-label").textContent = suspect.label;
  $("change-label").textContent = suspect.suggestion;
  $("suspect-own").replaceChildren(...suspect.own.map((item) => shot(item)));
  $("suspect-other").replaceChildren(...suspect.other.map((item) => shot(item)));
  $("suspect-why").textContent = `${suspect.before_nearest.toLocaleString("en")} images of other classes stand before the nearest image of its own class; ${Math.round(100 * suspect.agreement)}% of its nearest are ${suspect.suggestion}.`;
  $("other-label").value = "";
}

// A picture with its words; `alike`: the group of near-identical pictures that it stands in.
function tile(item, words, alike = []) {
  const one = make("div", "tile");
  one.dataset.row = item.row;
  one.item = item;
  const said = make("p", "path");
  said.append(...breakable(words));
  said.title = item.path;
  one.append(shot(item), said);
  one.append(button("toggle", "Remove", () => {
    const gone = collection.decisions[item.row]?.action === "remove";
    decide(item.row, gone ? "keep" : "remove");
  }));
  if (alike.length > 2) one.append(button("only", "Keep only this one", () => alike.forEach((other) => decide(other.row, other === item ? "keep" : "remove"))));
  return one;
}

function group(title, words, tiles) {
  const card = make("article", "group card");
  const shots = make("div", "shots");
  shots.append(...tiles);
  card.append(title, make("p", "soft", words), shots);
  return card;
}

function build() {
  $("claim").textContent = collection.claim.charAt(0).toUpperCase() + collection.claim.slice(1) + ".";
  if (!collection.labelled) for (const view of ["labels", "classes"]) $(`tab-${view}`).hidden = true;
  $("basis").textContent = collection.basis;
  $("known-labels").replaceChildren(...collection.labels.map((label) => { const option = make("option"); option.value = label; return option; }));
  const counts = { labels: collection.suspects.length, copies: collection.copies.length, issues: collection.issues.length, classes: collection.classes.length };
  for (const [view, count] of Object.entries(counts)) $(`tab-${view}`).append(` (${count.toLocaleString("en")})`);
  $("copy-groups").replaceChildren(...collection.copies.map((one) => {
    const labels = new Set(one.rows.map((item) => item.label));
    const title = make("h3", "", `${one.rows.length} pictures, ${one.identical ? "the same bytes" : `pixel correlation ${one.rows.length > 2 ? "at least " : ""}${one.correlation.toFixed(2)}`} `);
    if (one.leaks) title.append(make("span", "leak", "leakage: in training and in the test"));
    const words = labels.size > 1 ? `Labelled ${[...labels].join(" and ")}: if they show the same thing, one of these labels is wrong.` : "";
    return group(title, words, one.rows.map((item) => tile(item, `${item.label} · ${item.split} · ${short(item.path)}`, one.rows)));
  }));
  if (!collection.copies.length) $("copy-groups").append(make("p", "card", "No near-identical pictures."));
  const kinds = Object.keys(collection.rules).filter((kind) => collection.issues.some((issue) => issue.kind === kind));
  $("issue-groups").replaceChildren(...kinds.map((kind) => {
    const items = collection.issues.filter((issue) => issue.kind === kind);
    const title = make("h3", "", `${items.length} ${kind}`);
    return group(title, `Rule: ${collection.rules[kind]}.`, items.map((item) => tile(item, `${item.reason} · ${short(item.path)}`)));
  }));
  if (!kinds.length) $("issue-groups").append(make("p", "card", "No unusual picture."));
  buildClasses();
}

function named(text, action) {
  const made = button("", undefined, action);
  made.append(...breakable(text));
  return made;
}

function buildClasses() {
  const { key, down } = sortBy;
  const value = (one) => (one[key] === null ? 2 : one[key]);
  const order = [...collection.classes].sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    return (typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y) * (down ? -1 : 1);
  });
  document.querySelector("#class-table tbody").replaceChildren(...order.map((one) => {
    const line = make("tr");
    const name = make("th");
    name.scope = "row";
    name.append(named(one.label, () => showClass(one.label, one.split)));
    const confusions = make("td");
    one.confusions.forEach((other) => {
      confusions.append(named(`${other.label} (${other.images})`, () => showClass(other.label, one.split)));
    });
    line.append(name, make("td", "", one.split), make("td", "", one.images), make("td", "", one.recall === null ? "–" : `${(100 * one.recall).toFixed(1)}%`), confusions);
    return line;
  }));
  for (const head of document.querySelectorAll("#class-table [data-sort]")) {
    head.parentElement.setAttribute("aria-sort", head.dataset.sort !== key ? "none" : down ? "descending" : "ascending");
  }
}

async function showClass(label, split) {
  try {
    const items = await ask(`/api/class?label=${encodeURIComponent(label)}&split=${encodeURIComponent(split)}`);
    $("class-name").textContent = `${label} · ${split} · ${items.length} images`;
    $("class-shots").replaceChildren(...items.map((item) => tile(item, short(item.path))));
    $("class-pictures").hidden = false;
    refresh();
    $("class-name").focus();
    $("class-pictures").scrollIntoView({ block: "start" });
  } catch (error) {
    complain(error);
  }
}

function refresh() {
  showSuspect();
  for (const one of document.querySelectorAll(".tile")) {
    const gone = collection.decisions[one.dataset.row]?.action === "remove";
    one.classList.toggle("gone", gone);
    const toggle = one.querySelector(".toggle");
    toggle.textContent = gone ? "Removed: keep it after all" : "Remove";
    toggle.setAttribute("aria-pressed", gone);
  }
  const number = Object.keys(collection.decisions).length;
  $("totals").textContent = `Images decided: ${number}. Labels changed: ${collection.changed}. Images removed: ${collection.removed}.`;
  $("restore").hidden = !collection.moved;
  $("move").hidden = true;
}

function show(view) {
  for (const one of VIEWS) {
    $(one).hidden = one !== view;
    $(`tab-${one}`).setAttribute("aria-selected", one === view);
    $(`tab-${one}`).tabIndex = one === view ? 0 : -1;
  }
  history.replaceState(null, "", `#${view}`);
}

const current = () => VIEWS.find((view) => !$(view).hidden);

const writeTable = () => send("/api/write", {}, (answer) => {
  $("written").textContent = `Written: ${answer.file}. Train with it: forerank train ${answer.file}`;
});

const files = (count) => `${count.toLocaleString("en")} ${count === 1 ? "file" : "files"}`;

function listMoves(answer) {
  $("move-list").replaceChildren(...answer.files.map((file) => make("li", "", `${file.path} → ${file.to}`)));
}

// -- events --------------------------------------------------------------------------------------------------

for (const view of VIEWS) $(`tab-${view}`).addEventListener("click", () => show(view));
$("keep").addEventListener("click", () => decideSuspect("keep"));
$("change").addEventListener("click", () => decideSuspect("change", collection.suspects[place].suggestion));
$("remove").addEventListener("click", () => decideSuspect("remove"));
$("undo").addEventListener("click", undo);
$("previous").addEventListener("click", () => { place = Math.max(0, place - 1); refresh(); });
$("next").addEventListener("click", () => { goOn(); refresh(); });
$("write").addEventListener("click", writeTable);
$("other-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const label = $("other-label").value;
  $("other-label").blur();
  decideSuspect("change", label);
});
$("dry-run").addEventListener("click", () => send("/api/move", { dry_run: true }, (answer) => {
  listMoves(answer);
  $("move-says").textContent = answer.files.length ? `To be moved to ${answer.folder}: ${files(answer.files.length)}. Nothing was moved yet.` : "No file would be moved.";
}).then(() => { $("move").hidden = !$("move-list").children.length; $("move").textContent = `Move ${files($("move-list").children.length)}`; }));
$("move").addEventListener("click", () => send("/api/move", { dry_run: false }, (answer) => {
  listMoves(answer);
  $("move-says").textContent = `Moved to ${answer.folder}: ${files(answer.files.length)}.`;
}));
$("restore").addEventListener("click", () => send("/api/restore", {}, (answer) => {
  listMoves({ files: [] });
  $("move-says").textContent = `${files(answer.restored)} put back.`;
}));
for (const head of document.querySelectorAll("#class-table [data-sort]")) {
  head.addEventListener("click", () => {
    sortBy = { key: head.dataset.sort, down: sortBy.key === head.dataset.sort && !sortBy.down };
    buildClasses();
  });
}
document.addEventListener("keydown", (event) => {
  if (!collection || event.ctrlKey || event.metaKey || event.altKey || $("closer").open) return;
  if (event.target.matches("input")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key >= "1" && event.key <= "5") {
    const view = VIEWS[event.key - 1];
    return $(`tab-${view}`).hidden ? undefined : show(view);
  }
  const inTabs = event.target.matches("[role=tab]");
  if (inTabs && (event.key === "ArrowRight" || event.key === "ArrowLeft")) {
    const step = event.key === "ArrowRight" ? 1 : VIEWS.length - 1;
    let view = current();
    do view = VIEWS[(VIEWS.indexOf(view) + step) % VIEWS.length]; while ($(`tab-${view}`).hidden);
    show(view);
    return $(`tab-${view}`).focus();
  }
  const key = event.key.toLowerCase();
  if (key === "w") {
    show("finish"); // where it is said what was written
    return writeTable();
  }
  if (key === "u") return undo();
  if (current() !== "labels") return;
  const press = { k: "keep", c: "change", r: "remove", arrowleft: "previous", arrowright: "next" }[key];
  if (press) { event.preventDefault(); $(press).click(); }
  if (key === "o") { event.preventDefault(); $("other-label").focus(); }
});

ask("/api/collection").then((answer) => {
  collection = answer;
  const open = collection.suspects.findIndex((one) => !collection.decisions[one.row]);
  place = Math.max(0, open);
  build();
  refresh();
  const wanted = location.hash.slice(1);
  show(VIEWS.includes(wanted) && !$(`tab-${wanted}`).hidden ? wanted : collection.labelled ? "labels" : "copies");
}).catch(complain);
