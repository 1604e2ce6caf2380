// Names the column of each cell, which site.css shows on narrow screens.
for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
  const headers = [...table.querySelectorAll("thead th")].map((header) => header.textContent);
  for (const row of table.querySelectorAll("tbody tr")) {
    [...row.cells].forEach((cell, index) => (cell.dataset.label = headers[index] ?? ""));
  }
  if (headers.length > 1) table.dataset.labelled = "";
}

// The copy button copies the commands of a session, without prompts and output.
for (const code of document.querySelectorAll(".language-console code")) {
  const commands = code.textContent.split("\n").filter((line) => /^[$>] /.test(line));
  code.dataset.copy = commands.map((line) => line.slice(2)).join("\n");
}
