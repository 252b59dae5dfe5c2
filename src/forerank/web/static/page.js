"use strict";
// The search page. State lives in the address where it can (?row=, ?show=), so back and reload work.

const $ = (id) => document.getElementById(id);
const results = $("results");
const state = {
  mode: "gallery", // or "results"
  query: null, // { row: id } or { file: Blob }
  answer: null,
  next: -1, // where the gallery goes on; null at its end
  show: "", // filter of the gallery
  wrapAt: null, // began somewhere in the middle: stop when back there
  turn: 0, // answers that arrive late belong to an older turn
  busy: false,
  labelled: false,
};

async function ask(address, options) {
  const response = await fetch(address, options);
  const answer = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (!response.ok) throw new Error(answer.error || `the server answered ${response.status}`);
  return answer;
}

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function complain(error) {
  $("error").textContent = error ? sentence(error.message || String(error)) : "";
  $("error").hidden = !error;
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
const fileName = (path) => path.split("/").pop();

// -- tiles ---------------------------------------------------------------------------------------------------

function tile(row, hit) {
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
  image.src = `/images/${row.id}`;
  frame.append(image);
  item.append(frame);
  const name = make("p", "name", row.label || fileName(row.path));
  name.title = row.path;
  item.append(name);
  if (hit) {
    frame.append(make("span", "rank", hit.rank));
    const near = make("p", "near");
    near.append(make("span", "", hit.similarity.toFixed(3)));
    const meter = make("span", "meter");
    const fill = make("i");
    fill.style.width = `${Math.max(0, Math.min(1, hit.similarity)) * 100}%`;
    meter.append(fill);
    near.append(meter);
    item.append(near);
    item.classList.toggle("faint", !hit.trusted);
    if (!hit.trusted) item.title = "below the similarity from which on a match is trusted";
    const again = make("button", "again", "Search with this one");
    again.type = "button";
    again.tabIndex = -1;
    again.addEventListener("click", (event) => {
      event.stopPropagation();
      searchRow(row.id);
    });
    item.append(again);
    frame.addEventListener("click", (event) => {
      event.stopPropagation();
      lookCloser(row);
    });
    judge(item, hit.correct);
  }
  item.addEventListener("click", () => (hit ? lookCloser(row) : searchRow(row.id)));
  return item;
}

function judge(item, correct) {
  item.querySelector(".mark")?.remove();
  item.classList.toggle("good", correct === true);
  item.classList.toggle("bad", correct === false);
  if (correct === null || correct === undefined) return;
  const mark = make("span", "mark", correct ? "✓" : "✕");
  mark.setAttribute("role", "img");
  mark.setAttribute("aria-label", correct ? "same label" : "another label");
  item.querySelector(".frame").append(mark);
}

// -- gallery -------------------------------------------------------------------------------------------------

// Blocks far from the window are emptied and keep their height: 100,000 images never stand in the page at once.
const blocks = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const block = entry.target.block;
    if (entry.isIntersecting && !block.shown) showBlock(block);
  }
}, { rootMargin: "1200px" });

function showBlock(block) {
  block.shown = true;
  block.gap.hidden = true;
  block.holder.replaceChildren(...block.rows.map((row) => tile(row)));
  rove();
}

function hideFarBlocks() {
  for (const block of state.blocks || []) {
    if (!block.shown || !block.holder.firstElementChild) continue;
    const first = block.holder.firstElementChild.getBoundingClientRect();
    const last = block.holder.lastElementChild.getBoundingClientRect();
    if (first.top > innerHeight + 4000 || last.bottom < -4000) {
      if (block.holder.contains(document.activeElement)) continue;
      block.gap.style.height = `${last.bottom - first.top}px`;
      block.gap.hidden = false;
      block.holder.replaceChildren();
      block.shown = false;
    }
  }
}

function addBlock(rows) {
  const holder = make("div", "block");
  const gap = make("div", "gap");
  gap.hidden = true;
  const block = { rows, holder, gap, shown: false };
  gap.block = block;
  results.append(holder, gap);
  blocks.observe(gap);
  state.blocks.push(block);
  showBlock(block);
}

async function moreGallery() {
  if (state.mode !== "gallery" || state.busy || state.next === null) return;
  state.busy = true;
  const turn = state.turn;
  results.setAttribute("aria-busy", "true");
  try {
    const wanted = new URLSearchParams({ after: state.next, limit: 60 });
    if (state.show) wanted.set("text", state.show);
    const answer = await ask(`/api/gallery?${wanted}`);
    if (turn !== state.turn) return;
    let rows = answer.rows;
    state.next = answer.next;
    if (state.wrapAt !== null && state.wrapped) rows = rows.filter((row) => row.id <= state.wrapAt);
    if (state.wrapped && rows.length < answer.rows.length) state.next = null;
    if (state.next === null && state.wrapAt !== null && !state.wrapped) {
      state.wrapped = true;
      state.next = -1;
    }
    if (rows.length) addBlock(rows);
    $("empty").hidden = state.blocks.length > 0 || state.next !== null;
    $("empty").textContent = state.show
      ? `Nothing here has “${state.show}” in its label or file name.`
      : "This index is empty. Fill it with: forerank index MODEL IMAGES -o INDEX";
  } catch (error) {
    if (turn === state.turn) {
      complain(error);
      state.next = null;
    }
  } finally {
    if (turn === state.turn) {
      state.busy = false;
      results.setAttribute("aria-busy", "false");
      if (nearEnd()) moreGallery();
    }
  }
}

const nearEnd = () => state.next !== null && $("sentinel").getBoundingClientRect().top < innerHeight + 900;

function restart(mode) {
  state.mode = mode;
  state.turn += 1;
  state.busy = false;
  state.blocks = [];
  blocks.disconnect();
  results.replaceChildren();
  $("empty").hidden = true;
}

function openGallery({ after = -1, wrapAt = null } = {}) {
  restart("gallery");
  state.query = state.answer = null;
  state.next = after;
  state.wrapAt = wrapAt;
  state.wrapped = false;
  $("query-picture").hidden = $("verdict").hidden = $("clear").hidden = $("known").hidden = true;
  $("result-bar").hidden = $("penalties").hidden = true;
  $("gallery-bar").hidden = $("invite").hidden = results.hidden = false;
  $("drop").classList.remove("asked");
  $("headline").textContent = "Find it again";
  moreGallery();
}

// -- search --------------------------------------------------------------------------------------------------

function address(change) {
  const wanted = new URLSearchParams();
  if (change.row !== undefined) wanted.set("row", change.row);
  if (change.show) wanted.set("show", change.show);
  return wanted.size ? `?${wanted}` : location.pathname;
}

function searchRow(id) {
  if ($("closer").open) $("closer").close();
  history.pushState({}, "", address({ row: id }));
  runRow(id);
}

async function runRow(id) {
  begin({ row: id }, `/images/${id}?size=large`);
  const turn = state.turn;
  try {
    const answer = await ask(`/api/rows/${encodeURIComponent(id)}/search?k=${$("count").value}`);
    if (turn === state.turn) show(answer);
  } catch (error) {
    if (turn === state.turn) fail(error);
  }
}

async function searchFile(file) {
  if (state.query?.file !== file) history.pushState({}, "", location.pathname);
  begin({ file }, URL.createObjectURL(file));
  const turn = state.turn;
  try {
    const answer = await ask(`/api/search?k=${$("count").value}`, {
      method: "POST",
      headers: { "content-type": "application/octet-stream" },
      body: file,
    });
    if (turn === state.turn) show(answer);
  } catch (error) {
    if (turn === state.turn) fail(error);
  }
}

function begin(query, source) {
  restart("results");
  complain(null);
  state.query = query;
  state.next = null;
  if (state.source) URL.revokeObjectURL(state.source);
  state.source = source.startsWith("blob:") ? source : null;
  $("query-image").src = source;
  $("query-picture").hidden = $("clear").hidden = false;
  $("drop").classList.add("asked");
  $("headline").textContent = "Searching…";
  $("invite").hidden = $("gallery-bar").hidden = $("verdict").hidden = $("result-bar").hidden = $("known").hidden = true;
  $("penalties").hidden = true;
  results.hidden = false;
  results.setAttribute("aria-busy", "true");
  scrollTo({ top: 0 });
}

function fail(error) {
  openGallery();
  history.replaceState({}, "", location.pathname);
  complain(error);
}

function show(answer) {
  state.answer = answer;
  results.setAttribute("aria-busy", "false");
  $("headline").textContent = answer.label || (state.query.row !== undefined ? "Most similar images" : "Your picture");
  const verdict = $("verdict");
  verdict.hidden = false;
  const best = answer.hits[0];
  if (!best) verdict.textContent = "The index has nothing to compare it with.";
  else if (!answer.found) {
    const near = `the nearest has similarity ${best.similarity.toFixed(3)}, trusted from ${answer.threshold.toFixed(3)} on`;
    const row = state.query.row !== undefined;
    verdict.textContent = row ? `No other image is near enough: ${near}.` : `No match: ${near}. It is probably not in the catalogue.`;
  } else {
    const trusted = answer.threshold === null ? "" : `, trusted from ${answer.threshold.toFixed(3)} on`;
    verdict.textContent = `Nearest: ${best.label || fileName(best.path)} (${best.similarity.toFixed(3)}${trusted}) in ${answer.milliseconds.toFixed(0)} ms`;
  }
  verdict.className = `verdict ${!best ? "" : answer.found ? (answer.threshold === null ? "" : "found") : "none"}`;
  results.replaceChildren(...answer.hits.map((hit) => tile(hit, hit)));
  $("empty").hidden = answer.hits.length > 0;
  $("empty").textContent = "Nothing to show.";
  $("result-bar").hidden = false;
  $("legend").hidden = !answer.label;
  const row = state.query.row !== undefined;
  $("known").hidden = row || !state.labelled;
  $("known-label").value = "";
  $("tab-penalties").hidden = !(row && answer.label);
  view("grid");
  rove();
}

function view(which) {
  const penalties = which === "penalties";
  $("tab-grid").setAttribute("aria-selected", String(!penalties));
  $("tab-penalties").setAttribute("aria-selected", String(penalties));
  results.hidden = penalties;
  $("penalties").hidden = !penalties;
  $("count-pick").hidden = penalties;
  $("loss-pick").hidden = !penalties;
  if (penalties) drawPenalties();
}

async function drawPenalties() {
  const turn = state.turn;
  $("figure").replaceChildren();
  try {
    const answer = await ask(`/api/rows/${state.query.row}/penalties?loss=${encodeURIComponent($("loss").value)}&shown=14`);
    if (turn !== state.turn) return;
    $("figure").innerHTML = answer.figure; // made by the server, every name escaped
  } catch (error) {
    if (turn === state.turn) complain(error);
  }
}

function lookCloser(row) {
  $("closer").row = row;
  $("closer-image").src = `/images/${row.id}?size=large`;
  $("closer-image").alt = row.label || row.path;
  $("closer-label").textContent = row.label || fileName(row.path);
  $("closer-path").textContent = row.path;
  $("closer").showModal();
}

// -- keyboard ------------------------------------------------------------------------------------------------

const tiles = () => [...results.querySelectorAll(".tile")];

// One tile is in the tab order; arrows move from it.
function rove() {
  const all = tiles();
  if (all.length && !all.some((item) => item.tabIndex === 0)) all[0].tabIndex = 0;
}

function focusTile(item) {
  if (!item) return;
  tiles().forEach((other) => (other.tabIndex = -1));
  item.tabIndex = 0;
  item.focus({ preventScroll: true });
  item.scrollIntoView({ block: "nearest" });
}

function move(key) {
  const all = tiles();
  if (!all.length) return;
  const here = all.indexOf(document.activeElement);
  if (here < 0) return focusTile(all.find((item) => item.tabIndex === 0) || all[0]);
  const columns = getComputedStyle(results).gridTemplateColumns.split(" ").length;
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[key];
  focusTile(all[Math.max(0, Math.min(all.length - 1, here + step))]);
}

addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.ctrlKey || event.metaKey || event.altKey || $("closer").open) return;
  if (event.key === "Escape" && state.mode === "results") {
    event.preventDefault();
    home();
  } else if (typing) return;
  else if (event.key.startsWith("Arrow")) {
    event.preventDefault();
    move(event.key);
  } else if (event.target.classList.contains("tile") && event.key === "Enter") searchRow(event.target.row.id);
  else if (event.target.classList.contains("tile") && event.key === " ") {
    event.preventDefault();
    lookCloser(event.target.row);
  } else if (event.key === "/") {
    event.preventDefault();
    if (state.mode === "results") home();
    $("filter").focus();
  } else if (event.key === "u" || event.key === "U") $("file").click();
});

// -- ways to ask ---------------------------------------------------------------------------------------------

$("query-image").addEventListener("load", () => $("query-image").classList.toggle("tiny", $("query-image").naturalWidth <= 96));
$("choose").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", () => {
  if ($("file").files[0]) searchFile($("file").files[0]);
  $("file").value = "";
});
addEventListener("paste", (event) => {
  const file = [...(event.clipboardData?.files || [])][0];
  if (file) searchFile(file);
});
let hovering = 0;
const carriesFile = (event) => [...(event.dataTransfer?.types || [])].includes("Files");
addEventListener("dragenter", (event) => {
  if (carriesFile(event)) $("veil").hidden = ++hovering === 0;
});
addEventListener("dragleave", (event) => {
  if (carriesFile(event)) $("veil").hidden = --hovering <= 0;
});
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  hovering = 0;
  $("veil").hidden = true;
  if (event.dataTransfer.files[0]) searchFile(event.dataTransfer.files[0]);
});

function home() {
  history.pushState({}, "", address({ show: state.show }));
  complain(null);
  openGallery();
}
$("clear").addEventListener("click", home);
$("home").addEventListener("click", (event) => {
  event.preventDefault();
  state.show = $("filter").value = "";
  home();
});
$("shuffle").addEventListener("click", async () => {
  complain(null);
  // Ids of a local index are dense, those of others are spread over 53 bits: ask where the middle is.
  const most = state.dense ? state.images : 2 ** 53 - 1;
  const after = Math.floor(Math.random() * most) - 1;
  openGallery({ after, wrapAt: after });
});
$("count").addEventListener("change", () => {
  if (state.query?.file) searchFile(state.query.file);
  else if (state.query) runRow(state.query.row);
});
$("loss").addEventListener("change", drawPenalties);
$("tab-grid").addEventListener("click", () => view("grid"));
$("tab-penalties").addEventListener("click", () => view("penalties"));
$("closer-search").addEventListener("click", () => searchRow($("closer").row.id));
$("closer-close").addEventListener("click", () => $("closer").close());
$("closer").addEventListener("click", (event) => event.target === $("closer") && $("closer").close());
$("known-label").addEventListener("input", () => {
  const label = $("known-label").value.trim();
  for (const item of tiles()) judge(item, label && item.row.label ? item.row.label === label : null);
  $("legend").hidden = !label;
});

let waiting = 0;
$("filter").addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    state.show = $("filter").value.trim();
    history.replaceState({}, "", address({ show: state.show }));
    openGallery();
    suggest(state.show);
  }, 200);
});
async function suggest(text) {
  const found = await ask(`/api/labels?limit=30&text=${encodeURIComponent(text)}`).catch(() => []);
  $("labels").replaceChildren(...found.map((label) => Object.assign(make("option"), { value: label })));
}
$("known-label").addEventListener("focus", () => suggest(""));

new IntersectionObserver(() => nearEnd() && moreGallery(), { rootMargin: "900px" }).observe($("sentinel"));
let tidying = 0;
addEventListener("scroll", () => {
  clearTimeout(tidying);
  tidying = setTimeout(hideFarBlocks, 250);
}, { passive: true });

// -- begin ---------------------------------------------------------------------------------------------------

function fromAddress() {
  const wanted = new URLSearchParams(location.search);
  state.show = $("filter").value = wanted.get("show") || "";
  const row = wanted.get("row");
  if (row !== null && /^\d{1,16}$/.test(row)) runRow(Number(row));
  else openGallery();
}
addEventListener("popstate", () => {
  complain(null);
  fromAddress();
});

ask("/api/index").then((index) => {
  state.images = index.images;
  state.labelled = index.labelled;
  state.dense = index.dense;
  const promise = index.precision ? ` · calibrated: ${index.precision}` : "";
  $("about").textContent = `${index.images.toLocaleString("en")} images · ${index.model}${promise}`;
  suggest("");
}, complain);
fromAddress();
