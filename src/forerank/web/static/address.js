// The whole search stands in the page's address, in the words of the API: reload, back and sharing work.

export const empty = () => ({ like: [], unlike: [], where: [], text: "", one_per_class: false, fold: false, k: 24, view: "" });
export const COUNTS = [12, 24, 48, 96];
export const VIEWS = ["", "explain", "map"];

export function read(search) {
  const given = new URLSearchParams(search);
  const query = empty();
  query.like = given.getAll("like").slice(0, 32);
  query.unlike = given.getAll("unlike").slice(0, 32);
  query.where = given.getAll("where").slice(0, 10);
  query.text = (given.get("text") || "").slice(0, 200);
  query.one_per_class = given.get("one_per_class") === "true";
  query.fold = given.get("fold") === "true";
  if (COUNTS.includes(Number(given.get("k")))) query.k = Number(given.get("k"));
  if (VIEWS.includes(given.get("view"))) query.view = given.get("view");
  return query;
}

// Examples are written plainly: 12, uAbC@0.1,0.2,0.5,0.5 need no escaping in an address.
const plain = (text) => encodeURIComponent(text).replaceAll("%40", "@").replaceAll("%2C", ",").replaceAll("%3D", "=").replaceAll("%20", "+");

function words(query, all) {
  const parts = [];
  for (const name of ["like", "unlike", "where"]) for (const one of query[name]) parts.push(`${name}=${plain(one)}`);
  if (query.text) parts.push(`text=${plain(query.text)}`);
  for (const name of ["one_per_class", "fold"]) if (query[name]) parts.push(`${name}=true`);
  if (all ? query.like.length : query.k !== empty().k) parts.push(`k=${query.k}`);
  if (!all && query.view) parts.push(`view=${query.view}`);
  return parts.join("&");
}

export const write = (query) => (words(query) ? `?${words(query)}` : location.pathname);
export const forSearch = (query) => words({ ...query }, true);
export const forGallery = (query) => words({ ...query, like: [], unlike: [], one_per_class: false, fold: false }, true);

// An example is a row or an upload, and perhaps a box in it.
export const exampleName = (text) => text.split("@")[0];
export const exampleBox = (text) => (text.includes("@") ? text.split("@")[1].split(",").map(Number) : null);
export const isUpload = (text) => text.startsWith("u");
export const pictureOf = (text, size = "large") => (isUpload(text) ? `uploads/${encodeURIComponent(exampleName(text))}` : `images/${encodeURIComponent(exampleName(text))}?size=${size}`);
