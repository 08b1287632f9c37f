const LEAST_MS = 1000, MOST_MS = 5000, SHARE = 1 / 10;  // between two looks; more where answers take their time
const RARELY = 5;  // models, workers: every fifth turn
const LATENCY = "headway_item_end_to_end_seconds", FIRST = "headway_time_to_first_token_seconds";
const FOR_OPERATORS = "These are the figures. Only an operator sees batches, workers, incidents and what-if here: "
  + "with a key that has the right admin, or, on a server without keys, if it was started with --admin-without-key.";
const readings = new Readings();
const timetable = new Timetable($("timetable"), (batch) => { showBatch(batch); });
let since = 0, turn = 0, incidents = [], states = new Map(), isPaused = false, waiting = 0, isAsking = false, failed = 0;

// ---- asking: only while somebody looks, and seldom enough to cost the server next to nothing

async function answerOf(path) {
  const answer = await ask(path);
  if (answer.status === 403 && path.startsWith("admin/")) throw Object.assign(new Error(FOR_OPERATORS), { isAnswer: true });
  if (!answer.ok) throw Object.assign(new Error(await complaint(answer)), { isAnswer: true });
  return answer;
}

async function look() {
  clearTimeout(waiting);
  if (isPaused || document.hidden || isAsking) return;
  isAsking = true;
  const began = performance.now();
  const parts = [figures(), batches()];
  if (turn % RARELY === 0) parts.push(models(), workers());
  turn += 1;
  const errors = (await Promise.allSettled(parts)).filter((each) => each.status === "rejected").map((each) => each.reason);
  isAsking = false;
  const lost = errors.find((each) => !each.isAnswer);
  if (lost) {
    failed += 1;
    [since, turn] = [0, 0];  // it may be another server that comes back
    tell("bad", `no answer from the server, asking again: ${lost.message}`);
  } else {
    failed = 0;
    tell("good", "live");
    $("trouble").hidden = !errors.length;
    $("trouble").textContent = [...new Set(errors.map((each) => each.message))].join(" · ");
    draw();
  }
  const took = performance.now() - began;
  waiting = setTimeout(look, lost ? Math.min(2000, 500 * failed) : Math.min(MOST_MS, Math.max(LEAST_MS, took / SHARE)));
}

function tell(kind, text) {
  if ($("state").textContent === text) return;  // it is read aloud whenever it changes
  $("state").className = kind;
  $("state").textContent = text;
}

async function figures() {
  const answer = await answerOf("metrics");
  if (!readings.add(read(await answer.text()))) forget();
}

async function batches() {
  const found = await (await answerOf(`admin/explain?since=${since}&limit=200&items=false`)).json();
  if (found.next < since) { forget(); return; }
  since = found.next;
  timetable.add(found.batches, found.answers, found.now);
  $("sampled").textContent = found.left_out || found.has_gap ? "the newest of each second: there are more than can be drawn" : "";
  incidents = [...incidents, ...found.incidents].slice(-50);
}

async function models() {
  const found = await (await answerOf("admin/models")).json();
  states = new Map(found.models.map((each) => [`${each.name} ${each.version}`, each]));
}

async function workers() {
  const found = await (await answerOf("admin/workers")).json();
  fill("workers", found.workers.map((each) => [`${each.model} ${each.version}`, each.pid, each.state, each.restarts, each.last_error]));
}

function forget() {
  timetable.clear();
  [since, turn, incidents, states] = [0, 0, [], new Map()];
}

// ---- drawing

function fill(id, rows) {
  $(id).tBodies[0].replaceChildren(...rows.map(([first, ...cells]) =>
    make("tr", {}, make("th", { scope: "row" }, first), ...cells.map((each) => make("td", {}, each === null || each === undefined ? "–" : each)))));
}

function tile(name, value, more = "") {
  return make("div", {}, make("dt", {}, name), make("dd", {}, value, make("small", {}, more)));
}

function chart(title, value, lines, goal = null) {
  const all = lines.flat().filter((each) => each !== null && Number.isFinite(each));
  const top = Math.max(...all, goal || 0) || 1, svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 300 60");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${title}: now ${value}, at most ${number(top)}`);
  const path = (points, kind) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", "path");
    let pen = "M", text = "";
    points.forEach((each, n) => {
      if (each === null || !Number.isFinite(each)) { pen = "M"; return; }
      text += `${pen}${(300 * (n + 1) / points.length).toFixed(1)} ${(58 - 56 * each / top).toFixed(1)}`;
      pen = "L";
    });
    made.setAttribute("d", text);
    made.setAttribute("class", kind);
    svg.append(made);
  };
  if (goal !== null) path([goal, goal], "goal");
  lines.forEach((points, n) => path(points.length === 1 ? [points[0], points[0]] : points, n ? "second" : ""));
  return make("figure", {}, make("figcaption", {}, title, make("b", {}, value)), svg);
}

function draw() {
  timetable.model = $("model").value;
  timetable.span = Number($("zoom").value);
  timetable.draw();
  drawBatches();
  $("incidents").replaceChildren(...incidents.slice(-20).reverse().map((each) =>
    make("li", {}, `${new Date(each.at * 1000).toLocaleTimeString()} ${each.model}: ${each.kind}: ${each.message}`)));
  if (!readings.last) return;
  offerModels();
  const model = $("model").value, span = readings.within(Number($("span").value), model);
  drawTiles(span, model);
  drawReasons(span);
  drawTroubles(span);
  drawCharts(readings.spans(model), model);
  drawModels();
}

function offerModels() {
  const known = [...readings.last.models.keys()].sort(), shown = [...$("model").options].slice(1).map((each) => each.value);
  if (known.join("\n") === shown.join("\n")) return;
  const chosen = $("model").value;
  $("model").replaceChildren(new Option("all", ALL), ...known.map((each) => new Option(each)));
  $("model").value = known.includes(chosen) ? chosen : ALL;
  offerWhatIf(known);
}

function drawTiles(span, model) {
  const server = readings.last.server, slo = model === ALL ? undefined : span.gauge("headway_slo_seconds");
  const outcomes = span.divided("headway_slo_items_total"), judged = span.total("headway_slo_items_total");
  const hasItems = span.gauge("headway_queue_rows") !== undefined;  // else all of them write text
  const tiles = hasItems ? [
    ["items/s", number(span.rate(`${LATENCY}_count`)), `${number(span.count(`${LATENCY}_count`), 9)} answered`],
    ["p50", seconds(span.quantile(.5, LATENCY)), "from queued to answered"],
    ["p99", seconds(span.quantile(.99, LATENCY)), slo ? `SLO ${seconds(slo)}` : judged ? "each model has its SLO" : "no SLO"],
    ["in time", share(judged ? outcomes.in_time / judged : null), judged ? `of ${number(judged, 9)}` : "no SLO"],
    ["queued rows", number(span.gauge("headway_queue_rows"), 9), `${seconds(span.gauge("headway_queue_seconds"))} of work`],
    ["batches/s", number(span.seconds > 0 ? span.total("headway_batch_rows_count") / span.seconds : null), `${number(span.total("headway_batch_rows_count"), 9)} batches`],
    ["rows in a batch", number(span.total("headway_batch_rows_count") ? span.total("headway_batch_rows_sum") / span.total("headway_batch_rows_count") : null), "mean"],
    ["padding", share(span.mean("headway_batch_padding_ratio")), "mean share of a batch"],
    ["refused", number(span.total("headway_items_refused_total"), 9), `${number(span.count("headway_items_failed_total"), 9)} failed`],
  ] : [];
  tiles.push(
    ["load", share(server.get("headway_load_utilization")), "of what the workers can do"],
    ["memory", bytes(server.get("process_resident_memory_bytes")), server.has("nv_gpu_memory_used_bytes")
      ? `GPUs ${bytes(server.get("nv_gpu_memory_used_bytes"))} of ${bytes(server.get("nv_gpu_memory_total_bytes"))}` : "of the server's process"],
  );
  const answered = span.total("headway_request_success_total");
  if (span.gauge("headway_generation_tokens_total") !== undefined) tiles.push(
    ["answers/s", number(span.seconds > 0 ? answered / span.seconds : null), `${number(answered, 9)} answered`],
    ["tokens/s", number(span.rate("headway_generation_tokens_total")), `${number(span.count("headway_generation_tokens_total"), 9)} tokens`],
    ["first token, p50", seconds(span.quantile(.5, FIRST)), `p99 ${seconds(span.quantile(.99, FIRST))}`],
    ["answers running", number(span.gauge("headway_num_requests_running"), 9), `${number(span.gauge("headway_num_requests_waiting"), 9)} wait`],
    ["KV cache", share(span.gauge("headway_kv_cache_usage_perc")), `${number(span.count("headway_num_preemptions_total"), 9)} preempted`],
    ["prompts from the cache", share(span.count("headway_prefix_cache_queries_total") ? span.count("headway_prefix_cache_hits_total") / span.count("headway_prefix_cache_queries_total") : null), "of their tokens"],
  );
  $("tiles").replaceChildren(...tiles.map((each) => tile(...each)));
}

function drawReasons(span) {
  const counts = span.divided("headway_batch_rows_count"), rows = span.divided("headway_batch_rows_sum");
  const all = span.total("headway_batch_rows_count") || 1;
  fill("reasons", Object.entries(counts).filter((each) => each[1]).sort((one, other) => other[1] - one[1]).map(([reason, count]) => {
    const bar = make("span", { className: "bar" });
    bar.style.width = `${8 * count / all}rem`;
    bar.style.background = colour(reason);
    return [make("span", { title: (REASONS[reason] || ["", ""])[1] }, reason), number(count, 9),
      make("span", {}, bar, share(count / all)), number(rows[reason] / count)];
  }));
}

function drawTroubles(span) {
  const one = (what, name) => [what, span.count(name)];
  const refused = Object.entries(span.divided("headway_items_refused_total")).map(([reason, count]) => [`refused: ${reason}`, count]);
  const left = Object.entries(span.divided("headway_items_cancelled_total")).map(([started, count]) => [`left ${started === "true" ? "after" : "before"} it ran`, count]);
  fill("troubles", [...refused, one("failed", "headway_items_failed_total"), ...left,
    one("reruns", "headway_batch_reruns_total"), one("batches lost", "headway_batches_lost_total"),
    one("out of memory", "headway_out_of_memory_total"), one("workers restarted", "headway_worker_restarts_total"),
    one("crashes", "headway_crashes_total")].map(([what, count]) => [what, number(count, 9), number(span.seconds > 0 ? count / span.seconds : null)]));
}

function drawCharts(spans, model) {
  const last = spans[spans.length - 1];
  if (!last) return;
  const slo = model === ALL ? undefined : last.gauge("headway_slo_seconds");
  const line = (of) => spans.map((each) => { const value = of(each); return value === undefined ? null : value; });
  const made = (title, show, of, goal) => chart(title, show(of(last)), [line(of)], goal);
  const per = (name) => (each) => (each.seconds > 0 ? each.total(name) / each.seconds : null);
  const charts = last.gauge("headway_queue_rows") === undefined ? [] : [
    made("items/s", number, (each) => each.rate(`${LATENCY}_count`)),
    chart("p50, p99", `${seconds(last.quantile(.5, LATENCY))}, ${seconds(last.quantile(.99, LATENCY))}`,
      [line((each) => each.quantile(.5, LATENCY)), line((each) => each.quantile(.99, LATENCY))], slo || null),
    made("queued rows", number, (each) => each.gauge("headway_queue_rows")),
    made("work queued", seconds, (each) => each.gauge("headway_queue_seconds")),
    made("batches/s", number, per("headway_batch_rows_count")),
    made("padding", share, (each) => each.mean("headway_batch_padding_ratio")),
    made("refused/s", number, per("headway_items_refused_total")),
  ];
  if (model !== ALL && charts.length) charts.push(
    made("max rows", number, (each) => each.gauge("headway_batch_cap_rows")),
    made("max wait", seconds, (each) => each.gauge("headway_linger_cap_seconds")));
  if (last.gauge("headway_generation_tokens_total") !== undefined) charts.push(
    made("tokens/s", number, (each) => each.rate("headway_generation_tokens_total")),
    made("KV cache", share, (each) => each.gauge("headway_kv_cache_usage_perc"), 1),
    made("answers running", number, (each) => each.gauge("headway_num_requests_running")));
  $("charts").replaceChildren(...charts);
}

function drawModels() {
  const names = new Set([...readings.last.models.keys(), ...states.keys()]);
  fill("models", [...names].sort().map((name) => {
    const span = readings.within(Number($("span").value), name), known = states.get(name);
    const judged = span.total("headway_slo_items_total"), doing = (state) => number(span.gauge(`headway_workers|${state}`), 9);
    const state = known ? known.state.toLowerCase() : { 1: "ready", 0: "not ready" }[span.gauge("headway_model_ready")];
    return [name, make("span", { className: state === "ready" ? "good" : "warn", title: known ? known.reason : "" }, state || "–"),
      number(span.rate(`${LATENCY}_count`)), seconds(span.quantile(.5, LATENCY)), seconds(span.quantile(.99, LATENCY)),
      seconds(span.gauge("headway_slo_seconds")), share(judged ? span.count("headway_slo_items_total|in_time") / judged : null),
      number(span.gauge("headway_queue_rows"), 9), seconds(span.gauge("headway_queue_seconds")),
      number(span.gauge("headway_batch_cap_rows"), 9), seconds(span.gauge("headway_linger_cap_seconds")),
      `${doing("busy")} busy, ${doing("idle")} idle, ${doing("away")} away`];
  }));
}

function drawBatches() {
  if ($("batches").contains(document.activeElement)) return;  // somebody is choosing one
  fill("batches", timetable.shown().batches.slice(-20).reverse().map((each) => {
    const button = make("button", { type: "button" }, String(each.batch));
    button.addEventListener("click", () => timetable.select(each));
    return [button, `${each.model} ${each.version}`, each.worker, each.reason, `${each.rows} of ${each.batch_cap}`,
      seconds(each.ran_ms / 1000), share(each.padding)];
  }));
}

// ---- one batch, and one request

async function showBatch(batch) {
  const panel = $("batch");
  panel.hidden = false;
  panel.replaceChildren(make("strong", {}, summary(batch)));
  if ("sequence" in batch) return;  // an answer: that is all that is known of it
  try {
    const path = `admin/explain?batch=${batch.batch}&model=${encodeURIComponent(batch.model)}&since=${batch.number - 1}`;
    const found = (await (await answerOf(path)).json()).batches.find((each) => each.number === batch.number);
    if (timetable.chosen !== batch) return;  // another one has been chosen meanwhile
    if (!found) { panel.append(make("p", {}, "It is kept no longer.")); return; }
    panel.append(make("p", {}, found.text), make("p", {}, `${seconds(found.ran_ms / 1000)}`
      + (found.predicted_ms === null ? "" : `, ${seconds(found.predicted_ms / 1000)} expected`)
      + ` · ${share(found.padding)} padding · at most ${found.batch_cap} rows would have paid, and a wait of ${seconds(found.linger_cap_ms / 1000)}`
      + (found.lost ? ` · lost: ${found.lost}` : "") + (found.failed ? ` · ${found.failed} failed` : "")), itemsOf(found));
  } catch (error) {
    panel.append(make("p", { className: "bad" }, error.message));
  }
}

function itemsOf(batch) {
  const names = ["Item", "Request", "Queued", "Lingered", "Rows", "Size", "Class", "Tenant"];
  const rows = batch.items.slice(0, 200).map((each) => {
    const cells = [each.id, each.request ? whyOf(each.request) : "–", seconds(each.queued_ms / 1000), seconds(each.lingered_ms / 1000),
      each.rows, each.size, each.priority, each.tenant || "–"];
    return make("tr", {}, ...cells.map((cell) => make("td", {}, cell)));
  });
  return make("div", { className: "wide" }, make("table", {}, make("thead", {},
    make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name)))), make("tbody", {}, ...rows)));
}

function whyOf(id) {
  const button = make("button", { type: "button", title: "why did it take as long as it did?" }, id);
  button.addEventListener("click", async () => {
    let text;
    try {
      const found = await (await answerOf(`admin/explain/requests?id=${encodeURIComponent(id)}`)).json();
      text = found.requests.map((each) => each.text.join("\n")).join("\n");
    } catch (error) {
      text = error.message;
    }
    $("batch").append(make("pre", {}, text));
  });
  return button;
}

// ---- the start

const PARTS = Object.entries(PHASES).map(([phase, paint]) => [phase, [paint, "of an answer of a language model"]]);
$("legend").append(...[...Object.entries(REASONS), ...PARTS].map(([reason, [paint, meaning]]) => {
  const square = make("i");
  square.style.background = paint;
  return make("span", { title: meaning }, square, reason);
}));
for (const id of ["model", "span", "zoom"]) $(id).addEventListener("change", draw);
$("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  $("pause").setAttribute("aria-pressed", isPaused);
  $("pause").textContent = isPaused ? "Go on" : "Pause";
  if (isPaused) tell("warn", "paused");
  look();
});
document.addEventListener("visibilitychange", look);
window.addEventListener("resize", () => timetable.draw());
look();
