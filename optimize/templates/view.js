"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const el = (tag, given = {}, ...inside) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(given)) name in made ? (made[name] = value) : made.setAttribute(name, value);
    made.append(...inside.flat(9).filter((one) => one || one === 0));
    return made;
  };
  const { references, ...given } = JSON.parse($("given").textContent);
  let runs = given.runs;
  const marked = [];
  const breaks = (name) => name.split(/(?<=[:,@/])/).flatMap((part) => [part, el("wbr")]);
  const percent = (value) => (typeof value === "number" ? (100 * value).toFixed(1) : "-");
  const spread = (mean) => typeof mean?.low === "number" ? ` [${percent(mean.low)}, ${percent(mean.high)}]` : "";
  const best = (run) => {
    const arms = run.arms.filter((arm) => !references.includes(arm.name));
    const scored = arms.filter((arm) => typeof arm.metrics[run.metric]?.value === "number");
    const top = scored.sort((a, b) => b.metrics[run.metric].value - a.metrics[run.metric].value)[0];
    return top ? `${top.name} ${percent(top.metrics[run.metric].value)} ${run.metric}` : "-";
  };

  // The list.
  let [order, away] = ["date", -1];
  const columns = { run: (one) => one.place, kind: (one) => one.kind, date: (one) => one.date, arms: (one) => one.arms.length, best };
  for (const head of document.querySelectorAll(".runs thead th")) {
    const name = head.textContent;
    if (!(name in columns)) continue;
    const button = el("button", { type: "button", className: "sort" }, name);
    button.addEventListener("click", () => ([order, away] = [name, order === name ? -away : 1], list()));
    head.replaceChildren(button);
  }
  const list = () => {
    const wanted = $("search").value.toLowerCase();
    const kinds = [...new Set(runs.map((one) => one.kind))].sort();
    if ($("kind").options.length !== kinds.length + 1) {
      const kept = $("kind").value;
      $("kind").replaceChildren(el("option", { value: "" }, "all"), ...kinds.map((kind) => el("option", {}, kind)));
      $("kind").value = kinds.includes(kept) ? kept : "";
    }
    const said = (one) => [one.place, one.title, one.verdict, ...one.arms.map((arm) => arm.name)].join("\n").toLowerCase();
    const picked = runs.filter((one) => (!$("kind").value || one.kind === $("kind").value) && said(one).includes(wanted));
    const key = columns[order];
    picked.sort((a, b) => away * (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0));
    $("runs").replaceChildren(...picked.map((one) => {
      const box = el("input", { type: "checkbox", checked: marked.includes(one.id), ariaLabel: `${one.place} side by side` });
      box.addEventListener("change", () => {
        if (box.checked) marked.push(one.id);
        else marked.splice(marked.indexOf(one.id), 1);
        if (marked.length > 2) marked.shift();
        list();
      });
      const name = el("a", { href: `/open?id=${encodeURIComponent(one.id)}` }, one.place);
      return el("tr", {}, el("td", {}, box), el("th", { scope: "row" }, name, el("br"), el("small", {}, one.title, one.verdict && ` · ${one.verdict}`)), el("td", {}, one.kind),
        el("td", {}, new Date(1000 * one.date).toLocaleString([], { dateStyle: "medium", timeStyle: "short" })),
        el("td", {}, `${one.arms.length}`), el("td", {}, best(one)));
    }));
    $("count").textContent = `${picked.length} of ${runs.length}`;
    beside();
  };

  // Two runs: arms and metrics side by side, with the differences.
  const beside = () => {
    const [a, b] = marked.map((id) => runs.find((one) => one.id === id));
    $("hint").hidden = Boolean(a && b);
    if (!a || !b) return $("pair").replaceChildren();
    const rows = [...new Set([...a.arms, ...b.arms].map((arm) => arm.name))].flatMap((name) => {
      const [x, y] = [a, b].map((run) => run.arms.find((arm) => arm.name === name)?.metrics || {});
      return [...new Set([...Object.keys(x), ...Object.keys(y)])].map((metric) => {
        const lead = x[metric] && y[metric] ? 100 * (y[metric].value - x[metric].value) : NaN;
        return el("tr", {}, el("th", { scope: "row" }, breaks(name)), el("td", {}, metric),
          ...[x, y].map((one) => el("td", {}, percent(one[metric]?.value), el("small", {}, spread(one[metric])))),
          el("td", { className: lead > 0 ? "better" : lead < 0 ? "worse" : "" }, isNaN(lead) ? "-" : (lead > 0 ? "+" : "") + lead.toFixed(1)));
      });
    });
    $("pair").replaceChildren(el("div", { className: "box", role: "region", ariaLabel: "Side by side", tabIndex: 0 }, el("table", {},
      el("thead", {}, el("tr", {}, ...["arm", "metric", a.place, b.place, "difference"].map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, ...rows))));
  };

  const follow = async () => {
    try {
      const before = JSON.stringify(runs);
      runs = await (await fetch("/runs")).json();
      if (JSON.stringify(runs) !== before) list();
    } catch {
      $("count").textContent = "the viewer has stopped";
    }
  };
  $("search").addEventListener("input", list);
  $("kind").addEventListener("input", list);
  list();
  setInterval(() => document.hidden || follow(), 2000);
})();
