// ---- The timetable: a row for each worker, a bar for each batch; and the answers of language models

const REASONS = {
  full: ["#0b7a75", "no row more is allowed"],
  knee: ["#2a9d55", "a larger batch would not pay"],
  budget: ["#7a5cc2", "cost or memory is used up"],
  idle: ["#3b82c4", "a worker was free, and waiting was not expected to pay"],
  linger: ["#d08a1d", "it waited for more items as long as that paid"],
  everyone: ["#b9a11f", "all callers seen lately were there"],
  window: ["#c46a3b", "the oldest had waited its window"],
  deadline: ["#c23b5e", "later would have been too late for one of them"],
  drain: ["#7d8790", "the batcher was closing"],
  retry: ["#b3261e", "its worker was lost: it runs again"],
};
const colour = (reason) => (REASONS[reason] || ["#888"])[0];
const PHASES = { "waits": "#8886", "prompt": "#d08a1d", "tokens": "#3b82c4" };  // of an answer
const MOST_BATCHES = 3000, MOST_LANES = 12;
const ROW = 34, LANE = 12, LEFT = 130;

class Timetable {
  constructor(canvas, choose) {
    this.canvas = canvas;
    this.choose = choose;  // called with a batch
    this.batches = [];
    this.answers = [];
    this.now = 0;
    this.chosen = null;
    canvas.addEventListener("click", (event) => {
      const box = canvas.getBoundingClientRect();
      const found = this.at(event.clientX - box.left, event.clientY - box.top);
      if (found) this.select(found);
    });
    canvas.addEventListener("mousemove", (event) => {
      const box = canvas.getBoundingClientRect();
      const found = this.at(event.clientX - box.left, event.clientY - box.top);
      canvas.title = found ? summary(found) : "";
    });
    canvas.addEventListener("keydown", (event) => this.step(event));
  }

  add(batches, answers, now) {
    this.batches.push(...batches);
    this.batches.splice(0, this.batches.length - MOST_BATCHES);
    this.answers.push(...answers);
    this.answers.splice(0, this.answers.length - MOST_BATCHES);
    this.now = now;
  }

  clear() { this.batches = []; this.answers = []; this.chosen = null; }

  shown() {
    const isChosen = (each) => this.model === ALL || `${each.model} ${each.version}` === this.model;
    const newest = this.batches.filter(isChosen), answers = this.answers.filter(isChosen);
    // Without a span of its own it shows the last batches, however short a time they took.
    const last = [...newest.slice(-60).map((each) => [each.fired_at, each.finished_at]),
      ...answers.slice(-30).map((each) => [each.arrived_at, each.ended_at])];
    const end = this.span || !last.length ? this.now : Math.max(...last.map((each) => each[1]));
    const first = last.length ? Math.min(...last.map((each) => each[0])) : end - 1;
    const span = this.span || Math.max(1e-3, (end - first) * 1.02);
    return { from: end - span, span, batches: newest.filter((each) => each.finished_at >= end - span),
      answers: answers.filter((each) => each.ended_at >= end - span) };
  }

  draw() {
    const { from, span, batches, answers } = this.shown();
    const rows = [...new Set(batches.map(rowOf))].sort(), lanes = lanesOf(answers);
    const canvas = this.canvas, width = canvas.clientWidth, below = rows.length * ROW;
    const height = Math.max(2 * ROW, below + lanes.length * LANE) + 20;
    const ratio = window.devicePixelRatio || 1;
    canvas.style.height = `${height}px`;
    [canvas.width, canvas.height] = [width * ratio, height * ratio];
    const pen = canvas.getContext("2d"), style = getComputedStyle(document.body);
    pen.scale(ratio, ratio);
    pen.font = "12px system-ui, sans-serif";
    const [front, line] = [style.color, style.getPropertyValue("--line")];
    this.bars = [];
    const x = (moment) => LEFT + (moment - from) / span * (width - LEFT);
    rows.forEach((row, n) => {
      pen.fillStyle = line;
      pen.fillRect(0, (n + 1) * ROW - 1, width, 1);
      pen.fillStyle = front;
      pen.fillText(row, 0, n * ROW + 21, LEFT - 8);
    });
    for (const batch of batches) {
      const top = rows.indexOf(rowOf(batch)) * ROW;
      const left = Math.max(LEFT, x(batch.fired_at)), wide = Math.max(1, x(batch.finished_at) - left - .5);
      const tall = Math.max(4, (ROW - 6) * Math.min(1, batch.rows / (batch.batch_cap || batch.rows || 1)));
      const y = top + ROW - 2 - tall;
      pen.fillStyle = colour(batch.reason);
      pen.fillRect(left, y, wide, tall);
      if (batch.padding > 0) {  // the share of its height that was padding is washed out
        pen.fillStyle = "#fff8";
        pen.fillRect(left, y, wide, tall * batch.padding);
      }
      if (batch.lost || batch.failed) {
        pen.fillStyle = style.getPropertyValue("--bad");
        pen.fillRect(left, top + ROW - 4, wide, 3);
      }
      if (this.chosen && this.chosen.number === batch.number) {
        pen.strokeStyle = front;
        pen.lineWidth = 2;
        pen.strokeRect(left, y, wide, tall);
      }
      this.bars.push({ batch, left, right: left + wide, top, bottom: top + ROW });
    }
    lanes.forEach((lane, n) => this.drawLane(pen, lane, below + n * LANE, x, front));
    pen.fillStyle = front;
    const marks = width < 600 ? 2 : 4;
    for (let n = 0; n <= marks; n += 1) {
      pen.textAlign = n === marks ? "right" : "left";
      pen.fillText(n === marks ? "0" : `−${seconds(span * (marks - n) / marks)}`, LEFT + (width - LEFT) * n / marks, height - 5);
    }
    canvas.setAttribute("aria-label", `Timetable: ${batches.length} batches of ${rows.length} workers`
      + `${answers.length ? `, ${answers.length} answers of language models` : ""}, in ${seconds(span)}. `
      + "Left and right arrows choose a batch; the table below has the last of them.");
  }

  // A lane of answers that do not overlap: what each waited, its prompt, its tokens.
  drawLane(pen, { model, answers }, top, x, front) {
    if (model) {
      pen.fillStyle = front;
      pen.fillText(`${model} · answers`, 0, top + LANE - 2, LEFT - 8);
    }
    for (const each of answers) {
      const begun = each.admitted_at ?? each.ended_at, first = each.first_at ?? each.ended_at;
      const parts = [["waits", each.arrived_at, begun], ["prompt", begun, first], ["tokens", first, each.ended_at]];
      for (const [phase, since, until] of parts) {
        const left = Math.max(LEFT, x(since));
        pen.fillStyle = PHASES[phase];
        if (x(until) > left) pen.fillRect(left, top + 1, x(until) - left, LANE - 3);
      }
      const left = Math.max(LEFT, x(each.arrived_at)), right = x(each.ended_at);
      if (this.chosen === each) {
        pen.strokeStyle = front;
        pen.strokeRect(left, top + 1, right - left, LANE - 3);
      }
      this.bars.push({ batch: each, left, right, top, bottom: top + LANE });
    }
  }

  at(x, y) {
    const found = (this.bars || []).filter((each) => each.left - 3 <= x && x <= each.right + 3 && each.top <= y && y < each.bottom);
    const middle = (each) => Math.abs((each.left + each.right) / 2 - x);
    return found.length ? found.reduce((one, other) => (middle(other) < middle(one) ? other : one)).batch : null;
  }

  step(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const shown = this.shown(), batches = [...shown.batches, ...shown.answers].sort((one, other) => one.number - other.number);
    const at = this.chosen ? batches.findIndex((each) => each.number === this.chosen.number) : batches.length;
    const next = batches[Math.min(batches.length - 1, Math.max(0, at + by))];
    if (next) this.select(next);
  }

  select(batch) {
    this.chosen = batch;
    this.draw();
    this.choose(batch);
  }
}

const rowOf = (batch) => `${batch.model} · ${batch.worker}`;
const summary = (each) => ("sequence" in each ? answerSummary(each) : batchSummary(each));
const batchSummary = (batch) => `${batch.model}, batch ${batch.batch}: ${batch.rows} rows in ${batch.ran_ms} ms; `
  + `${batch.reason}: ${(REASONS[batch.reason] || ["", ""])[1]}`;

function answerSummary(each) {
  const ms = (since, until) => (since === null || until === null ? "never" : seconds(until - since));
  return `${each.model}, answer ${each.sequence}: waited ${ms(each.arrived_at, each.admitted_at)}, first token after another `
    + `${ms(each.admitted_at, each.first_at)} (${each.prompt_tokens} tokens of prompt, ${each.cached_tokens} cached, in ${each.chunks} steps), `
    + `then ${each.tokens} tokens in ${ms(each.first_at, each.ended_at)}; `
    + (each.preemptions ? `preempted ${each.preemptions}×, for ${seconds(each.preempted_ms / 1000)}; ` : "") + `ended: ${each.code}`;
}

// Each model's answers, in as few lanes as they need; what does not fit into the most of them is left out.
function lanesOf(answers) {
  const found = [];
  for (const model of new Set(answers.map((each) => each.model))) {
    const lanes = [];
    for (const each of answers.filter((one) => one.model === model).sort((one, other) => one.arrived_at - other.arrived_at)) {
      const lane = lanes.find((one) => one.until <= each.arrived_at);
      if (lane) { lane.answers.push(each); lane.until = each.ended_at; }
      else if (lanes.length < MOST_LANES) lanes.push({ model: lanes.length ? "" : model, answers: [each], until: each.ended_at });
    }
    found.push(...lanes);
  }
  return found;
}
