"use strict";
// A plain rendering of openapi.json: no library, no outside address.

const make = (tag, text, className) => Object.assign(document.createElement(tag), { textContent: text ?? "", className: className ?? "" });

function kind(schema, all) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map((one) => kind(one, all)).join(" or ");
  if (schema.type === "array") return `list of ${kind(schema.items, all)}`;
  return schema.format === "binary" ? "bytes of a picture" : schema.type || "";
}

function table(header, rows) {
  const made = make("table");
  const head = made.createTHead().insertRow();
  header.forEach((text) => head.append(make("th", text)));
  const body = made.createTBody();
  for (const cells of rows) {
    const row = body.insertRow();
    cells.forEach((text) => (row.insertCell().textContent = text));
  }
  return made;
}

function bounds(schema) {
  const said = [];
  if (schema?.minimum !== undefined) said.push(`from ${schema.minimum}`);
  if (schema?.maximum !== undefined) said.push(`up to ${schema.maximum}`);
  if (schema?.default !== undefined && schema.default !== null) said.push(`default ${JSON.stringify(schema.default)}`);
  return said.join(", ");
}

fetch("openapi.json").then((response) => response.json()).then((api) => {
  const place = document.getElementById("operations");
  for (const [path, verbs] of Object.entries(api.paths)) {
    for (const [verb, operation] of Object.entries(verbs)) {
      const card = make("section", "", "card");
      const title = make("h2");
      title.append(make("span", verb.toUpperCase(), "verb"), path);
      card.append(title, make("p", operation.description || operation.summary));
      const parameters = (operation.parameters || []).map((p) => [p.name, kind(p.schema), p.description || bounds(p.schema)]);
      for (const [type, body] of Object.entries(operation.requestBody?.content || {})) parameters.push(["(body)", `${type}: ${kind(body.schema)}`, ""]);
      if (parameters.length) card.append(table(["parameter", "kind", "meaning"], parameters));
      const answer = Object.values(operation.responses["200"]?.content || {})[0]?.schema;
      if (answer) card.append(make("p", `Answers with ${kind(answer)}.`, "soft"));
      place.append(card);
    }
  }
  place.append(make("h1", "Shapes"));
  for (const [name, schema] of Object.entries(api.components.schemas)) {
    if (!schema.properties || /^(HTTP)?Validation/.test(name)) continue;
    const card = make("section", "", "card");
    card.append(make("h2", name), make("p", schema.description));
    card.append(table(["field", "kind", "meaning"], Object.entries(schema.properties).map(([key, value]) => [key, kind(value), value.description || ""])));
    place.append(card);
  }
  place.setAttribute("aria-busy", "false");
});
document.getElementById("origin").textContent = new URL("./", location.href).href.replace(/\/$/, "");
