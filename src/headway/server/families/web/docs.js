let api;

// Text with `code` in it.
function prose(text) {
  return text.split("`").map((part, n) => (n % 2 ? make("code", {}, part) : part));
}

// JSON with short parts on one line: tensors stay readable.
function pretty(value, indent = "") {
  const short = JSON.stringify(value);
  if (value === null || typeof value !== "object" || short.length + indent.length <= 72) return short;
  const inner = indent + "  ";
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const parts = Array.isArray(value)
    ? value.map((each) => pretty(each, inner))
    : Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}: ${pretty(each, inner)}`);
  const line = parts.join(", ");
  if (Array.isArray(value) && value.every((each) => typeof each !== "object")) {
    return `[${line}]`;
  }
  return `${open}\n${parts.map((each) => inner + each).join(",\n")}\n${indent}${close}`;
}

function resolved(schema) {
  while (schema && schema.$ref) {
    schema = schema.$ref.slice(2).split("/").reduce((at, key) => at[key], api);
  }
  return schema || {};
}

// A schema as a person would write it down: {"name": string, "shape": [integer ≥ 0, …]}
function spelled(schema, indent = "", seen = []) {
  if (schema.$ref) {
    if (seen.includes(schema.$ref)) return schema.$ref.split("/").pop();
    return spelled(resolved(schema), indent, [...seen, schema.$ref]);
  }
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" | ");
  const either = schema.anyOf || schema.oneOf;
  if (either) return either.map((each) => spelled(each, indent, seen)).join(`\n${indent}or `);
  if (schema.type === "array") {
    if (!schema.items || !Object.keys(schema.items).length) return "[…]";
    const count = schema.minItems !== undefined && schema.minItems === schema.maxItems
      ? ` × ${schema.minItems}` : "";
    return `[${spelled(schema.items, indent, seen)}, …]${count}`;
  }
  if (schema.properties) {
    const needed = new Set(schema.required || []);
    const lines = Object.entries(schema.properties).map(([name, part]) =>
      `${indent}  ${JSON.stringify(name)}${needed.has(name) ? "" : "?"}: ` +
      spelled(part, indent + "  ", seen) + (part.description ? `  — ${part.description}` : ""));
    return `{\n${lines.join(",\n")}\n${indent}}`;
  }
  if (schema.type === "object") {
    const values = schema.additionalProperties;
    return values && values !== true ? `{name: ${spelled(values, indent, seen)}, …}` : "{…}";
  }
  const type = [schema.type || "any JSON"].flat().join(" | ");
  const limits = [
    schema.minimum === undefined ? "" : ` ≥ ${schema.minimum}`,
    schema.exclusiveMinimum === undefined ? "" : ` > ${schema.exclusiveMinimum}`,
    schema.maximum === undefined ? "" : ` ≤ ${schema.maximum}`,
  ];
  return type + limits.join("");
}

function field(parameter, id) {
  const schema = resolved(parameter.schema);
  const input = schema.enum
    ? make("select", { id }, ...(parameter.required ? [] : [make("option", { value: "" }, "–")]),
        ...schema.enum.map((each) => make("option", { value: each }, each)))
    : make("input", { id, placeholder: parameter.required ? "" : "not sent" });
  input.dataset.name = parameter.name;
  input.dataset.in = parameter.in;
  const label = make("label", { htmlFor: id }, make("code", {}, parameter.name),
    make("span", { className: "faint" }, parameter.required ? " (in the path)" : ""));
  const cell = make("div", {}, input, parameter.description
    ? make("div", { className: "faint" }, make("small", {}, parameter.description)) : null);
  return [label, cell];
}

function route(path, method, operation) {
  const details = make("details", { id: operation.operationId });
  details.dataset.text = `${method} ${path} ${operation.summary}`.toLowerCase();
  details.append(make("summary", {},
    make("span", { className: `method ${method}` }, method.toUpperCase()),
    make("span", { className: "path" }, path),
    make("span", { className: "faint" }, operation.summary)));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(inside(path, method, operation));
  });
  return details;
}

function inside(path, method, operation) {
  const panel = make("div", { className: "inside" });
  if (operation.description) panel.append(make("p", {}, ...prose(operation.description)));
  const parameters = (operation.parameters || []).map(resolved);
  if (parameters.length) {
    panel.append(make("h3", {}, "Parameters"), make("div", { className: "fields" },
      ...parameters.flatMap((each, n) => field(each, `${operation.operationId}-${n}`))));
  }
  const content = operation.requestBody && operation.requestBody.content["application/json"];
  let body = null;
  if (content) {
    const examples = Object.entries(content.examples || {});
    body = make("textarea", { spellcheck: false, rows: 6, value: examples.length ? pretty(examples[0][1].value) : "{}" });
    body.setAttribute("aria-label", "Request body");
    panel.append(make("h3", {}, "Request body"), body);
    const named = panel.querySelector("select[data-in=path]");
    if (named && examples.length > 1) {
      const follow = () => {
        const found = content.examples[named.value];
        if (found) body.value = pretty(found.value);
      };
      named.addEventListener("change", follow);
      follow();
    }
    panel.append(make("details", {}, make("summary", { className: "faint" }, "Its schema"),
      make("pre", { className: "inside" }, spelled(content.schema))));
  }
  const send = make("button", { className: "send", type: "button" }, "Send");
  const stop = make("button", { type: "button", hidden: true }, "Stop");
  const status = make("span", { className: "status", role: "status" });
  const curl = make("pre", {});
  const answer = make("pre", { hidden: true });
  const asked = () => request(panel, path, method, body);
  const show = () => { curl.textContent = asCurl(asked()); };
  for (const event of ["input", "change"]) panel.addEventListener(event, show);
  send.addEventListener("click", () => perform(asked(), { send, stop, status, answer }));
  panel.append(make("div", { className: "row" }, send, stop, status), answer,
    make("h3", {}, "In a shell"), curl, make("h3", {}, "Answers"));
  for (const [code, response] of Object.entries(operation.responses)) {
    const [kind, media] = Object.entries(response.content || {})[0] || ["", null];
    panel.append(make("details", {}, make("summary", {}, make("code", {}, code),
      make("span", { className: "faint" }, ...prose(response.description))),
      make("pre", { className: "inside" }, `${kind}\n${media && media.schema ? spelled(media.schema) : ""}`)));
  }
  show();
  return panel;
}

function request(panel, path, method, body) {
  const headers = {};
  for (const each of panel.querySelectorAll("[data-name]")) {
    if (each.dataset.in === "path") {
      path = path.replace(`{${each.dataset.name}}`, encodeURIComponent(each.value));
    } else if (each.value) {
      headers[each.dataset.name] = each.value;
    }
  }
  if (body) headers["Content-Type"] = "application/json";
  return { url: new URL(path.slice(1), base).href, method: method.toUpperCase(), headers: signed(headers),
    body: body ? body.value : undefined };
}

function asCurl({ url, headers, body, method }) {
  const quote = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
  const parts = [`curl ${quote(url)}`];
  for (const [name, value] of Object.entries(headers)) {
    // Commands are copied, shown and kept in histories: the key stays out of them.
    parts.push(name === "Authorization" ? '-H "Authorization: Bearer $HEADWAY_KEY"' : `-H ${quote(`${name}: ${value}`)}`);
  }
  if (body !== undefined) parts.push(`-d ${quote(body)}`);
  else if (method !== "GET") parts.push(`-X ${method}`);
  return parts.join(" \\\n  ");
}

async function perform({ url, ...options }, { send, stop, status, answer }) {
  const control = new AbortController();
  const started = performance.now();
  stop.onclick = () => control.abort();
  send.disabled = true;
  stop.hidden = false;
  status.className = "status";
  status.textContent = "asking …";
  answer.hidden = true;
  answer.textContent = "";
  try {
    const response = await fetch(url, { ...options, signal: control.signal });
    status.classList.add(response.ok ? "good" : "bad");
    status.textContent = `${response.status} ${response.statusText}`;
    answer.hidden = false;
    const isEvents = (response.headers.get("content-type") || "").startsWith("text/event-stream");
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      answer.textContent += part.value;  // events are shown as they come
    }
    if (!isEvents) answer.textContent = asJson(answer.textContent);
    const retry = response.headers.get("retry-after");
    status.textContent += ` · ${Math.round(performance.now() - started)} ms` +
      (retry ? ` · come back in ${retry} s` : "");
  } catch (error) {
    status.classList.add("bad");
    status.textContent = error.name === "AbortError" ? "stopped" : `no answer: ${error.message}`;
  } finally {
    send.disabled = false;
    stop.hidden = true;
  }
}

function asJson(text) {
  try {
    return pretty(JSON.parse(text));
  } catch {
    return text;
  }
}

// First of all: what this server serves, and where it is called.
function showModels() {
  const served = api["x-headway-models"] || [];
  const line = $("models");
  line.append(served.length ? "Serving " : "Serving no model yet.");
  served.forEach((model, n) => {
    const link = make("a", { href: `#${model.operation}` }, model.name);
    link.addEventListener("click", () => {
      const found = $(model.operation);
      if (found) found.open = true;
    });
    line.append(n ? ", " : "", link);
  });
  line.hidden = false;
}

function offerOthers(unanswered, sections) {
  if (!unanswered.length) return;
  const others = $("others");
  $("how-many").textContent =
    `${unanswered.length} routes that no model here answers are not shown.`;
  others.hidden = false;
  $("show").addEventListener("click", () => {
    for (const each of unanswered) { each.hidden = false; delete each.dataset.unanswered; }
    for (const section of sections) section.hidden = false;
    others.hidden = true;
  });
}

async function start() {
  const about = $("about");
  try {
    const answer = await ask("openapi.json");
    if (!answer.ok) throw new Error(await complaint(answer));
    api = await answer.json();
  } catch (error) {
    about.textContent = `The description could not be read: ${error.message}`;
    return;
  }
  const title = $("title");
  title.textContent = `${api.info.title} `;
  title.append(make("small", {}, api.info.version));
  about.textContent = api.info.description || "";
  showModels();
  const unanswered = [];
  const sections = api.tags.map((tag) => {
    const section = make("section", {}, make("h2", {}, `${tag.name} `, make("small", {}, tag.description)));
    for (const [path, operations] of Object.entries(api.paths)) {
      for (const [method, operation] of Object.entries(operations)) {
        if (!operation.tags.includes(tag.name)) continue;
        const shown = route(path, method, operation);
        if (operation["x-headway-unanswered"]) { shown.dataset.unanswered = "yes"; shown.hidden = true; unanswered.push(shown); }
        section.append(shown);
      }
    }
    section.hidden = [...section.querySelectorAll("section > details")].every((each) => each.hidden);
    return section;
  });
  offerOthers(unanswered, sections);
  $("routes").append(...sections);
  const filter = $("filter");
  filter.hidden = false;
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/);
    for (const section of sections) {
      const routes = [...section.querySelectorAll("section > details")];
      for (const each of routes) {
        each.hidden = each.dataset.unanswered === "yes" || !words.every((word) => each.dataset.text.includes(word));
      }
      section.hidden = routes.every((each) => each.hidden);
    }
  });
  const wanted = location.hash && $(decodeURIComponent(location.hash.slice(1)));
  if (wanted) { wanted.open = true; wanted.scrollIntoView(); }
}
start();
