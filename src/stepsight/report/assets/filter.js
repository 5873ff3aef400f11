"use strict";
for (const input of document.querySelectorAll("input[data-filter]")) {
  const rows = document.getElementById(input.dataset.filter).querySelectorAll("tbody tr");
  input.addEventListener("input", () => {
    const words = input.value.trim().toLowerCase();
    for (const row of rows) row.hidden = words !== "" && !row.textContent.toLowerCase().includes(words);
  });
}

const UNITS = { B: 1, KB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, "µs": 1, ms: 1e3, s: 1e6, "%": 1 };
const valueOf = (cell) => {
  const found = cell.textContent.replace(/,/g, "").match(/^(-?[\d.]+)\s*(\S*)/);
  return found ? parseFloat(found[1]) * (UNITS[found[2]] ?? 1) : NaN;
};
for (const head of document.querySelectorAll("[data-sortable] thead th")) {
  head.style.cursor = "pointer";
  head.title = "sort by this column";
  head.addEventListener("click", () => {
    const body = head.closest("table").tBodies[0], at = head.cellIndex;
    const down = head.getAttribute("aria-sort") !== "descending";
    for (const other of head.parentElement.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const order = (a, b) => {
      const [x, y] = [valueOf(a.cells[at]), valueOf(b.cells[at])];
      const by = isNaN(x) || isNaN(y) ? b.cells[at].textContent.localeCompare(a.cells[at].textContent) : y - x;
      return down ? by : -by;
    };
    body.append(...[...body.rows].sort(order));
  });
}
