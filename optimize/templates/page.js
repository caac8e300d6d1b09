"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const data = read("report-data");
  const figures = read("report-figures");

  const make = (name, className, ...inside) => {
    const made = document.createElement(name);
    if (className) made.className = className;
    made.append(...inside);
    return made;
  };

  const passage = ([place, label, why]) => {
    const { id, title, text } = data.passages[place];
    const head = make("p", "head", make("b", "", title || id));
    if (label) head.append(" ", make("span", `label ${label}`, label.replace("_", " ")));
    if (why) head.append(" ", make("span", "why", why));
    if (title) head.append(" ", make("span", "id", id));
    return make("li", "passage", head, make("p", "text", text ?? "The text of this passage is not at hand."));
  };

  const list = (title, name, items) => (items.length ? [make("h4", "", title), make(name, "", ...items)] : []);

  const arm = (row, place) => {
    const head = make("summary", "", make("b", "", data.arms[place]), " ");
    head.append(make("span", "mark", make("span", "", row.mark), ` ${row.said}`));
    if (row.stage) head.append(" ", make("span", "stage", row.stage));
    if (row.answer !== undefined) head.append(" ", make("q", "answer", row.answer));
    const queries = (row.queries ?? []).map(([role, text]) => make("li", "", make("b", "", role), `: ${text}`));
    const passages = row.passages ?? [];
    const facts = [...(row.scores ?? []), `LM calls ${row.calls}`];
    if (row.invalid) facts.push("the answer names no option");
    if (row.fallbacks) facts.push(`fallbacks: ${row.fallbacks.join(", ")}`);
    const failure = row.failure ? [make("p", "failure", `Failed (${row.failure}): ${row.message ?? ""}`)] : [];
    return make(
      "details",
      "arm",
      head,
      ...failure,
      make("p", "facts", facts.join(" · ")),
      ...list("Queries", "ul", queries),
      ...list(`Passages, ${passages.length} of ${row.found} found`, "ol", passages.map(passage)),
      ...list("Evidence missed", "ul", (row.missed ?? []).map(passage)),
    );
  };

  const card = ({ id, text, options, answers, arms }, head) => {
    const right = answers.length ? answers.join("; also accepted: ") : "not known";
    const choices = options.map((option) => make("li", "", option));
    return make(
      "div",
      "card",
      ...(text === head ? [] : [make("p", "text", text)]),
      ...(choices.length ? [make("ul", "options", ...choices)] : []),
      make("p", "", make("b", "", "Right answer"), `: ${right} `, make("span", "id", id)),
      ...arms.map(arm),
    );
  };

  const show = (details) => {
    const question = data.questions[details.dataset.question];
    const head = details.querySelector("summary").textContent;
    const row = details.closest("tr");
    if (!row) {
      if (details.open && !details.querySelector(".card")) details.append(card(question, head));
      return;
    }
    const below = row.nextElementSibling;
    const shown = below?.classList.contains("more");
    if (details.open && !shown) {
      const cell = make("td", "", card(question, head));
      cell.colSpan = row.cells.length;
      row.after(make("tr", "more", cell));
    } else if (!details.open && shown) {
      below.remove();
    }
  };

  document.addEventListener(
    "toggle",
    ({ target }) => {
      if (target.dataset?.question !== undefined) show(target);
    },
    true,
  );
  document.querySelectorAll("details[open][data-question]").forEach(show);

  // What all figures have in common; what is particular to one comes with its data.
  const axis = { fixedrange: true, zeroline: false, automargin: true };
  const look = {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 13 },
    showlegend: false,
    legend: { orientation: "h", x: 0, xanchor: "left", y: 1, yanchor: "bottom", traceorder: "normal" },
    dragmode: false,
    hovermode: "closest",
  };
  const told = { cliponaxis: false, hovertemplate: "%{customdata}<extra></extra>" };
  for (const [id, { data: traces, layout }] of Object.entries(figures)) {
    const drawn = traces.map((trace) => (trace.customdata ? { ...told, ...trace } : trace));
    const whole = { ...look, ...layout, margin: { l: 10, r: 28, t: 14, b: 44, ...layout.margin } };
    for (const name of ["xaxis", "yaxis"]) whole[name] = { ...axis, ...layout[name] };
    Plotly.newPlot(id, drawn, whole, { displayModeBar: false, responsive: true });
  }
  const redraw = (change) => Object.keys(figures).forEach((id) => Plotly.relayout(id, change));
  addEventListener("beforeprint", () => redraw({ width: 640 }));
  addEventListener("afterprint", () => redraw({ width: null, autosize: true }));
})();
