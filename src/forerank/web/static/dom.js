// What every module of the page needs: elements, addresses, requests, complaints.

// This file lies in static/, so the page works below any path that it is served at.
const base = new URL("../", import.meta.url);
export const at = (address) => new URL(address, base).href;
export const $ = (id) => document.getElementById(id);

export async function ask(address, options) {
  const response = await fetch(at(address), options);
  const answer = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (!response.ok) throw new Error(answer.error || `the server answered ${response.status}`);
  return answer;
}

export function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

export function button(className, text, act, name) {
  const made = make("button", className, text);
  made.type = "button";
  made.dataset.act = act;
  if (name) made.title = name;
  if (name) made.setAttribute("aria-label", name);
  return made;
}

export const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
// A long name may be broken after these signs, not only where it happens to reach the edge.
export const breakable = (text) => text.split(/(?<=[_/.-])/).flatMap((part) => [part, make("wbr")]);
export const fileName = (path) => path.split("/").pop();

export function complain(error) {
  $("error").textContent = error ? sentence(error.message || String(error)) : "";
  $("error").hidden = !error;
}

// The value of a CSV column: a link only where it is an ordinary web address.
export function valueOf(text) {
  if (!/^https?:\/\/[^\s]+$/i.test(text)) return make("span", "", text);
  const link = make("a", "", text.replace(/^https?:\/\//i, ""));
  link.href = text;
  link.target = "_blank";
  link.rel = "noopener noreferrer";
  return link;
}
