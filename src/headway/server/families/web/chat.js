let messages = [], unanswered = [], stop = null;  // unanswered: calls of tools without a result

// ---- Markdown: made of elements and texts, so that nothing a model says is ever HTML

const INLINE = /`([^`\n]{1,2000})`|\*\*([^*\n]{1,500})\*\*|\*([^*\s][^*\n]{0,500})\*|\[([^\]\n]{1,300})\]\((https?:\/\/[^)\s]{1,1000})\)/g;
const ITEM = /^( *)([-*+]|\d{1,9}[.)]) +(.*)$/;

function inline(text) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    const [whole, code, strong, soft, label, link] = found;
    parts.push(text.slice(at, found.index));
    if (code) parts.push(make("code", {}, code));
    else if (strong) parts.push(make("strong", {}, ...inline(strong)));
    else if (soft) parts.push(make("em", {}, ...inline(soft)));
    else parts.push(make("a", { href: link, rel: "noopener noreferrer", target: "_blank" }, label));
    at = found.index + whole.length;
  }
  return [...parts, text.slice(at)];
}

function cells(line, tag) {
  const inner = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return make("tr", {}, ...inner.split("|").map((each) => make(tag, {}, ...inline(each.trim()))));
}

function markdown(text) {
  const lines = text.split("\n"), blocks = [];
  const taken = (test) => {
    const found = [];
    while (lines.length && test(lines[0])) found.push(lines.shift());
    return found;
  };
  while (lines.length) {
    const line = lines[0], heading = /^(#{1,6}) +(.*)$/.exec(line), fence = /^ *(```+|~~~+)/.exec(line);
    if (!line.trim()) lines.shift();
    else if (fence) {
      lines.shift();
      const code = taken((each) => !each.trim().startsWith(fence[1])).join("\n");
      lines.shift();
      blocks.push(make("div", { className: "code" }, make("pre", {}, make("code", {}, code)), copying(() => code)));
    } else if (heading) {
      lines.shift();
      blocks.push(make(`h${Math.min(heading[1].length, 3)}`, {}, ...inline(heading[2])));
    } else if (/^ *([-*_])( *\1){2,} *$/.test(line)) blocks.push(lines.shift() && make("hr"));
    else if (line.startsWith(">"))
      blocks.push(make("blockquote", {}, ...markdown(taken((each) => each.startsWith(">")).map((each) => each.slice(1).trimStart()).join("\n"))));
    else if (ITEM.test(line)) blocks.push(list(taken((each) => ITEM.test(each) || /^ {2,}\S/.test(each))));
    else if (line.includes("|") && /^[\s|:-]*-[\s|:-]*$/.test(lines[1] || "") && lines[1].includes("|")) {
      const [head, , ...rows] = taken((each) => each.includes("|"));
      blocks.push(make("table", {}, make("thead", {}, cells(head, "th")), make("tbody", {}, ...rows.map((each) => cells(each, "td")))));
    } else {
      const starts = (each) => !each.trim() || /^(#{1,6} |>| *(```|~~~))/.test(each) || ITEM.test(each);
      const rest = [lines.shift(), ...taken((each) => !starts(each))];
      blocks.push(make("p", {}, ...inline(rest.join("\n"))));
    }
  }
  return blocks;
}

function list(lines) {
  const [, indent, mark] = ITEM.exec(lines[0]), items = [];
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (found && found[1].length <= indent.length) items.push([found[3]]);
    else items[items.length - 1].push(line.slice(Math.min(indent.length + 2, line.search(/\S/))));
  }
  return make(/\d/.test(mark) ? "ol" : "ul", /\d/.test(mark) ? { start: parseInt(mark) } : {},
    ...items.map(([first, ...more]) => make("li", {}, ...inline(first), ...markdown(more.join("\n")))));
}

function copying(text) {
  const button = make("button", { type: "button" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed here: the page is not on https or this machine";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  return button;
}

// ---- the talk

function show(kind, text) {
  $("hello").hidden = true;
  const article = make("article", { className: kind }, make("div", {}, text));
  $("talk").append(article);
  article.scrollIntoView({ block: "end" });
  return article;
}

async function findModels() {
  const answer = await ask("v1/models");
  if (!answer.ok) { show("error", await complaint(answer)); return; }
  const served = (await answer.json()).data;
  // Language models first; a model without a task may be one of the server's owner that takes messages.
  const found = [...served.filter((each) => each.task === "text-generation"), ...served.filter((each) => !each.task)];
  $("model").replaceChildren(...found.map((each) => new Option(each.id)));
  $("send").disabled = !found.length;
  if (!found.length) show("error", served.length
    ? `No model here takes chats: ${served.map((each) => each.id).join(", ")}. Routes shows how to call them.`
    : "This server has no model yet.");
}

async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (held + value).split("\n\n");
    held = parts.pop();
    for (const part of parts)
      if (part.startsWith("data: ") && part !== "data: [DONE]") yield JSON.parse(part.slice(6));
  }
}

// Why it took as long as it did, from what the server tells of the answer's way.
function reasons(met, ended) {
  const mean = met.batches.reduce((sum, each) => sum + each, 0) / (met.batches.length || 1);
  const found = [];
  if (met.queued_ms > met.took_ms / 4) found.push("it waited longer for a place than anything else");
  if (met.prefill_chunks > 1) found.push(`its prompt was read in ${met.prefill_chunks} parts, between others' tokens`);
  if (met.cached_tokens) found.push(`${met.cached_tokens} tokens from the cache`);
  if (met.preempted) found.push(`preempted ${met.preempted}×, as the cache was full`);
  found.push(`${mean.toFixed(1)} answers in a batch`);
  if (ended === "length") found.push("cut at the most tokens");
  return found;
}

function figures(article, tokens, first, began, met, ended) {
  const now = performance.now();
  const line = article.querySelector(".figures") || make("div", { className: "figures" });
  const rate = tokens > 1 ? ((tokens - 1) / ((now - first) / 1000)).toFixed(1) : "–";
  const parts = [`${tokens} tokens`, `${rate} tokens/s`, `first after ${Math.round(first - began)} ms`];
  if (met) {
    parts.push(`queued ${met.queued_ms.toFixed(1)} ms`, ...reasons(met, ended));
    const most = Math.max(...met.batches, 1);
    const bars = met.batches.slice(-400).map((each) => {
      const bar = make("i", { title: `${each} answers` });
      bar.style.height = `${100 * each / most}%`;
      return bar;
    });
    article.append(make("div", { className: "strip", title: "answers in each step's batch", ariaHidden: "true" }, ...bars));
  } else if (ended === "length") parts.push("cut at the most tokens");
  line.textContent = parts.join(" · ");
  article.insertBefore(line, article.children[1] || null);
}

function toolsOf(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`The tools are not JSON: ${error.message}`);
  }
}

// A call of a tool; `part`: what is new of it.
function extend(calls, part) {
  const call = calls[part.index] = calls[part.index] || { id: "", type: "function", function: { name: "", arguments: "" } };
  call.id = part.id || call.id;
  call.function.name += part.function.name || "";
  call.function.arguments += part.function.arguments || "";
}

function shown(call) {
  return make("div", { className: "call" }, make("span", {}, `calls ${call.function.name}`), make("pre", {}, make("code", {}, call.function.arguments)));
}

function invite() {
  $("text").placeholder = unanswered.length ? `What ${unanswered[0].function.name} answers. Enter sends it.` : INVITATION;
}

function asked() {
  const system = $("system").value.trim();
  const said = system ? [{ role: "system", content: system }, ...messages] : messages;
  const body = { model: $("model").value, messages: said, stream: true, stream_options: { include_usage: true } };
  if ($("tools").value.trim()) body.tools = toolsOf($("tools").value);
  if ($("temperature").value) body.temperature = Number($("temperature").value);
  if ($("most").value) body.max_completion_tokens = Number($("most").value);
  return { method: "POST", signal: stop.signal, body: JSON.stringify(body),
    headers: { "Content-Type": "application/json", "Headway-Explain": "1" } };
}

async function send(text) {
  const call = unanswered.shift();
  messages.push(call ? { role: "tool", tool_call_id: call.id, content: text } : { role: "user", content: text });
  show("user", text);
  invite();
  if (unanswered.length) return;  // the model goes on when all its calls have results
  const article = show("assistant", ""), body = article.firstChild;
  stop = new AbortController();
  $("send").textContent = "Stop";
  const began = performance.now();
  const calls = [];
  let said = "", thought = "", tokens = 0, first = began, met = null, ended = "", drawing = 0;
  const draw = () => {
    drawing = 0;
    const thinking = make("details", { className: "thinking", open: !said }, make("summary", {}, "What it thought"), make("p", {}, thought));
    body.replaceChildren(...(thought ? [thinking] : []), ...markdown(said), ...calls.map(shown));
    figures(article, tokens, first, began, null, "");
    article.scrollIntoView({ block: "end" });
  };
  try {
    const answer = await ask("v1/chat/completions", asked());
    if (!answer.ok) throw new Error(await complaint(answer));
    for await (const event of events(answer)) {
      if (event.error) throw new Error(event.error.message);
      if (event.headway) met = event.headway[0];
      if (event.usage) tokens = event.usage.completion_tokens;
      const choice = event.choices[0];
      if (choice && choice.finish_reason) ended = choice.finish_reason;
      const { content = "", reasoning_content: reasoning = "", tool_calls: parts = [] } = choice ? choice.delta : {};
      if (!content && !reasoning && !parts.length) continue;
      if (!said && !thought && !calls.length) first = performance.now();
      said += content || "";
      thought += reasoning || "";
      for (const part of parts) extend(calls, part);
      tokens += 1;
      drawing = drawing || setTimeout(draw, 50);
    }
  } catch (error) {
    if (error.name !== "AbortError") show("error", error.message);
  }
  clearTimeout(drawing);
  if (said || thought || calls.length) {
    draw();
    figures(article, tokens, first, began, met, ended);
    article.append(copying(() => said));
    const whole = ended === "tool_calls" ? calls : [];
    messages.push({ role: "assistant", content: said, ...(whole.length ? { tool_calls: whole } : {}) });
    unanswered = [...whole];
    invite();
  } else {
    messages.pop();
    if (call) unanswered = [call];
    invite();
  }
  stop = null;
  $("send").textContent = "Send";
  article.scrollIntoView({ block: "end" });
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (stop) { stop.abort(); return; }
  const text = $("text").value.trim();
  if (!text) return;
  $("text").value = "";
  send(text);
});
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); $("form").requestSubmit(); }
});
$("new").addEventListener("click", () => {
  if (stop) stop.abort();
  messages = [];
  unanswered = [];
  invite();
  $("talk").replaceChildren($("hello"));
  $("hello").hidden = false;
  $("text").focus();
});
const INVITATION = $("text").placeholder;
findModels();
