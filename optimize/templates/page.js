"use strict";
(async () => {
  const $ = (id) => document.getElementById(id);
  const all = (which, inside = document) => [...inside.querySelectorAll(which)];
  const el = (tag, given = {}, ...inside) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(given)) name in made ? (made[name] = value) : made.setAttribute(name, value);
    made.append(...inside.flat(9).filter((one) => one || one === 0));
    return made;
  };

  // Tables: each heading is a button that sorts; long tables can be searched.
  const number = (text) => parseFloat((/-?[\d.]*\d/.exec(text) || [""])[0]);
  const before = (a, b) => {
    const [x, y] = [number(a), number(b)];
    if (/^[a-z]*\s*[=<]?\s*[-+−]?[\d.]/i.test(a + b) || isNaN(x) !== isNaN(y)) {
      if (x !== y && !(isNaN(x) && isNaN(y))) return isNaN(x) ? -1 : isNaN(y) ? 1 : x - y;
    }
    return a.localeCompare(b, undefined, { numeric: true });
  };
  const sortable = (table) => {
    const heads = all("thead th", table);
    heads.forEach((head, place) => {
      const button = el("button", { type: "button", className: "sort" }, ...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") !== "descending";
        heads.forEach((one) => one.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const text = (row) => row.cells[place]?.textContent.replace("−", "-") || "";
        const rows = [...table.tBodies[0].rows].sort((a, b) => (down ? -1 : 1) * before(text(a), text(b)));
        table.tBodies[0].append(...rows);
      });
    });
    if (table.tBodies[0].rows.length > 20) {
      const box = el("input", { type: "search", placeholder: "Search these rows", ariaLabel: "Search these rows" });
      box.addEventListener("input", () => {
        const wanted = box.value.toLowerCase();
        for (const row of table.tBodies[0].rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
      });
      table.closest(".box").before(el("p", { className: "tools" }, box));
    }
  };
  all("table").forEach(sortable);

  for (const button of all("[data-copy]")) {
    button.addEventListener("click", async () => {
      const text = button.previousElementSibling;
      getSelection().selectAllChildren(text);
      try {
        await navigator.clipboard.writeText(text.textContent);
        button.textContent = "Copied";
      } catch {
        button.textContent = document.execCommand("copy") ? "Copied" : "Selected: press Ctrl+C";
      }
    });
  }

  // Show one metric at a time: figures, verdicts, and the questions' marks.
  const unpacked = (id) => {
    const packed = atob($(id).textContent);
    const bytes = new Uint8Array(packed.length);
    for (let at = 0; at < packed.length; at++) bytes[at] = packed.charCodeAt(at);
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  const data = JSON.parse(await unpacked("report-data"));
  const chooser = $("metric");
  let metric = data.metric;
  const choose = () => {
    for (const one of all("[data-metric]")) one.hidden = one.dataset.metric !== metric;
    if (data.questions.length) listed();
  };
  if (chooser) {
    chooser.closest("p").hidden = false;
    chooser.addEventListener("change", () => ((metric = chooser.value), choose()));
  }
  if (!data.questions.length) return choose();

  // The questions: rows are stored as data and drawn on demand.
  const STEP = 200;
  const { arms, questions, passages, texts, labels, stages } = data;
  questions.forEach((one, place) => {
    one.place = place;
    one.rows = one.rows.map(([s, q, p, l, n, more]) => ({ s, q, p, l, n, ...more }));
  });
  const text = (place) => (place === undefined || place < 0 ? "" : texts[place]);
  const score = (row, name = metric) => row.s[data.metrics.indexOf(name)] ?? NaN;
  const base = (one) => score(one.rows[data.baseline]);
  const mark = (one, row) => {
    const value = score(row);
    if (row.f) return ["!", "failed", ""];
    if (isNaN(value)) return ["-", "not scored", ""];
    const lead = isNaN(base(one)) ? 0 : Math.round((value - base(one)) * 1e12);
    const [no, yes] = data.reads.includes(metric) ? ["wrong", "right"] : ["no", "yes"];
    const [sign, word] = value === 1 ? ["✓", yes] : value === 0 ? ["✗", no] : Array(2).fill(value.toFixed(2));
    return [sign, word, lead > 0 ? "better" : lead < 0 ? "worse" : ""];
  };
  const marked = (one, row) => {
    const [sign, word, against] = mark(one, row);
    const said = word + (against && `, ${against} than the baseline`);
    return el("span", { className: against, title: said }, sign + ({ better: "▲", worse: "▼" }[against] || ""),
      el("span", { className: "said" }, said));
  };
  const shown = {
    all: () => true,
    differ: (one) => new Set(one.rows.map((row) => mark(one, row)[1])).size > 1,
    better: (one, some) => some.some((row) => mark(one, row)[2] === "better"),
    worse: (one, some) => some.some((row) => mark(one, row)[2] === "worse"),
    failed: (one, some) => some.some((row) => row.f),
  };
  stages.forEach((_, place) => (shown[`stage ${place}`] = (one, some) => some.some((row) => row.g === place)));
  const [search, show, whose, body, count, more] = ["search", "show", "whose", "rows", "count", "more"].map($);
  let [drawn, picked, at, order, away] = [STEP, [], 0, null, 1];
  const listed = () => {
    const wanted = search.value.toLowerCase();
    const some = (one) => (whose.value === "" ? one.rows : [one.rows[whose.value]]);
    const said = (one) => [one.q, one.id, ...one.answers, ...one.rows.map((row) => row.a)].map(text).join("\n").toLowerCase();
    picked = questions.filter((one) => shown[show.value](one, some(one)) && (!wanted || said(one).includes(wanted)));
    const key = (one) => (order < 0 ? text(one.q).toLowerCase() : score(one.rows[order]));
    const missing = (value) => (value !== value ? -Infinity : value);
    if (order !== null) picked.sort((a, b) => ((x, y) => away * (x < y ? -1 : x > y ? 1 : 0))(missing(key(a)), missing(key(b))));
    body.replaceChildren(...picked.slice(0, drawn).map((one, place) => {
      const opens = el("button", { type: "button", className: "opens" }, text(one.q));
      opens.addEventListener("click", () => open(place));
      return el("tr", {}, el("th", { scope: "row" }, opens), one.rows.map((row) => el("td", {}, marked(one, row))));
    }));
    count.textContent = `${picked.length} of ${questions.length} questions`;
    more.hidden = picked.length <= drawn;
    more.textContent = `Show ${Math.min(STEP, picked.length - drawn)} more`;
  };
  for (const one of [search, show, whose]) one.addEventListener("input", () => ((drawn = STEP), listed()));
  more.addEventListener("click", () => ((drawn += STEP), listed()));
  all("#questions thead th").forEach((head, place, heads) => {
    const button = head.firstElementChild;  // replaces sorting of only the drawn rows
    button.replaceWith(button.cloneNode(true));
    head.firstElementChild.addEventListener("click", () => {
      away = order === place - 1 ? -away : place ? -1 : 1;
      order = place - 1;
      heads.forEach((one) => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", away < 0 ? "descending" : "ascending");
      listed();
    });
  });

  // A question: what each arm searched, found, and answered, side by side.
  const dialog = $("question");
  const off = new Set();
  const badge = (label, by) => label >= 0 && el("span", {},
    el("span", { className: `label ${labels[label]}` }, labels[label].replace("_", " ")), by && el("small", {}, ` by ${by}`));
  const named = (key) => passages[key].t >= 0 ? [el("b", {}, text(passages[key].t)), " ", el("small", {}, text(passages[key].id))] : el("b", {}, text(passages[key].id));
  const passage = (one, key, label, note, why = "") => el("li", { className: why },
    el("details", {}, el("summary", {}, named(key), " ", badge(label, one.by[key]) || "", note && el("em", {}, ` ${note}`)),
      el("p", { className: "text" }, passages[key].x >= 0 ? text(passages[key].x) : "The text of this passage is not available.")));
  const hasPrompts = $("report-prompts").textContent !== "";
  let lines;  // of prompts, one per question
  const calls = async (one, arm) => {
    const all = await (lines ??= unpacked("report-prompts"));
    const from = all.indexOf(`{"place":${one.place},`);
    return from >= 0 && JSON.parse(all.slice(from, all.indexOf("\n", from))).arms[arm];
  };
  const call = ({ predictor, messages, answer }, place) => el("details", { className: "arm" }, el("summary", {}, `${place + 1} ${predictor}`),
    [...messages, { role: "answer", content: answer ?? "No answer: the call failed." }].map(({ role, content }) =>
      [el("h5", {}, role), el("pre", {}, content)]));
  const prompts = (one, row, arm) => {
    const box = el("details", { className: "calls" }, el("summary", {}, `Prompts and answers of the LM (${row.k})`));
    box.addEventListener("toggle", async () => {
      const found = await calls(one, arm);
      box.append(...found ? found.map(call) : [el("p", {}, "The prompts for this question did not fit in the page.")]);
    }, { once: true });
    return box;
  };
  const label = (row, key) => parseInt(row.l[row.p.indexOf(key)]);
  const told = (one, row, place) => {
    const first = one.rows[data.baseline];
    const own = place === data.baseline;
    const beside = arms[data.baseline];
    const lost = own ? [] : first.p.filter((key) => !row.p.includes(key));
    const met = (one.either || []).filter((group) => group.some((key) => row.p.includes(key))).flat();
    const missed = row.f ? [] : one.evidence.filter(([key]) => !row.p.includes(key) && !met.includes(key));
    const scores = data.metrics.map((name) => [name, score(row, name)]).filter(([, value]) => !isNaN(value));
    return el("article", {},
      el("h3", {}, `${place + 1} ${arms[place]} `, marked(one, row), own && arms[place] !== "baseline" ? " (baseline)" : ""),
      row.f && el("p", { className: "failure" }, `Failed (${row.f}): ${text(row.m)}`),
      row.a !== undefined && el("p", {}, el("q", {}, text(row.a) || "(empty)"), row.i ? " does not name an option" : ""),
      el("p", { className: "why" }, scores.map(([name, value]) => `${name} ${+value.toFixed(3)}`).join(" · "),
        ` · LM calls ${row.k || 0}`, row.g !== undefined && stages[row.g] !== "right" ? ` · ${stages[row.g]}` : "",
        row.b ? ` · fell back: ${row.b.map(text).join(", ")}` : ""),
      row.q.length > 0 && [el("h4", {}, "Searched"), el("ul", {}, row.q.map(([role, query]) => el("li", {}, el("b", {}, text(role)), ": ", text(query))))],
      row.p.length > 0 && [el("h4", {}, `Shown to the reader, ${row.p.length} of ${row.n} found`),
        el("ol", {}, row.p.map((key) => own || first.p.includes(key) ? passage(one, key, label(row, key), "") :
          passage(one, key, label(row, key), `not shown by ${beside}`, "gained")))],
      lost.length > 0 && [el("h4", {}, `Shown only by ${beside}`),
        el("ul", {}, lost.map((key) => passage(one, key, label(first, key), "", "lost")))],
      missed.length > 0 && [el("h4", {}, "Missed evidence"),
        el("ul", {}, missed.map(([key, known]) => passage(one, key, known, row.c?.includes(key) ? "found, then cut" : "not found", "lost")))],
      row.k > 0 && hasPrompts && prompts(one, row, arms[place]));
  };
  const draw = () => {
    const one = picked[at];
    const step = (by, said) => {
      const button = el("button", { type: "button", disabled: !picked[at + by], ariaLabel: `${said} question` }, by < 0 ? "←" : "→");
      button.addEventListener("click", () => open(at + by));
      return button;
    };
    const close = el("button", { type: "button", ariaLabel: "Close" }, "✕");
    close.addEventListener("click", () => dialog.close());
    const chips = arms.map((name, place) => {
      const chip = el("button", { type: "button", "aria-pressed": String(!off.has(place)), className: "chip" }, `${place + 1} ${name}`);
      chip.addEventListener("click", () => (off.has(place) ? off.delete(place) : off.add(place), draw()));
      return chip;
    });
    dialog.replaceChildren(
      el("p", { className: "tools" }, step(-1, "Previous"), step(1, "Next"), el("span", {}, `${at + 1} of ${picked.length}`), close),
      el("h2", {}, text(one.q)),
      one.options.length > 0 && el("ul", {}, one.options.map((option) => el("li", {}, text(option)))) || "",
      el("p", {}, el("b", {}, "Right answer"), ": ", one.answers.map(text).join("; also accepted: ") || "not known", " ", el("small", {}, text(one.id))),
      arms.length > 1 ? el("p", { className: "tools", role: "group", ariaLabel: "Arms" }, chips) : "",
      el("div", { className: "arms" }, one.rows.map((row, place) => off.has(place) ? "" : told(one, row, place))));
    history.replaceState(null, "", `#q=${encodeURIComponent(text(one.id))}`);
  };
  const open = (place) => {
    if (!picked[place]) return;
    at = place;
    draw();
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
  };
  dialog.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) open(at + by);
  });
  dialog.addEventListener("close", () => history.replaceState(null, "", " "));
  choose();
  const linked = /^#q=(.*)/.exec(location.hash);
  if (linked) open(picked.findIndex((one) => text(one.id) === decodeURIComponent(linked[1])));
})();
