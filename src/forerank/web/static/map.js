// The collection as a map. Points are written straight into the pixels of a canvas: 100,000 of them in a few
// milliseconds, in every browser, without a graphics library.

import { $, ask, at, complain, make } from "./dom.js";
import { fill } from "./map_legend.js";

const NEAR = 5; // hits that decide where the query stands
const view = { zoom: 1, x: 0.5, y: 0.5 }; // the place in the middle of the canvas
let points = null; // { count, id, label, x, y, order, colour, names, at }
let given = { hits: [], conditions: "", list: () => {}, search: () => {}, only: () => {} };
let accepted = null; // Uint8Array: 1 for every point that the filters accept; null: all
let asked = ""; // the conditions that `accepted` belongs to
let lasso = null; // [[x, y], ...] on the canvas while one is drawn
let chosen = null; // Uint8Array: 1 for every chosen point
let under = -1; // the point under the pointer
let canvas, context, card, status, legend, tool;

// -- reading ---------------------------------------------------------------------------------------------------

async function bytes(address) {
  const response = await fetch(at(address));
  if (response.ok) return response.arrayBuffer();
  const answer = await response.json().catch(() => ({}));
  throw new Error(answer.error || `the server answered ${response.status}`);
}

async function filter(conditions) {
  if (conditions === asked) return;
  asked = conditions;
  chosen = null; // what was chosen among other images
  $("map-none").hidden = true;
  let found = null;
  try {
    if (conditions) found = new Uint8Array(await bytes(`api/map/accepted?${conditions}`));
  } finally {
    if (conditions === asked) accepted = found; // otherwise others were asked for meanwhile
  }
  point(-1);
}

const active = (i) => (!accepted || accepted[i] === 1) && (!chosen || chosen[i] === 1);

async function load() {
  const about = await ask("api/map");
  const data = await bytes("api/map/points");
  const n = about.points;
  points = {
    count: n,
    id: new Uint32Array(data, 0, n),
    label: new Uint32Array(data, 4 * n, n),
    x: new Uint16Array(data, 8 * n, n),
    y: new Uint16Array(data, 10 * n, n),
    names: about.labels,
    missing: about.missing,
    colour: about.labels.map(colourOf),
    place: new Map(),
    // In an order without pattern, so that no class covers another because its name comes later.
    order: Uint32Array.from({ length: n }, (_, i) => i),
  };
  points.id.forEach((id, i) => points.place.set(id, i));
  let seed = 1;
  for (let i = n - 1; i > 0; i--) {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    const j = seed % (i + 1);
    [points.order[i], points.order[j]] = [points.order[j], points.order[i]];
  }
}

// Colours far apart on the wheel for labels that follow one another; as pixels, alpha first.
function colourOf(name, code) {
  if (!name) return 0xff8a8580;
  const [hue, light] = [(code * 137.508) % 360, [0.5, 0.42, 0.58][code % 3]];
  const wave = (n) => {
    const k = (n + hue / 30) % 12;
    return Math.round(255 * (light - 0.62 * Math.min(light, 1 - light) * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return ((255 << 24) | (wave(4) << 16) | (wave(8) << 8) | wave(0)) >>> 0;
}

// -- drawing ---------------------------------------------------------------------------------------------------

const scale = () => 0.94 * Math.min(canvas.width, canvas.height) * view.zoom;

// How places become pixels: x * factor + left, y * factor + top.
function projection() {
  const size = scale();
  return { factor: size / 65535, left: canvas.width / 2 - view.x * size, top: canvas.height / 2 - view.y * size };
}

function onScreen(i) {
  const { factor, left, top } = projection();
  return [points.x[i] * factor + left, points.y[i] * factor + top];
}

function disc(radius) {
  const cells = [];
  for (let y = -radius; y <= radius; y++) for (let x = -radius; x <= radius; x++) if (x * x + y * y <= radius * radius + 1) cells.push([x, y]);
  return cells;
}

let waiting = false;
let naming = 0;
function draw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    const started = performance.now();
    if (paint()) canvas.dataset.milliseconds = (performance.now() - started).toFixed(1);
    clearTimeout(naming);
    naming = setTimeout(nameColours, 200); // when the map stands still
  });
}

function paint() {
  if (!points || !canvas.width) return false;
  const { width, height } = canvas;
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const dots = devicePixelRatio || 1;
  const radius = Math.max(1, Math.min(6, Math.round((points.count > 20000 ? 1 : points.count > 2000 ? 2 : 3) * dots * view.zoom ** 0.35)));
  const cells = disc(radius).map(([x, y]) => x + y * width);
  const { factor, left, top } = projection();
  for (let round = 0; round < 2; round++) { // what is filtered out or not chosen first, the rest above it
    for (let o = 0; o < points.count; o++) {
      const i = points.order[o];
      const shown = active(i);
      if (shown !== (round === 1)) continue;
      const x = (points.x[i] * factor + left) | 0;
      const y = (points.y[i] * factor + top) | 0;
      if (x < radius || y < radius || x >= width - radius || y >= height - radius) continue;
      const colour = shown ? points.colour[points.label[i]] : 0x30808080;
      const centre = y * width + x;
      for (let c = 0; c < cells.length; c++) pixels[centre + cells[c]] = colour;
    }
  }
  context.putImageData(image, 0, 0);
  drawQuery(dots);
  if (lasso?.length > 1) {
    context.beginPath();
    lasso.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.closePath();
    context.fillStyle = "rgb(60 110 230 / 15%)";
    context.fill();
    context.lineWidth = 2 * dots;
    context.strokeStyle = "#2f62c9";
    context.stroke();
  }
  return true;
}

function ring(x, y, radius, width, colour) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.lineWidth = width;
  context.strokeStyle = colour;
  context.stroke();
}

// Where the query would stand: the mean of its nearest images' places, nearer ones counting more.
export function queryPlace() {
  let [x, y, sum] = [0, 0, 0];
  for (const hit of given.hits.slice(0, NEAR)) {
    const i = points.place.get(hit.id);
    if (i === undefined) continue;
    const weight = Math.max(hit.similarity, 0) ** 4 + 1e-9;
    x += weight * points.x[i];
    y += weight * points.y[i];
    sum += weight;
  }
  return sum ? { x: x / sum / 65535, y: y / sum / 65535 } : null;
}

function drawQuery(dots) {
  const ink = getComputedStyle(canvas).color;
  for (const hit of given.hits) {
    const i = points.place.get(hit.id);
    if (i !== undefined) ring(...onScreen(i), 5 * dots, 1.5 * dots, ink);
  }
  if (under >= 0) ring(...onScreen(under), 7 * dots, 2.5 * dots, ink);
  const place = queryPlace();
  if (!place) return;
  const [x, y] = [(place.x - view.x) * scale() + canvas.width / 2, (place.y - view.y) * scale() + canvas.height / 2];
  ring(x, y, 11 * dots, 6 * dots, "#ffffff");
  ring(x, y, 11 * dots, 3 * dots, "#c2402f");
}

// -- choosing --------------------------------------------------------------------------------------------------

function choose(inside) {
  chosen = new Uint8Array(points.count);
  const ids = [];
  const { factor, left, top } = projection();
  for (let i = 0; i < points.count; i++) {
    if ((!accepted || accepted[i]) && inside(points.x[i] * factor + left, points.y[i] * factor + top)) {
      chosen[i] = 1;
      ids.push(points.id[i]);
    }
  }
  ids.sort((a, b) => a - b);
  if (!ids.length) chosen = null;
  say(ids.length ? `${ids.length.toLocaleString("en")} images chosen; they stand below the map.` : "No image is in there.");
  $("map-none").hidden = !ids.length;
  given.list(ids);
  draw();
}

function insideLasso(path) {
  const [xs, ys] = [path.map((p) => p[0]), path.map((p) => p[1])];
  const [left, right, top, low] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  return (x, y) => {
    if (x < left || x > right || y < top || y > low) return false;
    let inside = false;
    for (let a = 0, b = path.length - 1; a < path.length; b = a++) {
      if (path[a][1] > y !== path[b][1] > y && x < ((path[b][0] - path[a][0]) * (y - path[a][1])) / (path[b][1] - path[a][1]) + path[a][0]) inside = !inside;
    }
    return inside;
  };
}

function inView() {
  const { width, height } = canvas;
  return (x, y) => x >= 0 && x < width && y >= 0 && y < height;
}

function nameColours() {
  if (!points || !canvas.width) return;
  const counts = new Uint32Array(points.names.length);
  const { factor, left, top } = projection();
  const inside = inView();
  for (let i = 0; i < points.count; i++) if (active(i) && inside(points.x[i] * factor + left, points.y[i] * factor + top)) counts[points.label[i]] += 1;
  fill(legend, points.names, counts, points.colour, given.only);
}

function nearestTo(x, y, within) {
  let best = -1;
  let distance = within * within;
  const { factor, left, top } = projection();
  for (let i = 0; i < points.count; i++) {
    if (!active(i)) continue;
    const d = (points.x[i] * factor + left - x) ** 2 + (points.y[i] * factor + top - y) ** 2;
    if (d < distance) {
      best = i;
      distance = d;
    }
  }
  return best;
}

function point(at) {
  if (at === under) return;
  under = at;
  card.hidden = at < 0;
  if (at >= 0) {
    card.querySelector("img").src = new URL(`../images/${points.id[at]}`, import.meta.url).href;
    card.querySelector("span").textContent = points.names[points.label[at]] || `image ${points.id[at]}`;
    const dots = devicePixelRatio || 1;
    const [x, y] = onScreen(at).map((place) => place / dots);
    card.style.left = `${Math.max(0, Math.min(canvas.clientWidth - 130, x + 12))}px`;
    card.style.top = `${Math.max(0, Math.min(canvas.clientHeight - 150, y + 12))}px`;
  }
  draw();
}

// -- moving ----------------------------------------------------------------------------------------------------

function zoom(factor, x = canvas.width / 2, y = canvas.height / 2) {
  const before = scale();
  view.zoom = Math.max(0.5, Math.min(400, view.zoom * factor));
  const change = 1 / before - 1 / scale();
  view.x += (x - canvas.width / 2) * change;
  view.y += (y - canvas.height / 2) * change;
  point(-1);
  draw();
}

function pan(dx, dy) {
  view.x -= dx / scale();
  view.y -= dy / scale();
  draw();
}

function whole() {
  Object.assign(view, { zoom: 1, x: 0.5, y: 0.5 });
  draw();
}

function say(text) {
  status.textContent = text;
}

const pointers = new Map();
const onCanvas = (event) => {
  const [frame, dots] = [canvas.getBoundingClientRect(), devicePixelRatio || 1];
  return [(event.clientX - frame.left) * dots, (event.clientY - frame.top) * dots];
};
let moved = 0;

function listen() {
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, onCanvas(event));
    moved = 0;
    lasso = pointers.size === 1 && (tool.checked || event.shiftKey) ? [onCanvas(event)] : null;
  });
  canvas.addEventListener("pointermove", (event) => {
    const [now, before] = [onCanvas(event), pointers.get(event.pointerId)];
    if (!points) return;
    if (!before) return event.pointerType === "touch" ? undefined : point(nearestTo(...now, 8 * (devicePixelRatio || 1)));
    const step = [now[0] - before[0], now[1] - before[1]];
    moved += Math.hypot(...step);
    if (pointers.size === 2) {
      const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
      const gap = (p) => Math.max(1, Math.hypot(p[0] - other[0], p[1] - other[1]));
      zoom(gap(now) / gap(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
    } else if (lasso) {
      lasso.push(now);
      draw();
    } else pan(...step);
    pointers.set(event.pointerId, now);
  });
  const lift = (event) => {
    if (!pointers.delete(event.pointerId) || !points) return;
    const path = lasso;
    lasso = null;
    if (path && path.length > 2) return choose(insideLasso(path));
    if (moved > 6 || event.type === "pointercancel") return;
    const hit = nearestTo(...onCanvas(event), 12 * (devicePixelRatio || 1));
    if (hit >= 0 && (event.pointerType !== "touch" || hit === under)) given.search(points.id[hit]);
    else point(hit); // a first touch shows the image, a second one searches with it
  };
  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);
  canvas.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && point(-1));
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 400), ...onCanvas(event));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const far = canvas.width / 8;
    const step = { ArrowLeft: [far, 0], ArrowRight: [-far, 0], ArrowUp: [0, far], ArrowDown: [0, -far] }[event.key];
    if (step) pan(...step);
    else if (event.key === "+" || event.key === "=") zoom(1.5);
    else if (event.key === "-") zoom(1 / 1.5);
    else if (event.key === "0") whole();
    else if (event.key === "Enter") choose(inView());
    else return;
    event.preventDefault();
  });
  new ResizeObserver(() => {
    const dots = devicePixelRatio || 1;
    canvas.width = Math.round(canvas.clientWidth * dots);
    canvas.height = Math.round(canvas.clientHeight * dots);
    draw();
  }).observe(canvas);
}

// -- the section -----------------------------------------------------------------------------------------------

function build() {
  const place = $("map");
  const bar = make("div", "bar");
  const small = (text, act, name) => {
    const made = make("button", "", text);
    made.type = "button";
    if (name) made.setAttribute("aria-label", name);
    made.addEventListener("click", act);
    bar.append(made);
    return made;
  };
  const lassoing = make("label", "pick soft");
  tool = Object.assign(make("input"), { type: "checkbox", id: "map-lasso" });
  lassoing.append(tool, " Lasso");
  bar.append(lassoing);
  small("+", () => zoom(1.5), "Zoom in");
  small("−", () => zoom(1 / 1.5), "Zoom out");
  small("Whole map", whole);
  small("List what is in view", () => choose(inView()));
  const none = small("Choose none", () => {
    chosen = null;
    none.hidden = true;
    say("");
    given.list([]);
    draw();
  });
  none.id = "map-none";
  none.hidden = true;
  const frame = make("div", "map-frame");
  canvas = Object.assign(make("canvas"), { id: "map-canvas", tabIndex: 0 });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "Map of the collection. Arrow keys move, plus and minus zoom, 0 shows all, Enter lists what is in view.");
  context = canvas.getContext("2d");
  card = make("div", "map-card");
  card.append(make("img"), make("span"));
  card.firstChild.alt = "";
  card.hidden = true;
  frame.append(canvas, card);
  status = make("p", "soft");
  status.id = "map-status";
  status.setAttribute("role", "status");
  legend = make("div", "map-legend");
  legend.setAttribute("role", "group");
  legend.setAttribute("aria-label", "Labels in view");
  place.append(bar, status, frame, legend);
  listen();
}

export async function show(wanted) {
  given = wanted;
  if (!canvas) build();
  try {
    if (!points) {
      say("Reading the map…");
      await load();
    }
    await filter(given.conditions);
    const place = queryPlace();
    if (place) Object.assign(view, { x: place.x, y: place.y, zoom: Math.max(view.zoom, 2) });
    const later = points.missing ? ` ${points.missing.toLocaleString("en")} images came later and are not on it: run forerank map again.` : "";
    const count = accepted ? accepted.reduce((sum, one) => sum + one, 0) : 0;
    const fit = accepted ? `${count.toLocaleString("en")} of ${points.count.toLocaleString("en")} images fit the filters; the others are grey. ` : "";
    const told = given.hits.length ? "The red ring shows where the query stands, thin rings show its matches." : "Near points are similar images; colours are labels. Hold Shift or tick Lasso to choose some.";
    say(fit + told + later);
  } catch (error) {
    say("");
    complain(error);
  }
  draw();
}
