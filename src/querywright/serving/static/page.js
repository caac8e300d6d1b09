// Asks, and shows the answer while it is written. What a server sends is data: it is set as text, never as markup.
"use strict";

const at = (id) => document.getElementById(id);
const form = at("form"), results = at("results"), problem = at("problem"), status = at("status");
const shortest = 600; // characters of a passage that are shown at once
const hits = 10; // of a search that its step in the trace names
let served = null, needsToken = false, running = null, known = [], chosen = null;

function make(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

async function look() {
  try {
    const answer = await fetch("/health");
    const health = await answer.json();
    served = health.artifact;
    needsToken = health.token;
  } catch {
    at("served").textContent = "The server does not answer. Load the page again.";
    return;
  }
  at("token-row").hidden = !needsToken;
  const reader = served.reader ? `, ${served.reader.replaceAll("_", " ")}` : "";
  at("served").textContent = `${served.name}: ${served.technique}${reader}`;
  if (served.reader === "multiple_choice") at("more").open = true;
  await lookForExamples();
}

function headers() {
  const token = needsToken ? at("token").value.trim() : "";
  return token ? { Authorization: `Bearer ${token}` } : {};
}

async function lookForExamples() {
  if (known.length || (needsToken && !at("token").value.trim())) return;
  try {
    const answer = await fetch("/examples", { headers: headers() });
    if (answer.ok) known = (await answer.json()).examples;
  } catch { return; } // a page without examples asks as well
  at("examples").querySelector("ul").replaceChildren(...known.map((one) => {
    const item = make("li"), button = make("button", one.question);
    button.type = "button";
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => choose(one, button));
    item.append(button);
    return item;
  }));
  at("examples").hidden = !known.length;
}

function choose(example, button) {
  chosen = example;
  for (const one of at("examples").querySelectorAll("button")) one.setAttribute("aria-pressed", String(one === button));
  at("question").value = example.question;
  at("options").value = example.options.join("\n");
  if (example.options.length) at("more").open = true;
  at("history").textContent = example.history.length ? `In a conversation, after: ${example.history.join(" / ")}` : "";
  at("history").hidden = !example.history.length;
  complain("");
  at("ask").focus();
}

function leave() { // the question is another one from now on
  if (!chosen || at("question").value === chosen.question) return;
  chosen = null;
  at("history").hidden = true;
  for (const one of at("examples").querySelectorAll("button")) one.setAttribute("aria-pressed", "false");
}

function inShell(text) { return `'${text.replaceAll("'", "'\\''")}'`; }

function codes(body) {
  const url = `${location.origin}/ask`, json = JSON.stringify(body);
  const token = needsToken ? ' \\\n    -H "Authorization: Bearer $QW_TOKEN"' : "";
  const curl = `curl -s ${url} -H 'Content-Type: application/json'${token} \\\n    -d ${inShell(json)}`;
  const python = [
    needsToken ? "import json, os, urllib.request" : "import json, urllib.request",
    "",
    `asked = ${json}`,
    'headers = {"Content-Type": "application/json"}',
    ...(needsToken ? ['headers["Authorization"] = "Bearer " + os.environ["QW_TOKEN"]'] : []),
    `request = urllib.request.Request("${url}", json.dumps(asked).encode(), headers)`,
    'print(json.load(urllib.request.urlopen(request))["answer"])',
  ].join("\n");
  return [curl, python];
}

async function copy(pre, button) {
  try {
    await navigator.clipboard.writeText(pre.textContent);
  } catch { // browsers give no clipboard to a page without TLS that is not of this machine
    getSelection().selectAllChildren(pre);
    document.execCommand("copy");
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = button.dataset.text; }, 2000);
}

class Answer {
  constructor(body) {
    this.body = body;
    this.golden = chosen;
    this.labels = Object.assign(Object.create(null), chosen?.evidence);
    this.section = at("shown").content.cloneNode(true).querySelector("section");
    this.part = (name) => this.section.querySelector(name);
    const title = this.part("h2");
    title.textContent = served.name;
    title.id = "name";
    this.section.setAttribute("aria-labelledby", title.id);
    this.ended = this.failed = false;
    results.append(this.section);
    this.say("asking");
    this.part(".answer").setAttribute("aria-busy", "true");
  }

  say(text) { this.part(".state").textContent = text; }

  on(name, data) {
    const answer = this.part(".answer");
    if (name === "queries") {
      this.queries(data.queries);
      this.say("searching");
    } else if (name === "passages") {
      this.passages(data.passages, null);
      this.say("reading");
    } else if (name === "text") {
      answer.append(data.text);
    } else if (name === "restart") {
      answer.textContent = "";
    } else if (name === "done") {
      this.done(data);
    } else if (name === "error") {
      this.fail(data.error.message);
    }
  }

  done(data) {
    const answer = this.part(".answer");
    const text = data.answer === null ? "(this program only finds passages)" : data.answer || "(no answer)";
    if (answer.textContent !== text) answer.textContent = text;
    answer.setAttribute("aria-busy", "false");
    this.queries(data.queries);
    this.passages(data.passages, data.support, found(data.trace));
    this.trace(data.trace);
    this.code();
    const notes = [], saved = this.golden?.answer;
    if (saved === data.answer) notes.push("The same as when it was saved.");
    else if (typeof saved === "string") notes.push(`When it was saved: ${saved}`);
    if (data.declined) notes.push("The passages do not answer the question.");
    if (data.fallbacks.length) notes.push(`Fell back to something plainer: ${data.fallbacks.join(", ")}.`);
    this.part(".notes").textContent = notes.join(" ");
    this.say(`answered in ${data.seconds.toFixed(2)} s by version ${data.version}`);
    this.ended = true;
  }

  fail(message) {
    const answer = this.part(".answer");
    answer.textContent = message;
    answer.classList.add("failed");
    answer.setAttribute("aria-busy", "false");
    this.say("failed");
    this.ended = this.failed = true;
  }

  queries(all) {
    const list = this.part(".queries");
    list.replaceChildren(...all.map((query) => {
      const item = make("li");
      item.append(make("span", query.role.replaceAll("_", " "), "role"), make("span", query.text));
      return item;
    }));
    if (!all.length) list.append(make("li", "none: nothing was searched", "empty"));
  }

  passages(all, support, by) {
    const list = this.part(".passages");
    list.replaceChildren(...all.map((passage, place) => this.passage(passage, place + 1, support, by)));
    if (!all.length) list.append(make("li", "none", "empty"));
    if (!by) return;
    const here = new Set(all.map((one) => one.id));
    const lost = Object.keys(this.labels).filter((id) => this.labels[id] !== "NOT_USEFUL" && !here.has(id));
    this.part(".lost").textContent = lost.length ? `Labelled as helpful, but not among them: ${lost.join(", ")}` : "";
  }

  passage(passage, place, support, by) {
    const item = make("li"), label = this.labels[passage.id];
    item.append(make("h4", `${place}. ${passage.title || passage.id}`));
    if (passage.title) item.append(make("span", passage.id, "id"));
    if (label === "ENTAILED" || label === "USEFUL") item.classList.add("decides");
    if (support && support.includes(passage.id)) {
      item.classList.add("support");
      item.append(make("p", "\u2713 the answer rests on this passage", "badge"));
    }
    if (label) {
      const said = { ENTAILED: "it decides the question", USEFUL: "it helps", NOT_USEFUL: "it does not help" }[label];
      item.append(make("p", `labelled ${label}: ${said}`, label === "NOT_USEFUL" ? "badge plain" : "badge"));
    }
    const best = by && by.get(passage.id);
    if (best) item.append(make("p", `score ${best.score.toFixed(3)}, place ${best.rank} for: ${best.query}`, "by"));
    if (passage.text.length <= shortest) {
      item.append(make("p", passage.text));
    } else {
      const more = make("details");
      item.append(make("p", passage.text.slice(0, shortest)));
      more.append(make("summary", "The rest of it"), make("p", passage.text.slice(shortest)));
      item.append(more);
    }
    return item;
  }

  trace(steps) {
    const calls = steps.filter((one) => one.kind === "lm").length;
    const count = (n, one) => `${n} ${one}${n === 1 ? "" : "s"}`;
    this.part(".trace").hidden = !steps.length;
    this.part(".trace summary").textContent = `Trace: ${count(steps.length, "step")}, ${count(calls, "LM call")}`;
    this.part(".trace ol").replaceChildren(...steps.map((step) => {
      const item = make("li"), list = make("dl");
      item.append(make("h4", `${step.kind === "lm" ? "LM" : step.kind}: ${step.name.replaceAll("_", " ")}`), list);
      const searched = Object.keys(step.scores).length > 0;
      for (const [name, value] of searched ? [] : Object.entries(step.given)) add(list, name, value);
      for (const [name, ids] of searched ? Object.entries(step.made) : []) {
        const rest = ids.length > hits ? `, and ${ids.length - hits} more` : "";
        const best = ids.slice(0, hits).map((id, n) => `${id} ${shown(step.scores[name][n])}`);
        add(list, name, best.join(", ") + rest || "nothing");
      }
      if (!searched) add(list, "gave", step.made === null ? "nothing that could be read" : step.made);
      return item;
    }));
  }

  code() {
    const [curl, python] = this.section.querySelectorAll(".code pre");
    [curl.textContent, python.textContent] = codes(this.body);
    this.section.querySelectorAll(".code button").forEach((button, n) => {
      button.dataset.text = button.textContent;
      button.addEventListener("click", () => copy([curl, python][n], button));
    });
    this.part(".code").hidden = false;
  }
}

function shown(score) { return typeof score === "number" ? score.toFixed(3) : ""; }

function add(list, name, value) {
  const text = (one) => (typeof one === "string" ? one : Array.isArray(one) ? one.map(text).join("; ") : JSON.stringify(one));
  const parts = Array.isArray(value) ? value.map(text) : value && typeof value === "object"
    ? Object.entries(value).map(([key, one]) => `${key}: ${text(one)}`) : [text(value)];
  list.append(make("dt", name.replaceAll("_", " ")), make("dd", parts.join("\n")));
}

function found(steps) { // by passage the query whose list has it highest, and its score there
  const best = new Map();
  for (const step of steps.filter((one) => one.kind === "search" && one.name === "passages")) {
    for (const [query, ids] of Object.entries(step.made)) {
      ids.forEach((id, n) => {
        const score = (step.scores[query] || [])[n];
        if (typeof score === "number" && !(best.get(id)?.rank <= n + 1)) best.set(id, { query, rank: n + 1, score });
      });
    }
  }
  return best;
}

async function ask(shown, signal) {
  const sent = { "Content-Type": "application/json", Accept: "text/event-stream", ...headers() };
  const body = JSON.stringify({ ...shown.body, trace: true });
  try {
    const answer = await fetch("/ask", { method: "POST", headers: sent, body, signal });
    if (!answer.ok) {
      const told = await answer.json();
      shown.fail(answer.status === 401 ? "The token is missing or wrong." : told.error.message);
      return;
    }
    await read(answer.body, (name, data) => shown.on(name, data));
    if (!shown.ended) shown.fail("The answer broke off. Ask again.");
  } catch {
    shown.fail(signal.aborted ? "Stopped." : "The server does not answer.");
  }
}

async function read(stream, on) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
      const lines = rest.slice(0, end).split("\n");
      rest = rest.slice(end + 2);
      const name = lines.find((line) => line.startsWith("event: "));
      const data = lines.find((line) => line.startsWith("data: "));
      if (name && data) on(name.slice(7), JSON.parse(data.slice(6)));
    }
  }
}

function complain(text, field) {
  problem.textContent = text;
  for (const one of form.querySelectorAll("textarea, input")) one.removeAttribute("aria-invalid");
  if (field) {
    field.setAttribute("aria-invalid", "true");
    field.focus();
  }
}

function busy(is) { // a button that is really disabled would lose the focus
  at("ask").setAttribute("aria-disabled", String(is));
  at("stop").setAttribute("aria-disabled", String(!is));
}

async function submit(event) {
  event.preventDefault();
  if (running) return;
  const question = at("question").value;
  const options = at("options").value.split("\n").map((line) => line.trim()).filter(Boolean);
  if (!question.trim()) return complain("Write a question first.", at("question"));
  if (options.length === 1) return complain("Give two options or more, or none.", at("options"));
  if (needsToken && !at("token").value.trim()) return complain("This server wants a token.", at("token"));
  if (!served) return complain("The server does not answer. Load the page again.");
  complain("");
  running = new AbortController();
  busy(true);
  status.textContent = "Asking.";
  results.replaceChildren();
  const body = { question };
  if (options.length) body.options = options;
  if (chosen?.history.length) body.history = chosen.history;
  const shown = new Answer(body);
  await ask(shown, running.signal);
  running = null;
  busy(false);
  status.textContent = shown.failed ? "There is no answer." : "The answer is there.";
}

form.addEventListener("submit", submit);
at("question").addEventListener("input", leave);
at("token").addEventListener("change", lookForExamples);
at("stop").addEventListener("click", () => running && running.abort());
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
look();
