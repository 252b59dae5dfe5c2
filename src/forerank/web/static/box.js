// A box drawn on a picture of the query: with a finger, a mouse or the keyboard.

import { make } from "./dom.js";

const SMALLEST = 0.04; // of the picture: less is a click
const share = (value) => Math.max(0, Math.min(1, value));
export const boxText = (box) => box.map((value) => String(Number(value.toFixed(4)))).join(",");

// Where the picture itself stands inside its element, which shows it whole.
function pictureArea(image) {
  const frame = image.getBoundingClientRect();
  const scale = Math.min(frame.width / (image.naturalWidth || 1), frame.height / (image.naturalHeight || 1));
  const [width, height] = [image.naturalWidth * scale, image.naturalHeight * scale];
  return { left: frame.left + (frame.width - width) / 2, top: frame.top + (frame.height - height) / 2, width, height, frame };
}

// `changed(box)` is told the new box [x, y, width, height] in shares of the picture, or null for all of it.
export function drawable(holder, image, start, changed) {
  const mark = make("div", "box");
  holder.append(mark);
  let box = start;
  let from = null;

  function place() {
    mark.hidden = !box;
    if (!box || !image.naturalWidth) return;
    const area = pictureArea(image);
    const outer = holder.getBoundingClientRect();
    const set = (name, value) => (mark.style[name] = `${value}px`);
    set("left", area.left - outer.left - holder.clientLeft + box[0] * area.width);
    set("top", area.top - outer.top - holder.clientTop + box[1] * area.height);
    set("width", box[2] * area.width);
    set("height", box[3] * area.height);
  }

  const point = (event) => {
    const area = pictureArea(image);
    return [share((event.clientX - area.left) / area.width), share((event.clientY - area.top) / area.height)];
  };
  holder.addEventListener("pointerdown", (event) => {
    if (event.target.closest("button") || event.button !== 0) return;
    event.preventDefault();
    holder.setPointerCapture(event.pointerId);
    holder.focus();
    from = point(event);
  });
  holder.addEventListener("pointermove", (event) => {
    if (!from) return;
    const to = point(event);
    box = [Math.min(from[0], to[0]), Math.min(from[1], to[1]), Math.abs(from[0] - to[0]), Math.abs(from[1] - to[1])];
    place();
  });
  holder.addEventListener("pointerup", () => {
    if (!from) return;
    from = null;
    if (!box || box[2] < SMALLEST || box[3] < SMALLEST) box = null; // a click takes the whole picture again
    place();
    if ((box && boxText(box)) !== (start && boxText(start))) changed(box);
  });
  holder.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (step) {
      box = box || [0.25, 0.25, 0.5, 0.5];
      const [i, size] = event.shiftKey ? [2, 1] : [0, 1];
      box[i] += 0.05 * step[0] * size;
      box[i + 1] += 0.05 * step[1] * size;
      box[2] = Math.max(0.1, Math.min(1, box[2]));
      box[3] = Math.max(0.1, Math.min(1, box[3]));
      box[0] = Math.max(0, Math.min(1 - box[2], box[0]));
      box[1] = Math.max(0, Math.min(1 - box[3], box[1]));
    } else if (event.key === "Enter") changed(box);
    else if ((event.key === "Delete" || event.key === "Backspace") && box) changed((box = null));
    else return;
    event.preventDefault();
    event.stopPropagation();
    place();
  });
  image.addEventListener("load", place);
  new ResizeObserver(place).observe(holder);
  place();
}
