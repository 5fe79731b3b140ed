"use strict";

// Tables sort by any column: the first click ascending, the next descending.

const number = (text) => parseFloat(text.replaceAll(",", "").replace("−", "-"));

function compare(a, b) {
  const [x, y] = [number(a), number(b)];
  if (Number.isNaN(x) || Number.isNaN(y)) {
    return Number.isNaN(x) - Number.isNaN(y) || a.localeCompare(b, undefined, { numeric: true });
  }
  return x - y;
}

function sortRows(table, heading) {
  const column = heading.cellIndex;
  const down = heading.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  const body = table.tBodies[0];
  const text = (row) => row.cells[column].textContent.trim();
  const missing = (row) => text(row) === "—";
  const rows = [...body.rows].sort(
    (a, b) => missing(a) - missing(b) || (down ? -1 : 1) * compare(text(a), text(b)),
  );
  body.append(...rows);
}

for (const heading of document.querySelectorAll("thead th")) {
  const table = heading.closest("table");
  if (table.tBodies[0].rows.length < 2) continue;
  const button = document.createElement("button");
  button.type = "button";
  button.append(...heading.childNodes);
  button.addEventListener("click", () => sortRows(table, heading));
  heading.append(button);
}

// What is wider than the page scrolls by keyboard too.

for (const wide of document.querySelectorAll(".wide, pre")) {
  if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0;
}

// Pictures open in full size; Escape, a click or the button closes them.

const dialog = document.createElement("dialog");
const close = document.createElement("button");
const large = document.createElement("img");
close.type = "button";
close.textContent = "Close";
dialog.addEventListener("click", () => dialog.close());
document.body.append(dialog);

for (const image of document.querySelectorAll("figure > img")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "enlarge";
  button.setAttribute("aria-label", `Enlarge: ${image.alt}`);
  image.replaceWith(button);
  button.append(image);
  button.addEventListener("click", () => {
    large.src = image.src;
    large.alt = image.alt;
    large.className = image.closest("figure").className;
    dialog.setAttribute("aria-label", image.alt);
    dialog.replaceChildren(close, large);
    dialog.showModal();
  });
}

// The map tells about the example under the pointer, or the one that the arrow keys reach.

function startMap(codes) {
  const svg = codes.querySelector("svg");
  const circles = [...svg.querySelectorAll("circle")];
  const points = circles.map((circle) => [circle.cx.baseVal.value, circle.cy.baseVal.value]);
  const { names, rows } = JSON.parse(codes.querySelector("script").textContent);
  const panel = codes.querySelector(".example");
  const field = panel.querySelector("input");
  const list = panel.querySelector("dl");
  const image = panel.querySelector("img");
  const ring = circles[0].cloneNode();
  ring.setAttribute("class", "ring");
  let current = -1;

  function show(index) {
    if (index === current || !(index in rows)) return;
    current = index;
    ring.setAttribute("cx", points[index][0]);
    ring.setAttribute("cy", points[index][1]);
    circles[0].parentNode.append(ring);
    field.value = rows[index][0].replaceAll(",", "");
    list.replaceChildren();
    names.forEach((name, place) => {
      const pair = [document.createElement("dt"), document.createElement("dd")];
      [pair[0].textContent, pair[1].textContent] = [name, rows[index][place]];
      if (place) list.append(...pair);
    });
    if (image) {
      const { across, down } = image.dataset;
      const [x, y] = [index % across, Math.floor(index / across)];
      image.style.transform = `translate(${(-100 * x) / across}%, ${(-100 * y) / down}%)`;
      image.alt = `Example ${rows[index][0]}`;
      image.parentNode.hidden = false;
    }
  }

  function nearest(cost) {
    let [best, least] = [-1, Infinity];
    points.forEach(([x, y], index) => {
      const value = cost(x, y);
      if (value < least) [best, least] = [index, value];
    });
    return best;
  }

  function point(event) {
    const place = new DOMPoint(event.clientX, event.clientY);
    const { x, y } = place.matrixTransform(svg.getScreenCTM().inverse());
    const reach = (24 * 1000) / svg.clientWidth;
    const distance = (a, b) => Math.hypot(a - x, b - y);
    const found = nearest(distance);
    if (distance(...points[found]) <= reach) show(found);
  }

  const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

  function step(event) {
    const [dx, dy] = steps[event.key] ?? [0, 0];
    if (!dx && !dy) return;
    event.preventDefault();
    const [x, y] = points[current];
    // The nearest point within 45 degrees of the direction.
    const found = nearest((a, b) => {
      const along = dx * (a - x) + dy * (b - y);
      const across = Math.abs(dy * (a - x)) + Math.abs(dx * (b - y));
      return along > 0 && across <= along ? along + across : Infinity;
    });
    show(found);
  }

  svg.setAttribute("role", "application");
  svg.setAttribute("tabindex", "0");
  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("keydown", step);
  field.addEventListener("input", () => {
    show(rows.findIndex((row) => row[0].replaceAll(",", "") === field.value));
  });
  panel.hidden = false;
  show(0);
}

document.querySelectorAll(".codes").forEach(startMap);
