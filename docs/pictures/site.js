// Names the column of each cell, which site.css shows on narrow screens.
for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
  const headers = [...table.querySelectorAll("thead th")].map((header) => header.textContent);
  for (const row of table.querySelectorAll("tbody tr")) {
    [...row.cells].forEach((cell, index) => (cell.dataset.label = headers[index] ?? ""));
  }
  if (headers.length > 1) table.dataset.labelled = "";
}
