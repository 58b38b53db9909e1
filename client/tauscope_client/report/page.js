"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const names = JSON.parse(byId("names").textContent);
  const state = { prompt: -1, drafter: 0, round: -1 };

  // Text goes into the page by textContent alone: nothing that a prompt or a model says is ever markup.
  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const visible = (text) => text.replace(/\n/g, "⏎\n").replace(/\t/g, "⇥");
  const inline = (text) => (text === "" ? "∅" : text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/ /g, "·"));
  const plural = (count, word) => count + " " + word + (count === 1 ? "" : "s");

  const data = (index) => JSON.parse(byId("data-" + index).textContent);

  function drawText(prompt) {
    const text = byId("text");
    const rounds = prompt.drafters[state.drafter];
    const pieces = document.createDocumentFragment();
    pieces.append(make("span", "given", prompt.prompt.join("")));
    if (prompt.response.length) pieces.append(make("span", "tok prefill", visible(prompt.response[0])));
    rounds.forEach((round, number) => {
      const span = make("span", "turn" + (number % 2 ? " odd" : ""));
      span.tabIndex = 0;
      span.dataset.round = number;
      span.setAttribute("role", "button");
      span.setAttribute("aria-label", "round " + (number + 1) + ": " + round.n + " accepted");
      span.append(make("span", "mark", "|"));
      const at = round.a + 1;
      const ok = prompt.response.slice(at, at + round.n).join("");
      if (ok) span.append(make("span", "tok ok", visible(ok)));
      if (round.m) span.append(make("span", "tok no", inline(round.d[round.n])));
      if (round.e > round.n) span.append(make("span", "tok bonus", visible(prompt.response[at + round.n])));
      pieces.append(span);
    });
    text.replaceChildren(pieces);
    const emitted = rounds.reduce((sum, round) => sum + round.e, 0);
    const facts = [names[state.drafter], plural(rounds.length, "round")];
    if (rounds.length) facts.push("tau " + (emitted / rounds.length).toFixed(2));
    facts.push(plural(prompt.response.length, "response token"), "ended by " + prompt.finish);
    facts.push(...Object.entries(prompt.tags).map(([tag, value]) => tag + " " + value));
    if (prompt.drifted) facts.push("drifted: " + prompt.drifted);
    byId("prompt-facts").textContent = facts.join(" · ");
  }

  function drawRound(prompt) {
    const panel = byId("round");
    const round = prompt.drafters[state.drafter][state.round];
    document.querySelectorAll(".turn.picked").forEach((turn) => turn.classList.remove("picked"));
    panel.hidden = round === undefined;
    if (round === undefined) return;
    document.querySelector('.turn[data-round="' + state.round + '"]').classList.add("picked");
    const at = round.a + 1;
    const drafted = make("p", "", "drafted ");
    round.d.forEach((piece, column) => {
      const kind = column < round.n ? "tok ok" : column === round.n && round.m ? "tok no" : "tok given";
      drafted.append(make("code", kind, inline(piece)), " ");
    });
    const truth = make("p", "", "the text ");
    prompt.response.slice(at, at + round.d.length).forEach((piece) => truth.append(make("code", "tok", inline(piece)), " "));
    const title = "Round " + (state.round + 1) + ": " + plural(round.n, "draft") + " accepted, " + plural(round.e, "token") + " emitted";
    panel.replaceChildren(make("h3", "", title), drafted, truth);
    if (!round.m) return;
    const right = inline(prompt.response[at + round.n]);
    const said = round.r ? "the right token " + right + " is number " + round.r + " of the row" : "the right token " + right + " is not among the row's best " + round.m.length;
    panel.append(make("p", "quiet", "Where it missed, " + said + ":"));
    const table = make("table");
    round.m.forEach(([piece, probability], place) => {
      const row = make("tr", place + 1 === round.r ? "right" : "");
      row.append(make("td", "num", String(place + 1)));
      const cell = make("td");
      cell.append(make("code", "", inline(piece)));
      row.append(cell, make("td", "num", (probability * 100).toFixed(1) + " %"));
      table.append(row);
    });
    panel.append(table);
  }

  function open(index, round = -1) {
    const count = document.querySelectorAll("#prompts tbody tr").length;
    if (index < 0 || index >= count) return;
    Object.assign(state, { prompt: index, round });
    const prompt = data(index);
    byId("prompt").hidden = false;
    byId("prompt-id").textContent = prompt.id;
    byId("previous").disabled = index === 0;
    byId("next").disabled = index === count - 1;
    byId("who").replaceChildren(
      ...names.map((name, number) => {
        const button = make("button", "", name);
        button.type = "button";
        button.dataset.drafter = number;
        button.setAttribute("role", "tab");
        button.setAttribute("aria-selected", String(number === state.drafter));
        return button;
      }),
    );
    drawText(prompt);
    drawRound(prompt);
    remember();
  }

  // The address names what is open, so that it can be sent to somebody else.
  function remember() {
    const round = state.round < 0 ? "" : "-round-" + (state.round + 1);
    history.replaceState(null, "", "#prompt-" + (state.prompt + 1) + "-" + (state.drafter + 1) + round);
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-open]");
    const tab = event.target.closest("[data-chart]");
    const who = event.target.closest("[data-drafter]");
    const turn = event.target.closest(".turn");
    const head = event.target.closest("th[data-sort]");
    if (link) { event.preventDefault(); open(Number(link.dataset.open)); byId("prompt").scrollIntoView(); }
    else if (tab) pickChart(tab);
    else if (who && who.tagName === "BUTTON") { state.drafter = Number(who.dataset.drafter); open(state.prompt); }
    else if (turn) { state.round = Number(turn.dataset.round); drawRound(data(state.prompt)); remember(); }
    else if (head) sort(head);
    else if (event.target.id === "previous") open(state.prompt - 1);
    else if (event.target.id === "next") open(state.prompt + 1);
  });
  document.addEventListener("keydown", (event) => {
    const turn = event.target.closest && event.target.closest(".turn");
    if (turn && (event.key === "Enter" || event.key === " ")) { event.preventDefault(); turn.click(); }
  });

  function pickChart(tab) {
    const figure = tab.closest("section");
    figure.querySelectorAll("[data-chart]").forEach((one) => one.setAttribute("aria-selected", String(one === tab)));
    figure.querySelectorAll(".chart").forEach((chart) => chart.classList.toggle("other", chart.id !== tab.dataset.chart));
  }

  function sort(head) {
    const column = [...head.parentElement.children].indexOf(head);
    const body = head.closest("table").tBodies[0];
    const sign = head.dataset.order === "up" ? -1 : 1;
    head.dataset.order = sign === 1 ? "up" : "down";
    const value = (row) => row.children[column].textContent.trim();
    const order = head.dataset.sort === "number"
      ? (a, b) => (parseFloat(value(a)) || 0) - (parseFloat(value(b)) || 0)
      : (a, b) => value(a).localeCompare(value(b), "en", { numeric: true });
    body.append(...[...body.rows].sort((a, b) => sign * order(a, b)));
  }

  // Paper has no clicks: what is folded is printed open, and folded again afterwards.
  let unfolded = [];
  addEventListener("beforeprint", () => {
    unfolded = [...document.querySelectorAll("details:not([open])")];
    unfolded.forEach((one) => { one.open = true; });
  });
  addEventListener("afterprint", () => { unfolded.forEach((one) => { one.open = false; }); unfolded = []; });

  const filter = byId("filter");
  filter.addEventListener("input", () => {
    const wanted = filter.value.toLowerCase();
    const rows = [...byId("prompts").tBodies[0].rows];
    rows.forEach((row) => { row.hidden = !row.textContent.toLowerCase().includes(wanted); });
    byId("shown").textContent = wanted ? rows.filter((row) => !row.hidden).length + " of " + rows.length : "";
  });

  const asked = /^#prompt-(\d+)-(\d+)(?:-round-(\d+))?$/.exec(location.hash);
  if (asked && Number(asked[2]) >= 1 && Number(asked[2]) <= names.length) {
    state.drafter = Number(asked[2]) - 1;
    open(Number(asked[1]) - 1, asked[3] ? Number(asked[3]) - 1 : -1);
    byId("prompt").scrollIntoView();
  }
  document.documentElement.dataset.ready = "yes";
})();
