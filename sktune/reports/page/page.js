"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const make = (tag, text, attributes = {}) => {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
  };
  const svg = (tag, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
  };
  let data, trials;
  const read = (text) => {
    data = JSON.parse(text);
    trials = new Map(data.trials.map((trial) => [trial.n, trial]));
  };
  const word = (key, values = {}) =>
    data.words[key].replace(/\{(\w+)\}/g, (whole, name) => (name in values ? values[name] : whole));

  // The filter acts on everything that has a trial's number: marks, bars and rows.
  const value = (name) => (byId(`filter-${name}`) || {}).value || "";
  const passes = (trial) =>
    (!value("origin") || trial.o === value("origin")) &&
    (!value("outcome") || trial.r === value("outcome")) &&
    (!value("worker") || data.workers[trial.w] === value("worker")) &&
    !(data.plans[trial.p].k < Number(value("least"))) &&
    !(value("most") && data.plans[trial.p].k > Number(value("most")));
  const filter = () => {
    const shown = new Set(data.trials.filter(passes).map((trial) => String(trial.n)));
    for (const node of document.querySelectorAll("[data-t]")) node.classList.toggle("off", !shown.has(node.dataset.t));
    byId("filter-shown").textContent = word("filter.shown", { shown: shown.size, all: data.trials.length });
  };

  // Hover and focus show a trial's figures, and mark it in all pictures.
  const tip = byId("tip");
  const describe = (trial) => {
    const plan = data.plans[trial.p];
    const interval = trial.ci ? ` [${trial.ci.map((bound) => bound.toFixed(3)).join(", ")}]` : "";
    const figure = trial.s ? `${trial.s.toFixed(3)}×${interval}${data.simulated ? ` ${word("simulated")}` : ""}` : "";
    const latency = trial.ms ? `${trial.b.toFixed(3)} → ${trial.ms.toFixed(3)} ${word("ms_per_step")}` : "";
    return [`${word("trial")} ${trial.n}: ${plan.name}`, optionsOf(plan), [word(`outcome.${trial.r}`), trial.o].join(", "), figure, latency,
      trial.d].filter(Boolean).join("\n");
  };
  let hot = [];
  const leave = () => {
    for (const node of hot) node.classList.remove("hot");
    hot = [];
    tip.hidden = true;
  };
  const enter = (event) => {
    const node = event.target.closest && event.target.closest("[data-t]");
    leave();
    const trial = node && trials.get(Number(node.dataset.t));
    if (!trial) return;
    hot = [...document.querySelectorAll(`[data-t="${trial.n}"]`)];
    for (const each of hot) each.classList.add("hot");
    if (node.tagName === "TR") return;
    tip.textContent = describe(trial);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
    tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18}px`;
  };

  // Any two plans side by side.
  const optionsOf = (plan) => {
    const used = [...new Set(scopesOf(plan).map((scope) => data.options[scope.options]))].filter(Boolean);
    return [...used, plan.o].filter(Boolean).join("; ");
  };
  const scopesOf = (plan) => {
    const scopes = [];
    let reached = 0;
    for (const group of plan.s ? plan.s.split(";") : []) {
      const [pattern, times] = group.split("*");
      for (let count = Number(times || 1); count > 0; count -= 1)
        for (const piece of pattern.split(" ")) {
          const [gap, length, options] = piece.split(".").map(Number);
          scopes.push({ first: reached + gap, last: reached + gap + length - 1, options });
          reached += gap + length;
        }
    }
    return scopes;
  };
  const strip = (scopes) => {
    const picture = svg("svg", { viewBox: `0 0 ${data.units.length} 10`, preserveAspectRatio: "none", class: "strip",
      "aria-hidden": "true" });
    for (const { first, last, options } of scopes)
      picture.append(svg("rect", { x: first + 0.06, y: 0, width: last - first + 0.88, height: 10,
        class: `bar b${(options % 5) + 1}` }));
    return picture;
  };
  const label = (scope) => scope.first === scope.last ? data.units[scope.first]
    : `${data.units[scope.first]}..${data.units[scope.last]}`;
  const side = (trial, other) => {
    const plan = data.plans[trial.p];
    const key = (scope) => `${scope.first} ${scope.last} ${data.options[scope.options]}`;
    const theirs = new Set(scopesOf(data.plans[other.p]).map(key));
    const only = scopesOf(plan).filter((scope) => !theirs.has(key(scope)));
    const list = make("ul");
    for (const scope of only.slice(0, 6)) list.append(make("li", label(scope)));
    if (only.length > 6) list.append(make("li", word("compared.more", { count: only.length - 6 })));
    const figure = trial.f || trial;
    return { speedup: figure.s ? `${figure.s.toFixed(3)}×` : "-",
      interval: figure.ci ? figure.ci.map((bound) => bound.toFixed(3)).join(" – ") : data.simulated ? word("simulated") : "-",
      latency: figure.ms ? `${figure.b.toFixed(3)} → ${figure.ms.toFixed(3)}` : "-", outcome: word(`outcome.${trial.r}`), origin: trial.o, scopes: plan.k,
      options: optionsOf(plan) || "-", only: only.length ? list : "-" };
  };
  const choice = (chosen, change) => {
    const select = make("select", undefined, { "aria-label": word("trial") });
    for (const trial of data.trials) {
      const plan = data.plans[trial.p];
      const options = optionsOf(plan);
      const text = `${trial.n}: ${plan.name}${options ? `; ${options}` : ""}`;
      select.append(make("option", text.slice(0, 110), { value: trial.n }));
    }
    select.value = chosen;
    select.addEventListener("change", () => change(Number(select.value)));
    return select;
  };
  let pair;
  const compare = () => {
    const place = byId("compared");
    if (!place || data.trials.length < 2) return;
    const table = place.querySelector("table");
    pair = pair || [Number(table.dataset.left), Number(table.dataset.right)];
    const sides = pair.map((number, index) => side(trials.get(number), trials.get(pair[1 - index])));
    const fresh = make("table", undefined, { class: "sides" });
    const head = fresh.createTHead().insertRow();
    head.append(make("th"));
    pair.forEach((number, index) => {
      const cell = make("th", undefined, { scope: "col" });
      cell.append(choice(number, (chosen) => { pair[index] = chosen; compare(); }));
      cell.append(strip(scopesOf(data.plans[trials.get(number).p])));
      head.append(cell);
    });
    const body = fresh.createTBody();
    for (const key of Object.keys(sides[0])) {
      const row = body.insertRow();
      row.append(make("th", word(`compared.${key}`), { scope: "row" }));
      for (const each of sides) row.insertCell().append(each[key]);
    }
    place.replaceChildren(fresh);
  };

  // Every table as CSV.
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const copies = () => {
    for (const details of document.querySelectorAll("details")) {
      const table = details.querySelector("table");
      if (!table) continue;
      const button = make("button", word("copy"), { type: "button" });
      button.addEventListener("click", async () => {
        const rows = [...table.rows].filter((row) => !row.classList.contains("off"));
        const text = rows.map((row) => [...row.cells].map((cell) => quoted(cell.textContent)).join(",")).join("\n");
        try {
          await navigator.clipboard.writeText(text);
        } catch {
          const area = make("textarea", text);
          document.body.append(area);
          area.select();
          document.execCommand("copy");
          area.remove();
        }
        button.textContent = word("copied");
        setTimeout(() => { button.textContent = word("copy"); }, 1500);
      });
      details.append(button);
    }
  };

  const show = () => {
    const filters = byId("filters");
    if (filters) {
      filters.hidden = false;
      filters.addEventListener("input", filter);
      filters.addEventListener("submit", (event) => event.preventDefault());
      byId("filter-reset").addEventListener("click", () => {
        for (const field of filters.querySelectorAll("select")) field.value = "";
        for (const field of filters.querySelectorAll("input")) field.value = field.defaultValue;
        filter();
      });
      filter();
    }
    compare();
    copies();
  };

  // A page that is served follows its study: it takes over what changed, and keeps what the reader has opened.
  const follow = (address) => {
    const state = make("p", word("live.on"), { class: "live", role: "status" });
    const place = () => document.querySelector("header").append(state);
    place();
    const chosen = () => new Map([...document.querySelectorAll("#filters select, #filters input")]
      .filter((field) => field.value !== field.defaultValue && field.value).map((field) => [field.id, field.value]));
    const update = async () => {
      const answer = await fetch(location.href, { cache: "no-store" });
      if (!answer.ok) return;
      const next = new DOMParser().parseFromString(await answer.text(), "text/html");
      const open = new Map([...document.querySelectorAll("details[data-keep]")].map((each) => [each.dataset.keep, each.open]));
      const filtered = chosen();
      leave();
      read(next.getElementById("data").textContent);
      for (const part of ["header", "main"])
        document.querySelector(part).replaceWith(document.adoptNode(next.querySelector(part)));
      place();
      for (const [id, text] of filtered) if (byId(id)) byId(id).value = text;
      for (const each of document.querySelectorAll("details[data-keep]"))
        if (open.has(each.dataset.keep)) each.open = open.get(each.dataset.keep);
      show();
      state.textContent = word("live.changed", { count: data.trials.length });
    };
    const source = new EventSource(address);
    let running = Promise.resolve();
    let waiting = false;
    source.addEventListener("change", () => {
      if (waiting) return;
      waiting = true;
      running = running.then(() => { waiting = false; return update(); }).catch(() => {});
    });
    source.onerror = () => { state.textContent = word("live.lost"); };
  };

  read(byId("data").textContent);
  document.addEventListener("mouseover", enter);
  document.addEventListener("mouseleave", leave);
  addEventListener("beforeprint", () => { for (const each of document.querySelectorAll("details")) each.open = true; });
  show();
  if (document.body.dataset.events) follow(document.body.dataset.events);
})();
