async function start() {
  const ready = await fetch(new URL("v2/health/ready", base));
  const answer = await ask("openapi.json");
  if (!answer.ok) throw new Error(await complaint(answer));
  const api = await answer.json();
  $("version").textContent = api.info.version;
  $("state").className = ready.ok ? "good" : "warn";
  $("state").textContent = ready.ok ? "Ready." : "Not ready yet: not every model is, or the server is draining.";
  const served = api["x-headway-models"] || [];
  const path = (id) => Object.keys(api.paths).find((each) =>
    Object.values(api.paths[each]).some((operation) => operation.operationId === id));
  $("models").tBodies[0].append(...served.map((model) => make("tr", {},
    make("th", { scope: "row" }, model.name),
    make("td", {}, make("a", { href: `docs#${model.operation}` }, path(model.operation) || "see the routes")))));
  $("models").hidden = !served.length;
  const chats = (api.paths["/v1/chat/completions"] || {}).post || {};
  $("chat").hidden = Boolean(chats["x-headway-unanswered"]);
}
start().catch((error) => {
  $("state").className = "bad";
  $("state").textContent = `No answer: ${error.message}`;
});
