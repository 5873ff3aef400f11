"use strict";
(() => {
  const data = JSON.parse(document.getElementById("timeline-data").textContent);
  const root = document.getElementById("timeline");
  const canvas = root.querySelector("canvas"), tip = root.querySelector(".tip");
  const picked = root.querySelector(".picked"), pen = canvas.getContext("2d");
  const wanted = root.querySelector("input[type=search]"), found = root.querySelector("output");
  const chosen = root.querySelector(".chosen"), marker = root.querySelector("[data-mode=select]");
  const HOST_HEIGHT = 16, STREAM_HEIGHT = 24, GAP = 3, RANK_GAP = 16, RULER = 26, NAME_HEIGHT = 18;
  const BACKWARD = /^autograd::engine::evaluate_function: /;
  const rows = [];
  let height = RULER;
  for (const rank of data.ranks) {
    height += NAME_HEIGHT;
    rank.top = height - NAME_HEIGHT;
    rank.tracks.forEach((track, index) => {
      if (!track.start.length) return;
      const isHost = index === 0;
      rows.push({ rank, track, isHost, y: height, h: isHost ? HOST_HEIGHT : STREAM_HEIGHT, ...unpack(track) });
      height += (isHost ? HOST_HEIGHT : STREAM_HEIGHT) + GAP;
    });
    rank.bottom = height;
    height += RANK_GAP;
  }
  const whole = [data.from, data.to];
  const step = [Math.min(...data.ranks.map((r) => r.window[0])), Math.max(...data.ranks.map((r) => r.window[1]))];
  const LABEL = "12px system-ui, sans-serif";
  let view = [...step], width = 0, gutter = 0, colours = {}, at = null, frame = 0;
  let matches = null, hits = [], hit = -1, range = null;

  function unpack(track) {
    const n = track.start.length, start = new Float64Array(n), end = new Float64Array(n);
    let ticks = 0;
    for (let i = 0; i < n; i++) {
      ticks += track.start[i];
      start[i] = data.from + ticks * data.tick;
      end[i] = data.from + (ticks + track.length[i]) * data.tick;
    }
    return { start, end };
  }

  function readColours() {
    const probe = document.body.appendChild(document.createElement("i"));
    const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    colours = { page: style("--page"), raised: style("--raised"), line: style("--line"), ink: style("--ink"),
      soft: style("--soft"), pink: style("--pink"), grey: style("--grey"), of: {}, inkOf: {} };
    for (const [category, look] of Object.entries(data.looks)) {
      probe.className = "c-" + look[1];
      probe.style.cssText = "background:var(--c);color:var(--c-ink)";
      colours.of[category] = getComputedStyle(probe).backgroundColor;
      colours.inkOf[category] = getComputedStyle(probe).color;
    }
    probe.remove();
  }

  function describe(row, i) {
    const kind = data.kinds[row.track.kind[i]].map((s) => data.strings[s]);
    const [name, category, detail, op, source] = kind;
    const count = row.track.count ? row.track.count[i] : 1;
    const word = (data.looks[category] || [category])[0];
    return { count, category, word, detail, op, source: data.sources[source] || "",
      name: count > 1 ? count + (row.isHost ? " operators" : " kernels, mostly " + word) : name,
      busy: row.track.busy ? row.track.busy[i] : 100,
      lead: row.track.lead ? row.track.lead[i] * data.tick : 0,
      wait: row.track.wait ? row.track.wait[i] * data.tick : 0 };
  }

  const x = (us) => gutter + ((us - view[0]) / (view[1] - view[0])) * (width - gutter);
  const us = (px) => view[0] + ((px - gutter) / (width - gutter)) * (view[1] - view[0]);
  function time(v) {
    const a = Math.abs(v);
    if (a < 1e3) return v.toFixed(a < 10 ? 2 : 1) + " µs";
    return a < 1e6 ? (v / 1e3).toFixed(2) + " ms" : (v / 1e6).toFixed(2) + " s";
  }

  function ruler() {
    const rough = (view[1] - view[0]) / Math.max(2, (width - gutter) / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
    const scale = step >= 1e6 ? [1e6, "s"] : step >= 1e3 ? [1e3, "ms"] : [1, "µs"];
    const digits = Math.max(0, -Math.floor(Math.log10(step / scale[0]) + 1e-9));
    pen.fillStyle = colours.soft; pen.strokeStyle = colours.line; pen.lineWidth = 1;
    pen.font = "12px system-ui, sans-serif"; pen.textBaseline = "middle";
    for (let t = Math.ceil(view[0] / step) * step; t <= view[1]; t += step) {
      const px = Math.round(x(t)) + 0.5;
      pen.beginPath(); pen.moveTo(px, RULER - 6); pen.lineTo(px, height - RANK_GAP); pen.stroke();
      const label = (t / scale[0]).toFixed(digits) + " " + scale[1];
      if (px + pen.measureText(label).width / 2 > width) continue;
      pen.textAlign = px < gutter + 20 ? "left" : "center";
      pen.fillText(label, px, RULER / 2 - 2);
    }
  }

  function firstVisible(row) {
    let lo = 0, hi = row.end.length;
    while (lo < hi) { const mid = (lo + hi) >> 1; if (row.end[mid] < view[0]) lo = mid + 1; else hi = mid; }
    return lo;
  }

  function slices(row) {
    const n = row.start.length;
    if (row.end[n - 1] < view[0]) aside(row, "← done " + time(view[0] - row.end[n - 1]) + " before this view", "left");
    if (row.start[0] > view[1]) aside(row, "begins " + time(row.start[0] - view[1]) + " after this view →", "right");
    const pixel = { x: -1, busy: 0, longest: 0, category: "" }, usPerPixel = (view[1] - view[0]) / (width - gutter);
    const flush = () => {
      if (pixel.x >= 0) block(row, pixel.x, 1, pixel.category, pixel.busy / usPerPixel, pixel.dim);
      pixel.x = -1;
    };
    for (let i = firstVisible(row); i < n && row.start[i] <= view[1]; i++) {
      const left = Math.max(x(row.start[i]), gutter), right = Math.min(x(row.end[i]), width);
      const category = data.strings[data.kinds[row.track.kind[i]][1]];
      const busy = row.track.busy ? row.track.busy[i] / 100 : 1, lasts = (row.end[i] - row.start[i]) * busy;
      const dim = matches !== null && !matches[row.track.kind[i]];
      if (right - left < 1) {
        // What falls on one pixel is drawn together: the longest gives the colour, all the strength.
        if (Math.floor(left) !== pixel.x) {
          flush();
          Object.assign(pixel, { x: Math.floor(left), busy: 0, longest: -1, dim: true });
        }
        pixel.dim = pixel.dim && dim;
        pixel.busy += lasts;
        if (lasts > pixel.longest) { pixel.longest = lasts; pixel.category = category; }
        continue;
      }
      flush();
      const w = Math.max(1, right - left - (right - left > 3 && busy === 1 ? 1 : 0));
      block(row, left, w, category, busy, dim);
      if (dim) continue;
      const wait = row.track.wait ? row.track.wait[i] * data.tick : 0;
      if (wait > 0) hatch(left, row.y, Math.min(x(row.start[i] + wait), width) - left, row.h);
      if (w > 34) label(row, i, left, w, category, wait > 0 || busy < 0.6);
    }
    flush();
  }

  function block(row, left, w, category, busy, dim) {
    pen.globalAlpha = dim ? 0.12 : Math.min(1, Math.max(0.25, busy));
    pen.fillStyle = colours.of[category]; pen.fillRect(left, row.y, w, row.h);
    pen.globalAlpha = 1;
  }

  function aside(row, words, side) {
    pen.font = LABEL; pen.textAlign = side; pen.textBaseline = "middle";
    const room = pen.measureText(words).width + 8;
    pen.fillStyle = colours.raised; pen.fillRect(side === "left" ? gutter + 2 : width - room - 2, row.y, room, row.h);
    pen.fillStyle = colours.soft; pen.fillText(words, side === "left" ? gutter + 6 : width - 6, row.y + row.h / 2);
  }

  // Micro-batches that repeat those before: hatched, with their number where there is room for it.
  function skipped(rank) {
    const [from, to, words] = rank.skipped, left = Math.max(gutter, x(from)), w = Math.min(width, x(to)) - left;
    const top = rank.top + NAME_HEIGHT - 3, h = rank.bottom - top;
    hatch(left, top, w, h, colours.raised, colours.grey, 10);
    pen.font = LABEL; pen.textAlign = "center"; pen.textBaseline = "middle";
    const fits = words.find((line) => pen.measureText(line).width + 12 < w);
    if (!fits) return;
    const room = pen.measureText(fits).width + 12;
    pen.fillStyle = colours.page; pen.fillRect(left + (w - room) / 2, top + h / 2 - 10, room, 20);
    pen.fillStyle = colours.ink; pen.fillText(fits, left + w / 2, top + h / 2);
  }

  function hatch(left, top, w, h, ground = colours.pink, lines = colours.of.communication || colours.ink, apart = 6) {
    if (w < 1) return;
    pen.save(); pen.beginPath(); pen.rect(left, top, w, h); pen.clip();
    pen.fillStyle = ground; pen.fillRect(left, top, w, h);
    pen.strokeStyle = lines; pen.lineWidth = 1.5; pen.beginPath();
    for (let d = -h; d < w + h; d += apart) { pen.moveTo(left + d, top + h); pen.lineTo(left + d + h, top); }
    pen.stroke(); pen.restore();
  }

  function label(row, i, left, w, category, isPale) {
    const whole = describe(row, i).name.replace(BACKWARD, "");
    pen.save(); pen.beginPath(); pen.rect(left, row.y, w - 3, row.h); pen.clip();
    pen.font = (row.isHost ? "11px" : "12px") + " system-ui, sans-serif";
    const room = (words) => Math.floor((words.length * (w - 12)) / pen.measureText(words).width);
    const named = room(whole) < whole.length ? whole.replace(/^layers /, "") : whole, fit = room(named);
    if (fit < Math.min(4, named.length)) return pen.restore();
    const words = fit < named.length ? named.slice(0, fit - 1) + "…" : named;
    pen.textAlign = "left"; pen.textBaseline = "middle";
    if (isPale) { pen.fillStyle = colours.page; pen.fillRect(left + 3, row.y + 4, pen.measureText(words).width + 6, row.h - 8); }
    pen.fillStyle = isPale ? colours.ink : colours.inkOf[category];
    pen.fillText(words, left + 6, row.y + row.h / 2 + 0.5);
    pen.restore();
  }

  function draw() {
    frame = 0;
    pen.clearRect(0, 0, width, height);
    for (const rank of data.ranks) {
      pen.fillStyle = colours.raised;
      const left = Math.max(gutter, x(rank.window[0])), right = Math.min(width, x(rank.window[1]));
      if (right > left) pen.fillRect(left, rank.top + NAME_HEIGHT - 3, right - left, rank.bottom - rank.top - NAME_HEIGHT + 3);
    }
    ruler();
    for (const rank of data.ranks) if (rank.skipped) skipped(rank);
    for (const row of rows) slices(row);
    pen.fillStyle = colours.page; pen.fillRect(0, RULER - 6, gutter, height);
    pen.textAlign = "left"; pen.textBaseline = "middle";
    for (const rank of data.ranks) {
      pen.fillStyle = colours.ink; pen.font = "600 13px system-ui, sans-serif";
      pen.fillText(rank.name, 0, rank.top + NAME_HEIGHT / 2 - 2);
    }
    pen.fillStyle = colours.soft; pen.font = LABEL;
    for (const row of rows) pen.fillText(row.track.name, 0, row.y + row.h / 2);
    if (range) shade();
    if (at) highlight();
  }

  function shade() {
    const left = Math.max(gutter, x(range[0])), right = Math.min(width, x(range[1]));
    if (right <= left) return;
    pen.globalAlpha = 0.14; pen.fillStyle = colours.ink; pen.fillRect(left, RULER - 6, right - left, height - RULER);
    pen.globalAlpha = 1; pen.strokeStyle = colours.ink; pen.lineWidth = 1;
    pen.strokeRect(left + 0.5, RULER - 5.5, right - left - 1, height - RULER - RANK_GAP + 5);
  }

  function search() {
    const words = wanted.value.trim().toLowerCase();
    hits = []; hit = -1; matches = null;
    if (words) {
      matches = data.kinds.map((kind) => [kind[0], kind[3]].some((s) => data.strings[s].toLowerCase().includes(words)));
      let total = 0;
      for (const row of rows) for (let i = 0; i < row.start.length; i++) if (matches[row.track.kind[i]]) {
        hits.push({ row, i });
        if (!row.isHost) total += row.end[i] - row.start[i];
      }
      hits.sort((a, b) => a.row.start[a.i] - b.row.start[b.i]);
      found.textContent = hits.length ? count(hits.length, "slice") + ", " + time(total) + " on the device; Enter: next" : "no such name";
    } else found.textContent = "";
    redraw();
  }

  function next(by) {
    if (!hits.length) return;
    hit = (hit + by + hits.length) % hits.length;
    at = hits[hit];
    const { row, i } = at, middle = (row.start[i] + row.end[i]) / 2;
    const span = Math.max(Math.min(view[1] - view[0], 40 * (row.end[i] - row.start[i])), 4 * (row.end[i] - row.start[i]));
    show(middle - span / 2, middle + span / 2);
    found.textContent = hit + 1 + " of " + count(hits.length, "slice");
    picked.textContent = sentence(at);
  }

  const count = (n, word) => n.toLocaleString("en") + " " + word + (n === 1 ? "" : "s");
  const sentence = (spot) => { const w = lines(spot); return [w.title, w.where, ...w.facts].join(" · "); };

  function select(from, to) {
    range = to > from ? [from, to] : null;
    chosen.hidden = !range;
    if (range) chosen.replaceChildren(...statistics());
    redraw();
  }

  // What the streams did in the selected time: by name, summed over the ranks that are drawn.
  function statistics() {
    const names = new Map(), streams = [];
    for (const row of rows) {
      let busy = 0;
      for (let i = 0; i < row.start.length && row.start[i] < range[1]; i++) {
        const inside = Math.min(row.end[i], range[1]) - Math.max(row.start[i], range[0]);
        if (inside <= 0) continue;
        const share = row.track.busy ? row.track.busy[i] / 100 : 1;
        busy += inside * share;
        if (row.isHost) continue;
        const name = describe(row, i).name, seen = names.get(name) || { count: 0, us: 0, longest: 0 };
        seen.count += row.track.count ? row.track.count[i] : 1;
        seen.us += inside * share; seen.longest = Math.max(seen.longest, inside);
        names.set(name, seen);
      }
      streams.push([row.rank.name + ", " + row.track.name, ((100 * busy) / (range[1] - range[0])).toFixed(0) + " % busy"]);
    }
    const head = element("p", "Selected " + time(range[1] - range[0]) + ", from " + time(range[0]) + " to " + time(range[1]) + ": " +
      streams.slice(0, 6).map((s) => s.join(" ")).join("; ") + (streams.length > 6 ? " …" : ""));
    const top = [...names].sort((a, b) => b[1].us - a[1].us);
    const shown = top.slice(0, 10).map(([name, s]) => [name, s.count.toLocaleString("en"), time(s.us), time(s.us / s.count), time(s.longest)]);
    if (top.length > 10) shown.push([top.length - 10 + " more", "", time(top.slice(10).reduce((a, t) => a + t[1].us, 0)), "", ""]);
    const table = element("table"), titles = ["kernel", "count", "total", "mean", "longest"];
    for (const [tag, cells] of [["th", titles], ...shown.map((r) => ["td", r])]) {
      const line = table.appendChild(element("tr"));
      cells.forEach((c, i) => { const cell = line.appendChild(element(tag, c)); if (i) cell.className = i > 2 ? "num extra" : "num"; });
    }
    const box = element("div"); box.className = "scroll"; box.append(table);
    return top.length ? [head, box] : [head];
  }

  function element(name, words) {
    const made = document.createElement(name);
    if (words !== undefined) made.textContent = words;
    return made;
  }

  function highlight() {
    const { row, i } = at, left = Math.max(gutter, x(row.start[i])), right = Math.min(width, x(row.end[i]));
    const host = rows.find((r) => r.rank === row.rank && r.isHost), { lead } = describe(row, i);
    pen.strokeStyle = colours.ink; pen.lineWidth = 1.5;
    pen.strokeRect(left - 0.5, row.y - 0.5, Math.max(2, right - left), row.h + 1);
    if (row.isHost || !host || !row.track.lead) return;
    pen.save(); pen.beginPath(); pen.rect(gutter, 0, width, height); pen.clip();
    pen.beginPath(); pen.moveTo(x(row.start[i] - lead), host.y + host.h); pen.lineTo(x(row.start[i]), row.y); pen.stroke();
    pen.restore();
  }

  function find(px, py) {
    const row = rows.find((r) => py >= r.y && py < r.y + r.h + GAP);
    if (!row || px < gutter) return null;
    const t = us(px), slack = (1.5 * (view[1] - view[0])) / (width - gutter);
    let best = null, nearest = Infinity;
    for (let i = firstVisible(row); i < row.start.length && row.start[i] <= t + slack; i++) {
      const away = Math.max(row.start[i] - t, t - row.end[i], 0);
      if (away <= slack && away <= nearest) { best = i; nearest = away; }
    }
    return best === null ? null : { row, i: best };
  }

  function lines(found) {
    const { row, i } = found, d = describe(row, i);
    const facts = [time(row.end[i] - row.start[i]) + ", from " + time(row.start[i]) + " to " + time(row.end[i])];
    if (d.busy < 100) facts.push("busy " + d.busy + " % of it");
    if (d.wait > 0) facts.push("of which " + time(d.wait) + " waiting for other ranks");
    if (d.detail) facts.push(d.detail);
    if (d.op) facts.push("launched by " + d.op + (d.lead > 0 ? ", " + time(d.lead) + " before it began" : ""));
    if (d.source) facts.push("time: " + d.source);
    return { title: d.name, where: row.rank.name + ", " + row.track.name, facts };
  }

  function point(event) {
    const box = canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    at = find(px, py);
    tip.hidden = !at;
    if (at) {
      const words = lines(at);
      tip.replaceChildren(...[["b", words.title], ["span", words.where], ...words.facts.map((s) => ["div", s])].map(
        ([name, content]) => { const e = document.createElement(name); e.textContent = content; return e; }));
      const left = Math.min(Math.max(0, px + 14), Math.max(0, width - tip.offsetWidth));
      tip.style.left = left + "px";
      const below = canvas.offsetTop + py + 18;
      const fits = box.top + py + 18 + tip.offsetHeight < window.innerHeight;
      tip.style.top = (fits ? below : canvas.offsetTop + py - 12 - tip.offsetHeight) + "px";
    }
    redraw();
  }

  const redraw = () => { if (!frame) frame = requestAnimationFrame(draw); };
  function show(from, to) {
    const most = whole[1] - whole[0], span = Math.min(most, Math.max(to - from, data.tick * 20));
    const start = Math.min(Math.max(from + (to - from - span) / 2, whole[0]), whole[1] - span);
    view = [start, start + span];
    redraw();
  }
  const zoom = (factor, centre = (view[0] + view[1]) / 2) =>
    show(centre - (centre - view[0]) * factor, centre + (view[1] - centre) * factor);
  const pan = (part) => { const by = (view[1] - view[0]) * part; show(view[0] + by, view[1] + by); };
  const actions = { in: () => zoom(0.5), out: () => zoom(2), left: () => pan(-0.25), right: () => pan(0.25),
    step: () => show(...step), all: () => show(...whole), clear: () => select(0, 0) };
  const keys = { Escape: "clear", "+": "in", "=": "in", w: "in", "-": "out", s: "out", ArrowLeft: "left", a: "left",
    ArrowRight: "right", d: "right", 0: "step", Home: "step", End: "all" };

  function size() {
    width = root.clientWidth; pen.font = LABEL;
    gutter = Math.min(width / 3, 12 + Math.max(...rows.map((row) => pen.measureText(row.track.name).width)));
    const density = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * density); canvas.height = Math.round(height * density);
    canvas.style.height = height + "px";
    pen.setTransform(density, 0, 0, density, 0, 0);
    redraw();
  }

  let drag = null;
  const selecting = (e) => e.shiftKey || marker.getAttribute("aria-pressed") === "true";
  canvas.addEventListener("pointerdown", (e) => {
    drag = { x: e.clientX, view: [...view], moved: false, from: selecting(e) ? us(e.offsetX) : null };
    canvas.setPointerCapture(e.pointerId);
  });
  canvas.addEventListener("pointermove", (e) => {
    if (!drag) return point(e);
    const by = ((drag.x - e.clientX) / (width - gutter)) * (drag.view[1] - drag.view[0]);
    drag.moved = drag.moved || Math.abs(drag.x - e.clientX) > 3;
    if (drag.moved && drag.from !== null) {
      const to = Math.min(Math.max(us(e.offsetX), view[0]), view[1]);
      tip.hidden = true; at = null;
      return select(Math.min(drag.from, to), Math.max(drag.from, to));
    }
    if (drag.moved) { tip.hidden = true; at = null; show(drag.view[0] + by, drag.view[1] + by); }
  });
  canvas.addEventListener("pointerup", (e) => {
    if (drag && !drag.moved) {
      if (drag.from !== null) select(0, 0);
      point(e);
      picked.textContent = at ? sentence(at) : "";
    }
    drag = null;
  });
  canvas.addEventListener("pointerleave", () => { if (!drag) { at = null; tip.hidden = true; redraw(); } });
  canvas.addEventListener("wheel", (e) => {
    if (e.ctrlKey || e.metaKey) { zoom(Math.exp(e.deltaY * 0.003), us(e.offsetX)); }
    else if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) pan(e.deltaX / (width - gutter));
    else return;
    e.preventDefault();
  }, { passive: false });
  canvas.addEventListener("dblclick", (e) => zoom(0.4, us(e.offsetX)));
  canvas.addEventListener("keydown", (e) => {
    const action = !e.ctrlKey && !e.metaKey && !e.altKey && keys[e.key];
    if (action) { actions[action](); e.preventDefault(); }
  });
  root.querySelectorAll("[data-do]").forEach((b) => b.addEventListener("click", () => actions[b.dataset.do]()));
  wanted.addEventListener("input", search);
  wanted.addEventListener("keydown", (e) => {
    if (e.key === "Enter") { next(e.shiftKey ? -1 : 1); e.preventDefault(); }
    if (e.key === "Escape") { wanted.value = ""; search(); }
  });
  marker.addEventListener("click", () => {
    const on = marker.getAttribute("aria-pressed") !== "true";
    marker.setAttribute("aria-pressed", String(on));
    canvas.style.cursor = on ? "crosshair" : "";
    if (!on) select(0, 0);
  });
  root.querySelector(".tools").hidden = false;
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); redraw(); });
  new ResizeObserver(size).observe(root);
  readColours();
  size();
})();
