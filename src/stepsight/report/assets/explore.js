"use strict";
(() => {
  const data = JSON.parse(document.getElementById("explore-data").textContent);
  const root = document.getElementById("explore");
  const get = (name) => root.querySelector(`[data-${name}]`);
  const at = data.start.slice();
  const stride = data.axes.map((_, i) => data.axes.slice(i + 1).reduce((n, a) => n * a.names.length, 1));
  const index = (place) => place.reduce((sum, v, i) => sum + v * stride[i], 0);
  const make = (name, words, classes) => {
    const e = document.createElement(name);
    if (words !== undefined) e.textContent = words;
    if (classes) e.className = classes;
    return e;
  };
  function time(v) {
    const a = Math.abs(v);
    if (a < 1e3) return v.toFixed(1) + " µs";
    return a < 1e6 ? (v / 1e3).toFixed(2) + " ms" : (v / 1e6).toFixed(2) + " s";
  }
  const plain = (v) => (Math.abs(v) >= 1e5 ? Math.round(v).toLocaleString("en") : Number(v.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 4 }));

  const controls = data.axes.map((axis, i) => {
    const box = make("label", undefined, "slider");
    const name = make("span", axis.title), value = make("b");
    const input = make("input");
    input.type = "range"; input.min = 0; input.max = axis.names.length - 1; input.step = 1; input.value = at[i];
    input.setAttribute("aria-label", axis.title);
    input.addEventListener("input", () => { at[i] = Number(input.value); show(); });
    const ends = make("span", undefined, "ends");
    ends.append(make("small", axis.names[0]), make("small", axis.names[axis.names.length - 1]));
    box.append(name, value, input, ends);
    get("controls").append(box);
    return { value, input };
  });

  function headline(cell) {
    const number = get("number");
    if (!cell) { number.textContent = "no answer"; return; }
    const [value, unit] = time(cell.step_us).split(" ");
    number.replaceChildren(value + " ", make("small", unit + " a step"));
  }

  function figures(cell) {
    const entries = data.figures.filter((f) => cell && cell.figures[f.key] !== undefined && cell.figures[f.key] !== null);
    get("figures").replaceChildren(...entries.map((f) => {
      const box = make("div"), dd = make("dd", (f.share ? (100 * cell.figures[f.key]).toFixed(1) + " %" : plain(cell.figures[f.key])) + (f.unit ? " " + f.unit : ""));
      box.append(make("dt", f.title), dd);
      return box;
    }));
  }

  function parts(cell) {
    const bar = get("bar"), key = get("legend");
    const entries = cell ? Object.entries(cell.parts) : [];
    const whole = entries.reduce((sum, p) => sum + p[1], 0) || 1;
    bar.replaceChildren(...entries.map(([name, us]) => {
      const look = data.looks[name] || [name, "other"], part = make("i", undefined, "c-" + look[1]);
      part.style.flex = us / whole + " 0 0";
      part.title = look[0] + ": " + time(us);
      part.append(make("b", look[0]));
      return part;
    }));
    key.replaceChildren(...entries.map(([name, us]) => {
      const look = data.looks[name] || [name, "other"], line = make("li"), named = make("span", undefined, "named");
      named.append(make("span", undefined, "dot c-" + look[1]), make("span", look[0] + " " + time(us)));
      line.append(named);
      return line;
    }));
    bar.setAttribute("aria-label", entries.map(([n, us]) => (data.looks[n] || [n])[0] + " " + time(us)).join(", "));
  }

  // Along every axis with the others held: one small chart each, the place chosen marked.
  function strips() {
    get("strips").replaceChildren(...data.axes.map((axis, i) => {
      const box = make("div", undefined, "along");
      box.append(make("h3", "step time along " + axis.title));
      const cells = axis.names.map((_, v) => { const place = at.slice(); place[i] = v; return data.cells[index(place)]; });
      const most = Math.max(...cells.map((c) => (c ? c.high_us : 0)), 1e-9);
      axis.names.forEach((name, v) => {
        const row = make("button", undefined, "row" + (v === at[i] ? " on" : ""));
        row.type = "button";
        const track = make("span", undefined, "track"), cell = cells[v];
        if (cell) {
          const fill = make("i"); fill.style.width = (100 * cell.step_us) / most + "%";
          const band = make("em"); band.style.left = (100 * cell.low_us) / most + "%"; band.style.width = (100 * (cell.high_us - cell.low_us)) / most + "%";
          track.append(fill, band);
          if (!cell.fits) row.classList.add("full");
        }
        row.append(make("span", name), track, make("span", cell ? time(cell.step_us) + (cell.fits ? "" : " ✗") : "–", "num"));
        row.title = cell ? cell.note || "" : (data.why || {})[index(at)] || "no prediction";
        row.addEventListener("click", () => { at[i] = v; show(); });
        box.append(row);
      });
      return box;
    }));
  }

  function show() {
    const cell = data.cells[index(at)];
    controls.forEach((c, i) => { c.value.textContent = data.axes[i].names[at[i]]; c.input.value = at[i]; c.input.setAttribute("aria-valuetext", data.axes[i].names[at[i]]); });
    headline(cell); figures(cell); parts(cell); strips();
    get("interval").textContent = cell ? "90 % interval " + time(cell.low_us) + " to " + time(cell.high_us) : "";
    const note = get("note");
    note.textContent = cell ? (cell.fits ? cell.note || "" : "Does not fit into memory. " + (cell.note || "")) : (data.why || {})[index(at)] || "This combination has no prediction.";
    note.className = cell && cell.fits ? "soft" : "bad";
    get("command").textContent = cell ? cell.command || "" : "";
  }
  root.hidden = false;
  show();
})();
