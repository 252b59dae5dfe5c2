// Endless rows of images. Blocks far from the window are emptied and keep their height: 100,000 images never
// stand in the page at once.

import { $, complain, make } from "./dom.js";
import { rove, tile } from "./tiles.js";

const results = $("results");
const state = { blocks: [], next: null, source: null, busy: false, turn: 0, wrapAt: null, wrapped: false, nothing: "" };

const nearby = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting && !entry.target.block.shown) showBlock(entry.target.block);
}, { rootMargin: "1200px" });

function showBlock(block) {
  block.shown = true;
  block.gap.hidden = true;
  block.holder.replaceChildren(...block.rows.map((row) => tile(row)));
  rove();
}

function hideFarBlocks() {
  for (const block of state.blocks) {
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
  nearby.observe(gap);
  state.blocks.push(block);
  showBlock(block);
}

const nearEnd = () => state.next !== null && $("sentinel").getBoundingClientRect().top < innerHeight + 900;

async function more() {
  if (state.busy || state.next === null) return;
  state.busy = true;
  const turn = state.turn;
  results.setAttribute("aria-busy", "true");
  try {
    const answer = await state.source(state.next);
    if (turn !== state.turn) return;
    let rows = answer.rows;
    state.next = answer.next;
    if (state.wrapped) rows = rows.filter((row) => row.id <= state.wrapAt);
    if (state.wrapped && rows.length < answer.rows.length) state.next = null;
    if (state.next === null && state.wrapAt !== null && !state.wrapped) {
      state.wrapped = true;
      state.next = -1;
    }
    if (rows.length) addBlock(rows);
    $("empty").hidden = state.blocks.length > 0 || state.next !== null;
    $("empty").textContent = state.nothing;
  } catch (error) {
    if (turn === state.turn) {
      complain(error);
      state.next = null;
    }
  } finally {
    if (turn === state.turn) {
      state.busy = false;
      results.setAttribute("aria-busy", "false");
      if (nearEnd()) more();
    }
  }
}

// Every row that the gallery has loaded so far, for the enlarged view.
export const loaded = () => state.blocks.flatMap((block) => block.rows);

export function close() {
  state.turn += 1;
  state.busy = false;
  state.next = null;
  state.blocks = [];
  nearby.disconnect();
  results.replaceChildren();
  $("empty").hidden = true;
}

// `source(after)` gives { rows, next }; `wrapAt`: began somewhere in the middle, stop when back there.
export async function open(source, { after = -1, wrapAt = null, nothing = "" } = {}) {
  close();
  Object.assign(state, { source, next: after, wrapAt, wrapped: false, nothing });
  await more();
}

new IntersectionObserver(() => nearEnd() && more(), { rootMargin: "900px" }).observe($("sentinel"));
let tidying = 0;
addEventListener("scroll", () => {
  clearTimeout(tidying);
  tidying = setTimeout(hideFarBlocks, 250);
}, { passive: true });
