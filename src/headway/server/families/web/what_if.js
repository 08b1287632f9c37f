// ---- What if: the server simulates the last traffic of a model under other settings

const CHOICES = {  // the first place of a slider leaves the setting as it is
  max_wait_ms: [0, 1, 2, 5, 10, 20, 50, 100, 200],
  max_batch_size: [1, 2, 4, 8, 16, 32, 64, 128, 256],
  slo_ms: [5, 10, 20, 50, 100, 200, 500, 1000, 2000],
};
let simulating = null, soon = 0;

const chosenOf = (name) => CHOICES[name][Number($(`if-${name}`).value) - 1];

function showChoices() {
  for (const name of Object.keys(CHOICES)) {
    const value = chosenOf(name), text = value === undefined ? "as it is" : String(value);
    document.querySelector(`output[for="if-${name}"]`).textContent = text;
    $(`if-${name}`).setAttribute("aria-valuetext", text);
  }
}

function offerWhatIf(models) {
  const chosen = $("if-model").value;
  $("if-model").replaceChildren(...models.map((each) => new Option(each)));
  if (models.includes(chosen)) $("if-model").value = chosen;
}

async function simulate() {
  if (simulating) simulating.abort();  // the newest question counts
  const mine = simulating = new AbortController();
  const cut = $("if-model").value.lastIndexOf(" "), asked = new URLSearchParams({
    model: $("if-model").value.slice(0, cut), version: $("if-model").value.slice(cut + 1) });
  for (const name of Object.keys(CHOICES)) if (chosenOf(name) !== undefined) asked.set(name, chosenOf(name));
  $("if-told").className = "faint";
  $("if-told").textContent = "simulating …";
  try {
    const answer = await ask(`admin/what-if?${asked}`, { signal: mine.signal });
    if (answer.status === 503) { again(1000); return; }  // the one before it is still ending
    if (!answer.ok) throw new Error(await complaint(answer));
    showSimulated(await answer.json());
  } catch (error) {
    if (mine.signal.aborted) return;
    $("if-told").className = "warn";
    $("if-told").textContent = error.message;
  }
}

function showSimulated(found) {
  const { settings } = found;
  const named = Object.entries(settings).map(([name, value]) => `${name} ${value === null ? "not set" : value}`).join(", ");
  $("if-told").textContent = `${number(found.items, 9)} items of the last ${seconds(found.seconds)}; in force: ${named}. `
    + ["Requests that were refused are not in it", ...found.hints].join("; ") + ".";
  const line = (name, each) => [name, seconds(each.p50_ms === null ? null : each.p50_ms / 1000), seconds(each.p99_ms === null ? null : each.p99_ms / 1000),
    number(each.items_per_s), number(each.mean_rows), number(each.refused, 9), share(each.in_time)];
  $("if").hidden = false;
  fill("if", [line("as measured", found.measured), line("simulated, as it is", found.simulated), line("simulated, changed", found.changed)]);
}

function again(after) {
  clearTimeout(soon);
  soon = setTimeout(simulate, after);
}

for (const [name, choices] of Object.entries(CHOICES)) {
  $(`if-${name}`).max = choices.length;
  $(`if-${name}`).addEventListener("input", () => { showChoices(); again(300); });
}
$("if-model").addEventListener("change", () => again(0));
$("if-ask").addEventListener("click", () => again(0));
showChoices();
