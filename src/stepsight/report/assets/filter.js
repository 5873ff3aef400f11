"use strict";
for (const input of document.querySelectorAll("input[data-filter]")) {
  const rows = document.getElementById(input.dataset.filter).querySelectorAll("tbody tr");
  input.addEventListener("input", () => {
    const words = input.value.trim().toLowerCase();
    for (const row of rows) row.hidden = words !== "" && !row.textContent.toLowerCase().includes(words);
  });
}
