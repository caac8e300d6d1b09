// Asks, and shows the answer while it is written. The server's data is set as text, never as markup.
"use strict";

const at = (id) => document.getElementById(id);
let served = null;

function make(tag, text, className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

async function load() {
  served = await (await fetch("/health")).json();
  at("token-row").hidden = !served.token;
  at("served").textContent = [`${served.artifact}: ${served.technique}`, served.reader].filter(Boolean).join(", ");
  at("more").open = ["auto", "multiple_choice"].includes(served.reader);
}

function show(name, data) {
  if (name === "text") at("answer").append(data.text);
  else if (name === "restart") at("answer").textContent = "";
  else if (name === "queries") showQueries(data.queries);
  else if (name === "passages") showPassages(data.passages, []);
  else if (name === "error") fail(data.error.message);
  else if (name === "done") {
    at("answer").textContent = data.answer === null ? "(this program only finds passages)" : data.answer || "(no answer)";
    showQueries(data.queries);
    showPassages(data.passages, data.support || []);
    const notes = [];
    if (data.declined) notes.push("The passages do not answer the question.");
    if (data.fallbacks.length) notes.push(`Steps that fell back to a simpler method: ${data.fallbacks.join(", ")}.`);
    at("notes").textContent = notes.join(" ");
    at("status").textContent = `Answered in ${data.seconds.toFixed(2)} s by version ${data.version}.`;
  }
}

function showQueries(queries) {
  at("queries").replaceChildren(...queries.map((one) => make("li", `${one.role.replaceAll("_", " ")}: ${one.text}`)));
}

function showPassages(passages, support) {
  at("passages").replaceChildren(...passages.map((one) => {
    const item = make("li", "", support.includes(one.id) ? "support" : "");
    item.append(make("h3", one.title || one.id));
    if (item.className) item.append(make("p", "\u2713 supports the answer", "hint"));
    item.append(make("p", one.text));
    return item;
  }));
}

function fail(message) {
  at("answer").textContent = message;
  at("answer").className = "failed";
  at("status").textContent = "No answer.";
}

async function read(stream) { // true if the answer or an error came
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", ended = false;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return ended;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const [name, data] = block.split("\n").map((line) => line.slice(line.indexOf(": ") + 2));
      show(name, JSON.parse(data));
      ended ||= name === "done" || name === "error";
    }
  }
}

async function ask(body) {
  const headers = { "Content-Type": "application/json" };
  if (served.token) headers.Authorization = `Bearer ${at("token").value.trim()}`;
  try {
    const answer = await fetch("/ask", { method: "POST", headers, body: JSON.stringify(body) });
    if (!answer.ok) fail((await answer.json()).error.message);
    else if (!await read(answer.body)) fail("The answer was cut off. Ask again.");
  } catch {
    fail("The server is not responding.");
  }
}

at("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  at("ask").disabled = true;
  at("results").hidden = false;
  for (const id of ["answer", "notes", "passages", "queries"]) at(id).textContent = "";
  at("answer").className = "";
  at("status").textContent = "Waiting for the answer...";
  const body = { question: at("question").value, stream: true };
  const options = at("options").value.split("\n").map((line) => line.trim()).filter(Boolean);
  if (options.length) body.options = options;
  await ask(body);
  at("ask").disabled = false;
});
load();
