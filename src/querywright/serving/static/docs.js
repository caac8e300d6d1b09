// Shows the OpenAPI document of this server, without anything from elsewhere.
"use strict";

const at = (id) => document.getElementById(id);

function make(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function fold(title, data) {
  const made = make("details");
  made.append(make("summary", title), make("pre", JSON.stringify(data, null, 2)));
  return made;
}

function resolved(data, root) {
  if (Array.isArray(data)) return data.map((one) => resolved(one, root));
  if (data === null || typeof data !== "object") return data;
  if (data.$ref) return resolved(data.$ref.slice(2).split("/").reduce((found, key) => found[key], root), root);
  return Object.fromEntries(Object.entries(data).map(([key, one]) => [key, resolved(one, root)]));
}

function operation(path, method, told, root) {
  const made = make("section", undefined, "operation");
  made.append(make("h2", `${method.toUpperCase()} ${path}`), make("p", told.summary));
  if (told.description) made.append(make("p", told.description));
  if (told.requestBody) made.append(fold("Request", resolved(told.requestBody.content["application/json"].schema, root)));
  const table = make("table"), head = make("tr");
  head.append(make("th", "Status"), make("th", "Meaning"));
  table.append(head);
  for (const [status, answer] of Object.entries(told.responses).sort()) {
    const row = make("tr");
    row.append(make("td", status), make("td", answer.description));
    table.append(row);
  }
  const found = told.responses["200"].content["application/json"];
  if (found) made.append(fold("Answer", resolved(found.schema, root)));
  made.append(table);
  return made;
}

async function show(token) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  let answer;
  try {
    answer = await fetch("/openapi.json", { headers });
  } catch {
    at("problem").textContent = "The server does not answer. Load the page again.";
    return;
  }
  at("form").hidden = answer.status !== 401;
  if (!answer.ok) {
    at("problem").textContent = token ? "The token is wrong." : "This server wants a token.";
    return;
  }
  at("problem").textContent = "";
  const root = await answer.json();
  at("operations").replaceChildren(...Object.entries(root.paths).flatMap(
    ([path, methods]) => Object.entries(methods).map(([method, told]) => operation(path, method, told, root)),
  ));
}

at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  show(at("token").value.trim());
});
show("");
