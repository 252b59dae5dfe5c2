// How sure an answer is: precision against answered share, with a slider over the thresholds.

import { $, ask, complain, make } from "./dom.js";
import { tiles } from "./tiles.js";

const [WIDTH, HEIGHT, LEFT, TOP, LOW] = [640, 280, 58, 26, 50];
let about = null;

// Never 100%: a finite number of trials cannot show that.
export const share = (value) => (value > 0.995 ? "over 99%" : `${Math.round(100 * value)}%`);

const svg = (tag, attributes, text) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
};

const x = (answered) => LEFT + answered * (WIDTH - LEFT - 12);
let floor = 0;
const y = (precision) => TOP + ((1 - precision) / (1 - floor || 1)) * (HEIGHT - TOP - LOW);

function drawing() {
  const { curve } = about;
  floor = Math.floor(5 * Math.min(0.8, ...curve.map((point) => point.precision))) / 5; // the ticks are round numbers
  const made = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": "Precision against the share of questions answered" });
  for (let i = 0; i <= 4; i++) {
    const [across, up] = [i / 4, floor + ((1 - floor) * i) / 4];
    made.append(svg("line", { class: "axis", x1: LEFT, x2: WIDTH - 12, y1: y(up), y2: y(up) }));
    made.append(svg("text", { x: LEFT - 8, y: y(up) + 4, "text-anchor": "end" }, `${Math.round(100 * up)}%`));
    made.append(svg("text", { x: x(across), y: HEIGHT - 28, "text-anchor": "middle" }, `${Math.round(100 * across)}%`));
  }
  made.append(svg("text", { x: (LEFT + WIDTH) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, "share answered, of the questions about things in the catalogue"));
  made.append(svg("text", { x: LEFT, y: TOP - 8 }, "right among the answers"));
  made.append(svg("polyline", { class: "curve", points: curve.map((point) => `${x(point.answered)},${y(point.precision)}`).join(" ") }));
  const inForce = nearest(about.similarity);
  made.append(svg("circle", { class: "stored", r: 8, cx: x(curve[inForce].answered), cy: y(curve[inForce].precision) }));
  made.append(svg("circle", { class: "here", r: 5 }));
  return made;
}

function nearest(similarity) {
  const far = about.curve.map((point) => Math.abs(point.similarity - similarity));
  return far.indexOf(Math.min(...far));
}

function build(answer) {
  const place = $("threshold");
  const slider = Object.assign(make("input"), { type: "range", id: "threshold-slider", min: 0, max: about.curve.length - 1, value: nearest(about.similarity) });
  const label = make("label", "soft", "Trust answers from similarity ");
  const at = make("output", "", "");
  label.append(at, slider);
  const told = make("p");
  told.id = "threshold-told";
  told.setAttribute("role", "status");
  const picture = drawing();
  const source = make("p", "soft", `Measured with ${about.queries.toLocaleString("en")} queries of ${about.classes.toLocaleString("en")} classes; ${Math.round(100 * about.absent)}% of the questions are for things that are not in the catalogue. The circle is the threshold in use; the slider only tries another one on this page.`);
  place.replaceChildren(told, picture, label, source);
  const show = () => {
    const point = about.curve[Number(slider.value)];
    at.textContent = point.similarity.toFixed(3);
    told.textContent = `From similarity ${point.similarity.toFixed(3)} on, ${share(point.answered)} of the questions about things in the catalogue get an answer, and ${share(point.precision)} of all answers are right.`;
    slider.setAttribute("aria-valuetext", told.textContent);
    picture.querySelector(".here").setAttribute("cx", x(point.answered));
    picture.querySelector(".here").setAttribute("cy", y(point.precision));
    if (answer()?.threshold != null) for (const item of tiles()) item.classList.toggle("faint", item.row.similarity < point.similarity);
  };
  slider.addEventListener("input", show);
  show();
}

// `answer()` gives the search that is shown, whose matches follow the slider.
export function begin(answer) {
  const opener = $("to-threshold");
  opener.hidden = false;
  opener.addEventListener("click", async () => {
    const open = $("threshold").hidden;
    try {
      if (!about) {
        about = await ask("api/threshold");
        build(answer);
      }
      $("threshold").hidden = !open;
      opener.setAttribute("aria-expanded", String(open));
      if (open) $("threshold-slider").focus();
    } catch (error) {
      complain(error);
    }
  });
}
