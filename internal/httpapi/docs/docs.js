// Shows the OpenAPI document of this server and sends requests to its routes.
"use strict";

const element = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "onclick") node.addEventListener("click", value);
    else node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
};

const resolve = (doc, schema) => {
  if (!schema || !schema.$ref) return schema || {};
  return schema.$ref.replace("#/", "").split("/").reduce((at, part) => at[part], doc);
};

// An example of a schema, as deep as its own parts go.
const example = (doc, given, depth = 0) => {
  const schema = resolve(doc, given);
  if (schema.examples) return schema.examples[0];
  if (schema.default !== undefined) return schema.default;
  if (schema.enum) return schema.enum[0];
  const type = Array.isArray(schema.type) ? schema.type[0] : schema.type;
  switch (type) {
    case "object": {
      if (depth > 4) return {};
      const out = {};
      for (const [name, part] of Object.entries(schema.properties || {})) out[name] = example(doc, part, depth + 1);
      return out;
    }
    case "array":
      return [example(doc, schema.items, depth + 1)];
    case "integer":
    case "number":
      return schema.minimum || 0;
    case "boolean":
      return false;
    case "string":
      return schema.format === "date-time" ? "2026-01-02T03:04:05Z" : "";
  }
  return {};
};

const jsonOf = (doc, content) => {
  const [kind, media] = Object.entries(content || {})[0] || [];
  if (!kind) return null;
  if (!/json|event-stream/.test(kind)) return element("p", {}, element("code", {}, kind));
  return element("div", {}, element("code", {}, kind), element("pre", {}, JSON.stringify(example(doc, media.schema), null, 2)));
};

const parameters = (operation) => {
  const inputs = [];
  const table = element("table", {}, element("tr", {}, ...["Name", "In", "What", "Value"].map((t) => element("th", {}, t))));
  for (const p of operation.parameters || []) {
    const input = element("input", { "aria-label": p.name, value: p.schema && p.schema.default !== undefined ? String(p.schema.default) : "" });
    inputs.push({ p, input });
    table.append(element("tr", {}, element("td", {}, element("code", {}, p.name), p.required ? " *" : ""), element("td", {}, p.in), element("td", {}, p.description || ""), element("td", {}, input)));
  }
  return { inputs, table: inputs.length ? table : null };
};

const send = async (method, path, inputs, kind, bodyField, out) => {
  let url = path;
  const query = new URLSearchParams();
  const headers = {};
  for (const { p, input } of inputs) {
    if (p.in === "path") url = url.replace(`{${p.name}}`, encodeURIComponent(input.value));
    else if (input.value === "") continue;
    else if (p.in === "query") query.set(p.name, input.value);
    else headers[p.name] = input.value;
  }
  if ([...query].length) url += "?" + query;
  if (bodyField) headers["Content-Type"] = kind;
  out.textContent = "…";
  try {
    const answer = await fetch(url, { method, headers, body: bodyField ? bodyField.value : undefined });
    let text = await answer.text();
    if (/json/.test(answer.headers.get("Content-Type") || "")) text = JSON.stringify(JSON.parse(text), null, 2);
    out.textContent = `${answer.status} ${answer.statusText}\n\n${text}`;
  } catch (error) {
    out.textContent = String(error);
  }
};

const streams = /\/(stream|attach)$/;

const show = (doc, path, method, operation) => {
  const { inputs, table } = parameters(operation);
  const [kind, media] = Object.entries((operation.requestBody || {}).content || {})[0] || [];
  const field = kind ? element("textarea", { "aria-label": "Request body" }) : null;
  if (field && /json/.test(kind)) field.value = JSON.stringify(example(doc, media.schema), null, 2);
  const out = element("pre", { "aria-live": "polite" });
  const trial = streams.test(path) ? null : element("div", {}, field, element("p", {}, element("button", { type: "button", onclick: () => send(method.toUpperCase(), path, inputs, kind, field, out) }, "Send")), out);
  const answers = Object.entries(operation.responses || {}).map(([status, r]) => element("div", {}, element("p", {}, element("strong", {}, status), " ", r.description || ""), jsonOf(doc, r.content)));
  return element("details", { class: "op", id: operation.operationId },
    element("summary", {}, element("span", { class: "method" }, method.toUpperCase()), element("span", { class: "path" }, path), element("span", { class: "hint" }, operation.summary || "")),
    element("div", {}, element("p", {}, operation.description || ""), table, kind ? element("h4", {}, "Body: ", element("code", {}, kind)) : null, trial, element("h4", {}, "Answers"), ...answers));
};

const start = async () => {
  const doc = await (await fetch("/openapi.json")).json();
  document.getElementById("about").replaceChildren(doc.info.description || "", " Version ", doc.info.version, ". ", element("a", { href: "/openapi.json" }, "OpenAPI 3.1 document"));
  const main = document.getElementById("operations");
  for (const tag of doc.tags || []) {
    document.getElementById("tags").append(element("a", { href: "#" + tag.name }, tag.name));
    main.append(element("h2", { id: tag.name }, tag.name));
    for (const [path, methods] of Object.entries(doc.paths)) {
      for (const [method, operation] of Object.entries(methods)) {
        if ((operation.tags || [])[0] === tag.name) main.append(show(doc, path, method, operation));
      }
    }
  }
  const wanted = document.getElementById(location.hash.slice(1));
  if (wanted) wanted.open = true;
};

start().catch((error) => { document.getElementById("about").textContent = String(error); });
