"use strict";
// The timeline of the report, and what opens and closes. All texts go in as text, never as markup.
(() => {
  const ODD = 1, ASYNC = 2, FAULT = 4;
  const one = (selector) => document.querySelector(selector);
  const all = (selector) => [...document.querySelectorAll(selector)];

  // -- stacks and printing ---------------------------------------------------------------------
  const quiet = one('[data-do="quiet"]');
  quiet?.addEventListener("click", () => {
    const on = one("#stacks").classList.toggle("all-frames");
    quiet.setAttribute("aria-pressed", on);
  });
  // The end of a log is what is read first.
  const toEnd = (under) => { for (const log of under.querySelectorAll(".log pre")) log.scrollTop = log.scrollHeight; };
  document.addEventListener("toggle", (event) => toEnd(event.target.parentElement), true);
  toEnd(document);
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = all("details[data-print]:not([open])");
    for (const each of opened) each.open = true;
  });
  addEventListener("afterprint", () => { for (const each of opened) each.open = false; });

  const source = one("#data");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const rows = one("#rows"), axis = one("#axis"), told = one("#told");
  const MARGIN = Math.max(1, data.span * 0.01);
  const view = { from: -MARGIN, to: data.span + MARGIN };
  const made = [];
  let chosen = null, ink = {}, hatch = null, asked = false;

  // -- the calls of a rank ---------------------------------------------------------------------
  const known = new Map();
  function callsOf(rank) {
    if (known.has(rank)) return known.get(rank);
    const [until, flat] = data.ranks[rank] || [0, []], calls = [];
    let from = 0, at = 0;
    for (let i = 0; i < flat.length; i += 3) {
      from += flat[i];
      at += flat[i + 2];
      const took = flat[i + 1], failed = took < -1, open = took === -1;
      const [word, site, group, seq, met, flags] = data.calls[at];
      const to = open ? Math.max(until, from) : from + (failed ? -2 - took : took);
      const came = data.met[met] < 0 ? to : Math.min(to, Math.max(from, data.met[met]));
      calls.push({ from, to, came, open, failed, flags, seq, site: data.words[site],
        text: data.words[word], group: data.groups[group] });
    }
    known.set(rank, { until, calls });
    return known.get(rank);
  }

  function lasts(us) {
    if (us < 1000) return `${us.toFixed(0)} µs`;
    return us < 1e6 ? `${(us / 1e3).toPrecision(3)} ms` : `${(us / 1e6).toPrecision(4)} s`;
  }

  function sentence(row, call) {
    const who = row.ranks.length > 1 ? `rank ${row.rank} (one of ${row.ranks.length} that did the same)` : `rank ${row.rank}`;
    if (!call) return `${who}: computing, in no call`;
    const marks = [];
    if (call.flags & ODD) marks.push("≠ differs from the call of most");
    if (call.failed) marks.push("raised");
    if (call.flags & ASYNC) marks.push("in the background");
    else if (call.came > call.from) marks.push(`${lasts(call.came - call.from)} of it waiting for others`);
    const took = call.open ? `no end, ${lasts(call.to - call.from)} so far` : `took ${lasts(call.to - call.from)}`;
    return `${who}: ${call.text}  #${call.seq} of ${call.group}\n${call.site || "line unknown"}\n`
      + `${lasts(call.from)} after the first call, ${[took, ...marks].join("; ")}`;
  }

  // -- rows ------------------------------------------------------------------------------------
  const MOST_DRAWN = 64; // of more rows, 1,024 say, only those in sight take memory
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      entry.target.row.visible = entry.isIntersecting || made.length <= MOST_DRAWN;
      if (entry.target.row.visible) draw(entry.target.row);
      else entry.target.width = 0;
    }
  }, { root: rows });

  function addRow(label, ranks, rank, culprit, parent) {
    const row = { ranks, rank, culprit, parent, members: null, visible: made.length < MOST_DRAWN, at: -1 };
    row.line = document.createElement("div");
    row.line.className = `row${culprit ? " culprit" : ""}${parent ? " member shown" : ""}`;
    row.label = document.createElement("button");
    row.label.type = "button";
    row.label.textContent = `${culprit ? "▸ " : ""}${label}`;
    row.label.title = label;
    row.canvas = document.createElement("canvas");
    row.canvas.row = row;
    row.canvas.setAttribute("role", "img");
    row.canvas.setAttribute("aria-label", `Calls of ${label}; press n to step through them`);
    row.line.append(row.label, row.canvas);
    if (ranks.length > 1) {
      row.label.setAttribute("aria-expanded", "false");
      row.label.addEventListener("click", () => toggle(row));
      row.label.textContent = `+ ${row.label.textContent}`;
    }
    row.label.addEventListener("focus", () => { chosen = row; });
    parent ? parent.last.line.after(row.line) : rows.append(row.line);
    if (parent) parent.last = row;
    made.push(row);
    seen.observe(row.canvas);
    return row;
  }

  function toggle(row, on = row.label.getAttribute("aria-expanded") !== "true") {
    if (row.ranks.length < 2) return;
    row.label.setAttribute("aria-expanded", on);
    row.label.textContent = row.label.textContent.replace(/^./u, on ? "−" : "+");
    if (on && !row.members) {
      row.last = row;
      row.members = row.ranks.map((rank) => addRow(`rank ${rank}`, [rank], rank, row.culprit, row));
    }
    for (const member of row.members || []) member.line.classList.toggle("shown", on);
    later();
  }

  // -- drawing ---------------------------------------------------------------------------------
  function colours() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["ink", "bad", "call", "wait", "compute", "paper", "line"]) ink[name] = style.getPropertyValue(`--${name}`).trim();
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const pen = tile.getContext("2d");
    pen.strokeStyle = ink.wait;
    pen.lineWidth = 1.6;
    pen.beginPath();
    for (const shift of [-6, 0, 6]) { pen.moveTo(shift, 6); pen.lineTo(shift + 6, 0); }
    pen.stroke();
    hatch = tile;
  }

  function penOf(canvas) {
    const scale = devicePixelRatio || 1, { clientWidth: width, clientHeight: height } = canvas;
    if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    return { pen, width, height };
  }

  function box(pen, x, end, call, height, came = end) {
    const width = Math.max(1, end - x), middle = height / 2;
    if (call.flags & ASYNC) {
      pen.fillStyle = ink.call;
      pen.fillRect(x, height - 6, width, 3);
    } else {
      if (came > x) {
        pen.fillStyle = came - x < 5 ? ink.wait : ink.paper; // too narrow for a pattern
        pen.fillRect(x, 5, Math.max(1, came - x), height - 10);
      }
      if (came - x >= 5) {
        pen.fillStyle = pen.createPattern(hatch, "repeat");
        pen.fillRect(x, 5, came - x, height - 10);
        pen.strokeStyle = ink.wait;
        pen.lineWidth = 1;
        pen.strokeRect(x + 0.5, 5.5, came - x - 1, height - 11);
      }
      pen.fillStyle = ink.call;
      if (end > came || came <= x) pen.fillRect(came, 5, Math.max(1, end - came), height - 10);
    }
    if (call.failed) { pen.fillStyle = ink.bad; pen.fillRect(end - 2, 3, 3, height - 6); }
    if (!(call.flags & ODD)) return;
    pen.strokeStyle = ink.bad;
    pen.lineWidth = 2;
    pen.strokeRect(x, 3, width, height - 6);
    pen.fillStyle = ink.paper;
    pen.fillRect(x + 2, 4, 14, height - 8);
    pen.fillStyle = ink.bad;
    pen.font = "bold 15px sans-serif";
    pen.textBaseline = "middle";
    pen.fillText("≠", x + 4, middle);
  }

  function draw(row) {
    const { pen, width, height } = penOf(row.canvas);
    const { until, calls } = callsOf(row.rank);
    const x = (us) => (us - view.from) / (view.to - view.from) * width;
    pen.fillStyle = ink.compute;
    const begin = Math.max(0, x(calls.length ? calls[0].from : 0)), end = Math.min(width, x(until));
    if (end > begin) pen.fillRect(begin, height / 2 - 1, end - begin, 2);
    if (x(until) <= width) pen.fillRect(x(until), height / 2 - 6, 2, 12);
    const last = [];
    for (const call of calls) {
      if (call.to < view.from || call.from > view.to) continue;
      if (call.flags & ODD) last.push(call); // on top of what is beside it
      else box(pen, Math.max(-4, x(call.from)), Math.min(width + 4, x(call.to)), call, height, Math.min(width + 4, x(call.came)));
    }
    for (const call of last) box(pen, Math.max(-4, x(call.from)), Math.min(width + 4, x(call.to)), call, height, Math.min(width + 4, x(call.came)));
    const cursor = calls[row.at];
    if (row === chosen && cursor) {
      pen.strokeStyle = ink.ink;
      pen.lineWidth = 2;
      pen.strokeRect(x(cursor.from) - 2, 1, Math.max(4, x(cursor.to) - x(cursor.from) + 4), height - 2);
    }
  }

  function drawAxis() {
    const span = view.to - view.from, width = axis.clientWidth || 1;
    const rough = span / Math.max(2, width / 110), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough);
    axis.replaceChildren();
    for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
      const tick = document.createElement("span");
      tick.textContent = at === 0 ? "0" : step >= 1e6 ? `${+(at / 1e6).toFixed(0)} s`
        : `${+(at / (step >= 1e5 ? 1e6 : step >= 1 ? 1e3 : 1)).toFixed(3)} ${step >= 1e5 ? "s" : step >= 1 ? "ms" : "µs"}`;
      tick.style.left = `${(at - view.from) / span * 100}%`;
      axis.append(tick);
    }
  }

  function later() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      drawAxis();
      for (const row of made) if (row.visible) draw(row);
    });
  }

  // -- moving ----------------------------------------------------------------------------------
  function show(from, to) {
    const most = data.span + 2 * MARGIN, span = Math.min(most, Math.max(2, to - from));
    view.from = Math.min(Math.max(-MARGIN, from), data.span + MARGIN - span);
    view.to = view.from + span;
    later();
  }
  const zoom = (factor, at = 0.5) => {
    const span = view.to - view.from, point = view.from + span * at;
    show(point - span * factor * at, point + span * factor * (1 - at));
  };
  const move = (share) => show(view.from + (view.to - view.from) * share, view.to + (view.to - view.from) * share);

  function fault() {
    let from = Infinity, to = -Infinity;
    for (const row of made) for (const call of callsOf(row.rank).calls) {
      if (!(call.flags & FAULT)) continue;
      from = Math.min(from, call.from);
      to = Math.max(to, Math.min(call.to, call.came));
    }
    if (from === Infinity) return show(data.span * 0.9, data.span + MARGIN);
    // The calls before it are mostly shorter than what was waited in it: some room for them.
    const room = Math.max((to - from) * 0.3, 20);
    show(from - room, Math.min(to, from + room * 6) + room);
  }

  function step(by) {
    const row = chosen || made[0], { calls } = callsOf(row.rank);
    if (!calls.length) return;
    chosen = row;
    if (row.at < 0) row.at = by > 0 ? calls.findIndex((call) => call.to >= view.from) - 1 : calls.length;
    row.at = Math.min(calls.length - 1, Math.max(0, row.at + by));
    const call = calls[row.at];
    if (call.from < view.from || call.from > view.to) {
      const span = view.to - view.from;
      show(call.from - span / 2, call.from + span / 2);
    }
    told.textContent = sentence(row, call);
    later();
  }

  const DO = {
    fault, all: () => show(-MARGIN, data.span + MARGIN), in: () => zoom(0.5), out: () => zoom(2),
    open: (button) => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", on);
      for (const row of [...made]) if (!row.parent) toggle(row, on);
    },
  };
  const KEYS = {
    "+": DO.in, "=": DO.in, "-": DO.out, 0: DO.all, f: fault, n: () => step(1), p: () => step(-1),
    ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2),
  };
  rows.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
    KEYS[event.key]();
    event.preventDefault();
  });
  for (const button of all(".bar button")) button.addEventListener("click", () => DO[button.dataset.do](button));

  let drag = null;
  rows.addEventListener("pointerdown", (event) => {
    const row = event.target.row;
    if (!row) return;
    drag = { x: event.clientX, from: view.from, to: view.to, width: row.canvas.clientWidth };
    event.target.setPointerCapture(event.pointerId);
  });
  rows.addEventListener("pointerup", () => { drag = null; });
  rows.addEventListener("pointermove", (event) => {
    if (drag) {
      const by = (drag.x - event.clientX) / drag.width * (drag.to - drag.from);
      return show(drag.from + by, drag.to + by);
    }
    const row = event.target.row;
    if (!row) return;
    const width = row.canvas.clientWidth, us = (view.to - view.from) / width;
    const at = view.from + event.offsetX * us;
    const { calls } = callsOf(row.rank);
    const under = calls.filter((call) => call.from - 2 * us <= at && at <= call.to + 2 * us);
    const call = under.find((each) => each.flags & ODD) || under[under.length - 1];
    told.textContent = sentence(row, call);
    row.canvas.title = told.textContent;
  });
  rows.addEventListener("dblclick", (event) => {
    if (event.target.row) zoom(0.4, event.offsetX / event.target.clientWidth);
  });
  rows.addEventListener("wheel", (event) => {
    if (!event.target.row || !(event.ctrlKey || event.metaKey || event.shiftKey)) return; // the page scrolls
    event.preventDefault();
    if (event.shiftKey) move((event.deltaY || event.deltaX) > 0 ? 0.1 : -0.1);
    else zoom(event.deltaY > 0 ? 1.25 : 0.8, event.offsetX / event.target.clientWidth);
  }, { passive: false });
  one("#find").addEventListener("change", (event) => {
    const rank = Number(event.target.value), row = made.find((each) => !each.parent && each.ranks.includes(rank));
    if (!event.target.value.trim() || !row) return;
    toggle(row, true);
    const found = row.members ? row.members.find((each) => each.rank === rank) : row;
    for (const each of made) each.line.classList.toggle("found", each === found);
    found.line.scrollIntoView({ block: "nearest" });
    chosen = found;
  });

  // -- beginning -------------------------------------------------------------------------------
  colours();
  for (const [label, culprit, ranks] of data.classes) {
    if (ranks.some((rank) => data.ranks[rank])) addRow(`${ranks.length > 1 ? "ranks" : "rank"} ${label}`, ranks, ranks.find((rank) => data.ranks[rank]), culprit, null);
  }
  const SIGNS = { wait: [0, 0, 99], call: [0, 0, 0], async: [ASYNC, 0, 0], odd: [ODD, 0, 99] };
  function signs() {
    for (const canvas of all("[data-sign]")) {
      const { pen, width, height } = penOf(canvas), sign = SIGNS[canvas.dataset.sign];
      pen.fillStyle = ink.compute;
      pen.fillRect(0, height / 2 - 1, width, 2);
      if (sign) box(pen, 2, width - 2, { flags: sign[0] }, height + 2, Math.min(width - 2, 2 + sign[2]));
    }
  }
  signs();
  for (const query of ["(prefers-color-scheme: dark)", "print"]) {
    matchMedia(query).addEventListener("change", () => { colours(); signs(); for (const row of made) if (row.visible) draw(row); });
  }
  new ResizeObserver(later).observe(rows);
  later();
  document.documentElement.dataset.drawn = made.length;
})();
