// Asks, and shows the answer while it is written. What a server sends is data: it is set as text, never as markup.
"use strict";

const at = (id) => document.getElementById(id);
const form = at("form"), results = at("results"), problem = at("problem"), status = at("status");
const shortest = 600; // characters of a passage that are shown at once
let served = [], needsToken = false, running = null;

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
    served = health.artifacts;
    needsToken = health.token;
  } catch {
    at("served").textContent = "The server does not answer. Load the page again.";
    return;
  }
  at("token-row").hidden = !needsToken;
  at("served").textContent = served
    .map((one) => `${one.name}: ${one.technique}${one.reader ? ", " + one.reader.replaceAll("_", " ") : ""}`)
    .join("  |  ");
  if (served.some((one) => one.reader === "multiple_choice")) at("more").open = true;
}

class Column {
  constructor(artifact) {
    this.artifact = artifact;
    this.section = at("column").content.cloneNode(true).querySelector("section");
    this.part = (name) => this.section.querySelector(name);
    const title = this.part("h2");
    title.textContent = artifact.name;
    title.id = `name-${served.indexOf(artifact)}`;
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
    this.passages(data.passages, data.support);
    const notes = [];
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

  passages(all, support) {
    const list = this.part(".passages");
    list.replaceChildren(...all.map((passage) => this.passage(passage, support)));
    if (!all.length) list.append(make("li", "none", "empty"));
  }

  passage(passage, support) {
    const item = make("li");
    item.append(make("h4", passage.title || passage.id));
    if (passage.title) item.append(make("span", passage.id, "id"));
    if (support && support.includes(passage.id)) {
      item.className = "support";
      item.append(make("p", "\u2713 the answer rests on this passage", "badge"));
    }
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
}

async function ask(column, question, options, signal) {
  const headers = { "Content-Type": "application/json", Accept: "text/event-stream" };
  if (needsToken) headers.Authorization = `Bearer ${at("token").value.trim()}`;
  const body = JSON.stringify({ question, options, artifact: column.artifact.name });
  try {
    const answer = await fetch("/ask", { method: "POST", headers, body, signal });
    if (!answer.ok) {
      const told = await answer.json();
      column.fail(answer.status === 401 ? "The token is missing or wrong." : told.error.message);
      return;
    }
    await read(answer.body, (name, data) => column.on(name, data));
    if (!column.ended) column.fail("The answer broke off. Ask again.");
  } catch {
    column.fail(signal.aborted ? "Stopped." : "The server does not answer.");
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
  if (!served.length) return complain("The server does not answer. Load the page again.");
  complain("");
  running = new AbortController();
  busy(true);
  status.textContent = "Asking.";
  results.replaceChildren();
  const columns = served.map((artifact) => new Column(artifact));
  await Promise.all(columns.map((one) => ask(one, question, options.length ? options : null, running.signal)));
  running = null;
  busy(false);
  const failed = columns.filter((one) => one.failed).map((one) => one.artifact.name);
  if (failed.length) status.textContent = `No answer from ${failed.join(", ")}.`;
  else status.textContent = columns.length > 1 ? "All answers are there." : "The answer is there.";
}

form.addEventListener("submit", submit);
at("stop").addEventListener("click", () => running && running.abort());
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
look();
