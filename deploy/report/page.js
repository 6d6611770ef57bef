"use strict";
// Shows the values of a chart under the pointer. All text goes in as text, never as markup.
const tip = document.getElementById("tip");

function line(tag, text, colour) {
  const element = document.createElement(tag);
  if (colour) {
    const dot = document.createElement("i");
    dot.className = `c${colour}`;
    element.append(dot);
  }
  element.append(text);
  return element;
}

function nearest(columns, x) {
  return columns.reduce((best, column) => (Math.abs(column[0] - x) < Math.abs(best[0] - x) ? column : best));
}

for (const figure of document.querySelectorAll("figure[data-hover]")) {
  const columns = JSON.parse(figure.dataset.hover);
  const svg = figure.querySelector("svg");
  const cross = figure.querySelector(".cross");
  if (!columns.length) continue;

  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const [x, heading, rows] = nearest(columns, (event.clientX - box.left) * scale);
    cross.setAttribute("x1", x);
    cross.setAttribute("x2", x);
    cross.setAttribute("visibility", "visible");
    tip.replaceChildren(line("b", heading), ...rows.map(([colour, label, value]) => line("div", `${label}  ${value}`, colour)));
    tip.hidden = false;
    const left = box.left + x / scale + 14;
    tip.style.left = `${left + tip.offsetWidth > innerWidth - 8 ? left - tip.offsetWidth - 28 : left}px`;
    tip.style.top = `${Math.max(8, event.clientY - tip.offsetHeight - 12)}px`;
  });
  svg.addEventListener("pointerleave", () => {
    tip.hidden = true;
    cross.setAttribute("visibility", "hidden");
  });
}
