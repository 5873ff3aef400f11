"use strict";
(() => {
  const rows = JSON.parse(document.getElementById("picks-data").textContent);
  const body = document.querySelector("#picks tbody");
  const [one, other] = ["pick-one", "pick-other"].map((id) => document.getElementById(id));

  const shown = (ms) => {
    if (ms >= 1000) return ms.toLocaleString("en-US", { maximumFractionDigits: 0 });
    return ms >= 10 ? ms.toFixed(1) : ms.toFixed(3);
  };

  function line(title, ...values) {
    const row = body.insertRow();
    row.insertCell().textContent = title;
    for (const value of values) {
      const cell = row.insertCell();
      cell.className = "num";
      cell.textContent = value;
    }
  }

  function compared(title, a, b) {
    if (a === null || b === null) return;
    const sign = b > a ? "+" : b < a ? "−" : "";
    line(title, shown(a), shown(b), sign + shown(Math.abs(b - a)));
  }

  function fill() {
    const a = rows[one.value], b = rows[other.value];
    body.replaceChildren();
    for (const name of new Set([...Object.keys(a.settings), ...Object.keys(b.settings)])) {
      if (a.settings[name] !== b.settings[name]) line(name, a.settings[name] ?? "–", b.settings[name] ?? "–", "");
    }
    for (const name of Object.keys(a.figures)) compared(name, a.figures[name], b.figures[name]);
    const gap = (name) => Math.abs((b.parts[name] ?? 0) - (a.parts[name] ?? 0));
    const names = [...new Set([...Object.keys(a.parts), ...Object.keys(b.parts)])].sort((x, y) => gap(y) - gap(x));
    for (const name of names) compared(name + " ms", a.parts[name] ?? 0, b.parts[name] ?? 0);
  }

  one.addEventListener("change", fill);
  other.addEventListener("change", fill);
})();
