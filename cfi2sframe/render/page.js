// SPDX-License-Identifier: Apache-2.0
"use strict";
for (const frame of document.querySelectorAll(".scroll")) {
  const table = frame.querySelector("table");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  if (rows.length < 2) continue;
  const heads = [...table.tHead.rows[0].cells];

  heads.forEach((head, column) => {
    const isNumber = head.classList.contains("n");
    const value = (row) => {
      const text = row.cells[column].textContent;
      if (!isNumber) return text;
      return text === "" ? -Infinity : parseFloat(text.replace(/[,%+ ]/g, ""));
    };
    const compare = (a, b) => (isNumber ? value(a) - value(b) : value(a).localeCompare(value(b)));
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const first = isNumber ? "descending" : "ascending";
      const second = isNumber ? "ascending" : "descending";
      const order = head.getAttribute("aria-sort") === first ? second : first;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      body.append(...rows.sort((a, b) => sign * compare(a, b)));
    });
  });

  if (rows.length <= 15) continue;
  const name = table.caption.textContent.toLowerCase();
  const filter = document.createElement("input");
  filter.type = "search";
  filter.placeholder = `Filter ${name}`;
  filter.setAttribute("aria-label", filter.placeholder);
  const count = document.createElement("output");
  const bar = document.createElement("div");
  bar.className = "filter";
  bar.append(filter, count);
  frame.before(bar);
  filter.addEventListener("input", () => {
    const wanted = filter.value.toLowerCase();
    let shown = 0;
    for (const row of rows) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
      if (!row.hidden) shown += 1;
    }
    const sums = table.tFoot ? `; the last line is of all ${rows.length}` : "";
    count.textContent = wanted ? `${shown} of ${rows.length} shown${sums}` : "";
  });
}
