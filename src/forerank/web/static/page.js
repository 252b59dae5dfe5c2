// The search page: what the address asks for is what is shown.

import { COUNTS, empty, exampleBox, exampleName, forGallery, forSearch, isUpload, pictureOf, read, write } from "./address.js";
import { boxText, drawable } from "./box.js";
import { current, lookCloser } from "./closer.js";
import { $, ask, at, button, complain, fileName, make } from "./dom.js";
import * as filters from "./filters.js";
import * as gallery from "./gallery.js";
import { focusTile, judge, move, rove, tile, tiles, unfold } from "./tiles.js";

const results = $("results");
const state = {
  query: empty(),
  answer: null,
  turn: 0, // answers that arrive late belong to an older turn
  index: null, // what /api/index says
  blobs: new Map(), // upload -> address of the picture in this browser
  map: null, // the module of the map, loaded when it is first looked at
};

// -- where we are ----------------------------------------------------------------------------------------------

// Change the query, the address and what is shown. `replace` leaves no step for the back button.
function go(changes, replace = false) {
  state.query = { ...state.query, ...changes };
  if (!state.query.like.length) Object.assign(state.query, { unlike: [], view: state.query.view === "explain" ? "" : state.query.view });
  if (replace) history.replaceState(history.state, "", write(state.query));
  else {
    // The keyboard comes back to where it left.
    history.replaceState({ focus: document.activeElement?.dataset?.id }, "");
    history.pushState({}, "", write(state.query));
  }
  return render();
}

async function render(focus) {
  const turn = ++state.turn;
  const { query } = state;
  const asked = query.like.length > 0;
  const inResults = results.contains(document.activeElement);
  complain(null);
  gallery.close();
  filters.show(query);
  showExamples();
  $("one-per-class").checked = query.one_per_class;
  $("fold").checked = query.fold;
  $("count").value = String(query.k);
  $("invite").hidden = $("clear").hidden = asked;
  $("clear").hidden = $("add").hidden = !asked;
  $("choose").classList.toggle("primary", !asked);
  $("shuffle").hidden = asked || query.view === "map";
  $("verdict").hidden = $("known").hidden = $("legend").hidden = true;
  $("result-bar").hidden = !asked;
  $("drop").classList.toggle("asked", asked);
  $("headline").textContent = asked ? "Searching…" : "Find it again";
  state.answer = null;
  try {
    if (asked) {
      scrollTo({ top: 0 });
      showView();
      const answer = await ask(`api/search?${forSearch(query)}`);
      if (turn !== state.turn) return;
      showAnswer(answer);
    } else if (query.view === "map") showView();
    else {
      showView();
      await gallery.open((after) => ask(`api/gallery?after=${after}&limit=60&${forGallery(query)}`), { nothing: nothingHere() });
    }
  } catch (error) {
    if (turn !== state.turn) return;
    $("headline").textContent = "Find it again";
    $("result-bar").hidden = true; // what stands below is the gallery
    complain(error);
    if (asked) gallery.open((after) => ask(`api/gallery?after=${after}&limit=60`)); // nothing is lost: go on from here
  }
  if (turn !== state.turn) return;
  const wanted = focus && tiles().find((item) => item.dataset.id === focus);
  // Whoever went elsewhere meanwhile, for example to type a filter, stays there.
  const free = document.activeElement === document.body || results.contains(document.activeElement);
  if (free && (wanted || inResults)) focusTile(wanted || tiles()[0]);
}

const nothingHere = () =>
  state.query.text || state.query.where.length
    ? `Nothing here fits ${[state.query.text && `“${state.query.text}”`, ...state.query.where].filter(Boolean).join(", ")}.`
    : "This index is empty. Fill it with: forerank index MODEL IMAGES -o INDEX";

addEventListener("popstate", (event) => {
  if ($("closer").open) $("closer").close();
  state.query = read(location.search);
  render(event.state?.focus);
});

// -- the query -------------------------------------------------------------------------------------------------

function showExamples() {
  const { like, unlike } = state.query;
  $("examples").hidden = $("box-hint").hidden = !like.length;
  const made = [...like.map((text) => [text, "like"]), ...unlike.map((text) => [text, "unlike"])];
  $("examples").replaceChildren(...made.map(([text, kind]) => example(text, kind, made.length)));
}

function example(text, kind, count) {
  const holder = make("div", `query-picture ${kind}`);
  holder.tabIndex = 0;
  holder.setAttribute("role", "group");
  const role = kind === "like" ? "The search is like this picture" : "The search is unlike this picture";
  holder.setAttribute("aria-label", `${role}. Arrow keys place a box, Shift and arrows size it, Enter searches by it.`);
  const image = make("img");
  image.alt = kind === "like" ? "Your query" : "Not like this";
  image.draggable = false;
  image.addEventListener("load", () => image.classList.toggle("tiny", image.naturalWidth <= 96));
  image.addEventListener("error", () => {
    image.classList.add("broken");
    holder.append(make("span", "gone", "not shown"));
  });
  image.src = state.blobs.get(exampleName(text)) || at(pictureOf(text));
  holder.append(image);
  if (count > 1 || kind === "unlike") {
    holder.append(make("span", "sign", kind === "like" ? "+" : "−"));
    const off = button("off", "×", "", "Take this picture out of the query");
    off.addEventListener("click", () => {
      go({ [kind]: state.query[kind].filter((other) => other !== text) });
      $("headline").scrollIntoView({ block: "nearest" });
      ($("examples").querySelector(".off") || $("choose")).focus();
    });
    holder.append(off);
  }
  drawable(holder, image, exampleBox(text), (box) => {
    const now = exampleName(text) + (box ? `@${boxText(box)}` : "");
    go({ [kind]: state.query[kind].map((other) => (other === text ? now : other)), view: "" });
    const places = [...state.query.like, ...state.query.unlike];
    $("examples").children[places.indexOf(now)]?.focus();
  });
  return holder;
}

async function upload(files, adding) {
  const pictures = [...files].slice(0, 32);
  if (!pictures.length) return;
  complain(null);
  $("headline").textContent = "Sending…";
  try {
    const names = await Promise.all(pictures.map(async (file) => {
      const headers = { "content-type": "application/octet-stream" };
      const kept = await ask("api/uploads", { method: "POST", headers, body: file });
      state.blobs.set(kept.id, URL.createObjectURL(file));
      return kept.id;
    }));
    await go({ like: [...(adding ? state.query.like : []), ...names], ...(adding ? {} : { unlike: [] }), view: "" });
  } catch (error) {
    await render();
    complain(error);
  }
}

const without = (texts, id) => texts.filter((text) => exampleName(text) !== String(id));
const searchRow = (id) => go({ like: [String(id)], unlike: [], view: "" });
const moreLike = (id) => go({ like: [...without(state.query.like, id), String(id)], unlike: without(state.query.unlike, id) });
const lessLike = (id) => {
  if (!state.query.like.length) return complain("choose what the search should be like first");
  return go({ like: without(state.query.like, id), unlike: [...without(state.query.unlike, id), String(id)] });
};

// -- the answer ------------------------------------------------------------------------------------------------

function showAnswer(answer) {
  state.answer = answer;
  const best = answer.hits[0];
  const said = answer.answer;
  const combined = state.query.like.length + state.query.unlike.length > 1;
  if (!best) $("headline").textContent = "Nothing found";
  else if (!answer.found) $("headline").textContent = "No match";
  else if (said) $("headline").textContent = `${said.label}: ${said.votes} of the ${said.voters} nearest, similarity ${said.similarity.toFixed(2)}`;
  else $("headline").textContent = `Nearest: ${fileName(best.path)}, similarity ${best.similarity.toFixed(2)}`;
  const words = [];
  if (!best) words.push(state.index?.images ? "No image fits the filters." : "The index has nothing to compare it with.");
  else if (!answer.found) {
    words.push(`The nearest image has similarity ${best.similarity.toFixed(3)}; a match is trusted from ${answer.threshold.toFixed(3)} on.`);
    if (said) words.push(`The best guess is ${said.label}: ${said.votes} of the ${said.voters} nearest.`);
  } else if (answer.threshold !== null) words.push(`Similar enough to be trusted (from ${answer.threshold.toFixed(3)} on).`);
  if (answer.label) words.unshift(`The query is ${answer.label}.`);
  if (best && combined) words.push(`Several pictures make one query: their mean${state.query.unlike.length ? ", minus half of the mean of those it should not be like" : ""}.`);
  $("verdict").textContent = words.join(" ");
  $("verdict").hidden = !words.length;
  $("verdict").className = `verdict ${!best || answer.threshold === null ? "" : answer.found ? "found" : "none"}`;
  results.replaceChildren(...answer.hits.map((hit) => tile(hit, hit)));
  results.setAttribute("aria-busy", "false");
  $("empty").hidden = true;
  $("legend").hidden = !answer.label;
  $("known").hidden = answer.label !== null || !state.index?.labelled;
  $("known-label").value = "";
  showView();
  rove();
}

const explainable = () => state.query.like.length === 1 && !state.query.unlike.length && Boolean(state.answer?.label);

function showView() {
  const asked = state.query.like.length > 0;
  $("tab-explain").hidden = !explainable() && state.query.view !== "explain";
  $("tab-map").hidden = !state.index?.map;
  let { view } = state.query;
  if (view === "explain" && state.answer && !explainable()) view = "";
  if (view === "map" && state.index && !state.index.map) view = "";
  for (const [tab, name] of [["tab-grid", ""], ["tab-explain", "explain"], ["tab-map", "map"]]) $(tab).setAttribute("aria-selected", String(view === name));
  results.hidden = view === "explain" || (view === "map" && asked);
  $("explain").hidden = view !== "explain";
  $("map").hidden = view !== "map";
  $("choices").hidden = view !== "";
  $("legend").hidden = view !== "" || !state.answer?.label;
  $("loss-pick").hidden = view !== "explain";
  if (view === "explain" && state.answer) explain();
  if (view === "map" && state.index) showMap();
}

function setView(view) {
  state.query.view = view;
  history.pushState({}, "", write(state.query));
  showView();
}

async function explain() {
  const turn = state.turn;
  $("figure").replaceChildren();
  try {
    const row = exampleName(state.query.like[0]);
    const answer = await ask(`api/rows/${row}/penalties?loss=${encodeURIComponent($("loss").value)}&shown=14`);
    if (turn === state.turn) $("figure").innerHTML = answer.figure; // made by the server, every name escaped
  } catch (error) {
    if (turn === state.turn) complain(error);
  }
}

async function showMap() {
  state.map ??= await import("./map.js");
  state.map.show({ hits: state.answer?.hits || [], conditions: forGallery(state.query), list: listRows, search: searchRow, only: onlyLabel });
}

// A click on a label of the map limits everything to it, a second click lifts that again.
function onlyLabel(name) {
  const wanted = `label=${name}`;
  const others = state.query.where.filter((condition) => !condition.startsWith("label="));
  go({ where: state.query.where.includes(wanted) ? others : [...others, wanted] });
}

// What was chosen on the map stands below it like the gallery.
function listRows(ids) {
  results.hidden = false;
  return gallery.open(async (after) => {
    const start = after < 0 ? 0 : after;
    const part = ids.slice(start, start + 60);
    const rows = part.length ? await ask(`api/rows?${part.map((id) => `id=${id}`).join("&")}`) : [];
    return { rows, next: start + 60 < ids.length ? start + 60 : null };
  });
}

// -- hands and keys --------------------------------------------------------------------------------------------

const ACTS = {
  look: (item) => lookCloser(item.row, state.answer ? tiles().map((one) => one.row) : gallery.loaded()),
  search: (item) => searchRow(item.row.id),
  more: (item) => moreLike(item.row.id),
  less: (item) => lessLike(item.row.id),
  unfold,
};
results.addEventListener("click", (event) => {
  if (event.target.closest("a")) return;
  const item = event.target.closest(".tile");
  if (item) ACTS[event.target.closest("[data-act]").dataset.act](item);
});

addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.ctrlKey || event.metaKey || event.altKey || $("closer").open) return;
  const act = event.target.classList.contains("tile") && { Enter: "search", " ": "look", "+": "more", "-": "less", "−": "less" }[event.key];
  if (event.key === "Escape" && (state.query.like.length || state.query.view)) {
    event.preventDefault();
    home();
  } else if (typing || event.target.closest("#map canvas")) return;
  else if (event.key.startsWith("Arrow")) {
    if (event.target.getAttribute("role") === "tab") return turnTab(event);
    event.preventDefault();
    move(event.key);
  } else if (act) {
    event.preventDefault();
    ACTS[act](event.target);
  } else if (event.key === "/") {
    event.preventDefault();
    $("filter").focus();
  } else if (event.key === "u" || event.key === "U") $("file").click();
});

function turnTab(event) {
  const shown = [...document.querySelectorAll("[role=tab]:not([hidden])")];
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key] || 0;
  const next = shown[(shown.indexOf(event.target) + step + shown.length) % shown.length];
  next.focus();
  next.click();
}

let adding = false;
const choose = (add, input = "file") => {
  adding = add;
  $(input).click();
};
$("choose").addEventListener("click", () => choose(false));
$("add").addEventListener("click", () => choose(true));
$("photograph").addEventListener("click", () => choose(false, "camera"));
for (const input of [$("file"), $("camera")]) {
  input.addEventListener("change", () => {
    upload([...input.files], adding);
    adding = false;
    input.value = "";
  });
}
addEventListener("paste", (event) => upload(event.clipboardData?.files || []));
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
  upload(event.dataTransfer.files);
});

const home = () => go({ like: [], unlike: [], view: "" });
$("clear").addEventListener("click", home);
$("home").addEventListener("click", (event) => {
  event.preventDefault();
  go(empty());
});
$("to-map").addEventListener("click", (event) => {
  event.preventDefault();
  go({ like: [], unlike: [], view: "map" });
});
$("shuffle").addEventListener("click", () => {
  complain(null);
  // Ids of a local index are dense, those of others are spread over 53 bits: begin anywhere among them.
  const most = state.index?.dense ? state.index.images : 2 ** 53 - 1;
  const after = Math.floor(Math.random() * most) - 1;
  gallery.open((from) => ask(`api/gallery?after=${from}&limit=60&${forGallery(state.query)}`), { after, wrapAt: after, nothing: nothingHere() });
});
$("count").addEventListener("change", () => COUNTS.includes(Number($("count").value)) && go({ k: Number($("count").value) }, true));
$("one-per-class").addEventListener("change", () => go({ one_per_class: $("one-per-class").checked }));
$("fold").addEventListener("change", () => go({ fold: $("fold").checked }));
$("loss").addEventListener("change", explain);
$("tab-grid").addEventListener("click", () => setView(""));
$("tab-explain").addEventListener("click", () => setView("explain"));
$("tab-map").addEventListener("click", () => setView("map"));
for (const [name, act] of [["search", searchRow], ["more", moreLike], ["less", lessLike]]) {
  $(`closer-${name}`).addEventListener("click", () => {
    $("closer").close();
    act(current().id);
  });
}
$("known-label").addEventListener("input", () => {
  const label = $("known-label").value.trim();
  for (const item of tiles()) judge(item, label && item.row.label ? item.row.label === label : null);
  $("legend").hidden = !label;
});
$("known-label").addEventListener("focus", () => filters.suggest("labels", "label", ""));

// -- begin -----------------------------------------------------------------------------------------------------

state.query = read(location.search);
ask("api/index").then((index) => {
  state.index = index;
  $("about").textContent = `${index.images.toLocaleString("en")} images · ${index.model}`;
  $("to-map").hidden = !index.map;
  if (index.calibrated) import("./threshold.js").then((module) => module.begin(() => state.answer));
  filters.begin(index, (changes, typing) => go(changes, typing));
  filters.show(state.query);
  showView();
}, complain);
render();
