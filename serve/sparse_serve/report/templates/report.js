// Tables sort by the column whose head is pressed; what a point of a plot is, is said where it is pointed at.
document.querySelectorAll("table.sorts th").forEach((head) => {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => {
    const column = head.cellIndex;
    const body = head.closest("table").tBodies[0];
    const down = head.getAttribute("aria-sort") === "ascending";
    head.parentNode.querySelectorAll("th").forEach((each) => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => {
      const cell = row.cells[column];
      if (!cell) return "";
      const value = cell.dataset.sort ?? cell.textContent.trim();
      return value === "" || isNaN(value.replaceAll(",", "")) ? value : Number(value.replaceAll(",", ""));
    };
    const compare = (a, b) => {
      const [one, other] = [key(a), key(b)];
      if (typeof one === "number" && typeof other === "number") return one - other;
      if (typeof one !== typeof other) return typeof one === "number" ? -1 : 1;
      return one.localeCompare(other);
    };
    const rows = [...body.rows].sort(compare);
    if (down) rows.reverse();
    body.append(...rows);
  });
});

// A point's text is its accessible name; the tip shows the same to the eye, and describes a point that has the focus.
const tip = document.getElementById("tip");
const hide = () => {
  tip.hidden = true;
  document.querySelectorAll("[aria-describedby=tip]").forEach((each) => each.removeAttribute("aria-describedby"));
};
const show = (event) => {
  hide();
  const point = event.target.closest(".tip");
  if (!point) return;
  tip.textContent = point.getAttribute("aria-label");
  tip.hidden = false;
  point.setAttribute("aria-describedby", "tip");
  const box = point.getBoundingClientRect();
  const left = Math.min(Math.max(8, box.left + box.width / 2 - tip.offsetWidth / 2), innerWidth - tip.offsetWidth - 8);
  tip.style.left = `${left + scrollX}px`;
  tip.style.top = `${Math.max(0, box.top - tip.offsetHeight - 8) + scrollY}px`;
};
document.querySelectorAll(".tip > title").forEach((title) => title.remove());
for (const kind of ["mouseover", "focusin", "click"]) document.addEventListener(kind, show);
document.addEventListener("mouseout", hide);
addEventListener("keydown", (event) => {
  if (event.key === "Escape") hide();
});
addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach((each) => { each.open = true; });
});
