// ---- The timetable: a row for each worker, a bar for each batch

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
const MOST_BATCHES = 3000;
const ROW = 34, LEFT = 130;

class Timetable {
  constructor(canvas, choose) {
    this.canvas = canvas;
    this.choose = choose;  // called with a batch
    this.batches = [];
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

  add(batches, now) {
    this.batches.push(...batches);
    this.batches.splice(0, this.batches.length - MOST_BATCHES);
    this.now = now;
  }

  clear() { this.batches = []; this.chosen = null; }

  shown() {
    const newest = this.batches.filter((each) => this.model === ALL || `${each.model} ${each.version}` === this.model);
    const end = this.span ? this.now : (newest.length ? newest[newest.length - 1].finished_at : this.now);
    // Without a span of its own it shows the last batches, however short a time they took.
    const first = newest[Math.max(0, newest.length - 60)];
    const span = this.span || Math.max(1e-3, first ? (end - first.fired_at) * 1.02 : 1);
    return { from: end - span, span, batches: newest.filter((each) => each.finished_at >= end - span) };
  }

  draw() {
    const { from, span, batches } = this.shown();
    const rows = [...new Set(batches.map(rowOf))].sort();
    const canvas = this.canvas, width = canvas.clientWidth, height = Math.max(2, rows.length) * ROW + 20;
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
    pen.fillStyle = front;
    const marks = width < 600 ? 2 : 4;
    for (let n = 0; n <= marks; n += 1) {
      pen.textAlign = n === marks ? "right" : "left";
      pen.fillText(n === marks ? "0" : `−${seconds(span * (marks - n) / marks)}`, LEFT + (width - LEFT) * n / marks, height - 5);
    }
    canvas.setAttribute("aria-label", `Timetable: ${batches.length} batches of ${rows.length} workers in ${seconds(span)}. `
      + "Left and right arrows choose a batch; the table below has the last of them.");
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
    const { batches } = this.shown();
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
const summary = (batch) => `${batch.model}, batch ${batch.batch}: ${batch.rows} rows in ${batch.ran_ms} ms; `
  + `${batch.reason}: ${(REASONS[batch.reason] || ["", ""])[1]}`;
