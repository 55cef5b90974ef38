"use strict";
// The page is complete without this script, which adds: values under the pointer and by keyboard, one sparsity at a
// time, sortable tables, and figures to download.

const tip = document.getElementById("tip");

function showTip(text, x, y) {
  tip.textContent = text; // text only: names come from files
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.min(Math.max(8, x + 14), document.documentElement.clientWidth - box.width - 8);
  const above = y - box.height - 12;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${above < 8 ? y + 18 : above}px`;
}

function hideTip() {
  tip.hidden = true;
}

// A <title> shows late and not at all by keyboard, so its text becomes the label, which the tip shows.
for (const title of document.querySelectorAll(".mark > title")) {
  const mark = title.parentNode;
  mark.setAttribute("role", "img");
  mark.setAttribute("aria-label", title.textContent);
  title.remove();
}

for (const chart of document.querySelectorAll(".chart")) {
  const marks = [...chart.querySelectorAll(".mark")];
  marks.forEach((mark, index) => mark.setAttribute("tabindex", index ? "-1" : "0"));
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const at = marks.indexOf(document.activeElement);
    if (event.key === "Escape") hideTip();
    if (!step || at < 0) return;
    event.preventDefault();
    const next = marks[(at + step + marks.length) % marks.length];
    marks[at].setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });
  chart.addEventListener("focusin", (event) => {
    const mark = event.target.closest(".mark");
    if (!mark || !mark.matches(":focus-visible")) return;
    const box = mark.getBoundingClientRect();
    highlight(chart, mark);
    showTip(mark.getAttribute("aria-label"), box.left + box.width / 2, Math.max(box.top, 0));
  });
  chart.addEventListener("focusout", () => leave(chart));
  chart.addEventListener("pointerleave", () => leave(chart));
  const values = chart.closest("figure").querySelector("script");
  if (values) {
    followCurves(chart, JSON.parse(values.textContent));
  } else {
    chart.addEventListener("pointermove", (event) => {
      const mark = event.target.closest(".mark");
      if (mark) showTip(mark.getAttribute("aria-label"), event.clientX, event.clientY);
      else hideTip();
    });
  }
}

function leave(chart) {
  hideTip();
  highlight(chart, null);
}

function highlight(chart, mark) {
  const curve = mark && mark.classList.contains("curve");
  chart.classList.toggle("chosen", Boolean(curve));
  for (const other of chart.querySelectorAll(".curve")) other.classList.toggle("on", other === mark);
}

// Lines are thin: the point nearest to the pointer is the one that is meant.
function followCurves(chart, values) {
  const curves = [...chart.querySelectorAll(".curve")].map((mark) => [mark, [...mark.querySelector("polyline").points]]);
  chart.addEventListener("pointermove", (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse());
    let best = { distance: 24 };
    curves.forEach(([mark, points], index) => {
      points.forEach((point, place) => {
        const distance = Math.hypot(point.x - at.x, point.y - at.y);
        if (distance < best.distance) best = { distance, mark, index, place };
      });
    });
    highlight(chart, best.mark || null);
    if (!best.mark) return hideTip();
    const { name, x, y } = values.curves[best.index];
    const shown = Number(y[best.place].toPrecision(4));
    showTip(`${name}\n${values.x} ${x[best.place]}: ${values.y} ${shown}${values.unit}`, event.clientX, event.clientY);
  });
}

for (const panels of document.querySelectorAll(".panels")) {
  const all = [...panels.querySelectorAll(".panel")];
  if (all.length < 2) continue;
  const choices = document.createElement("div");
  choices.className = "choices";
  choices.setAttribute("role", "group");
  choices.setAttribute("aria-label", "Sparsity");
  choices.append("Sparsity");
  const buttons = all.map((panel) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = panel.dataset.choice;
    button.addEventListener("click", () => choose(panel));
    choices.append(button);
    return button;
  });
  const choose = (panel) => {
    all.forEach((other, index) => {
      other.classList.toggle("off", other !== panel);
      buttons[index].setAttribute("aria-pressed", String(other === panel));
    });
  };
  panels.prepend(choices);
  choose(all[all.length - 1]); // methods differ most at the highest sparsity
}

for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const sign = falling ? -1 : 1;
      body.append(...[...body.rows].sort((a, b) => compare(a.cells[column], b.cells[column], sign)));
    });
  });
}

// Numbers by value, text by letters, cells without a value last whichever way it goes.
function compare(a, b, sign) {
  const [left, right] = [a.dataset.value, b.dataset.value];
  if (a.tagName === "TH") return sign * a.textContent.localeCompare(b.textContent);
  if (left === undefined || right === undefined) return (left === undefined) - (right === undefined);
  return sign * (Number(left) - Number(right));
}

for (const button of document.querySelectorAll(".download")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const shown = [...button.closest("figure").querySelectorAll(".chart")].find((chart) => chart.getClientRects().length);
    const url = URL.createObjectURL(new Blob([standalone(shown)], { type: "image/svg+xml" }));
    const link = document.createElement("a");
    link.href = url;
    link.download = button.dataset.file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  });
}

// The figure as it is without the page: dark on white, with the titles that were taken from its marks.
function standalone(chart) {
  const copy = chart.cloneNode(true);
  const make = (name) => document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const mark of copy.querySelectorAll(".mark")) {
    const title = make("title");
    title.textContent = mark.getAttribute("aria-label");
    mark.prepend(title);
    for (const name of ["tabindex", "role", "aria-label"]) mark.removeAttribute(name);
  }
  const paper = make("rect");
  for (const [name, value] of Object.entries({ width: "100%", height: "100%", fill: "#ffffff" })) paper.setAttribute(name, value);
  copy.prepend(paper);
  copy.classList.remove("chosen");
  return new XMLSerializer().serializeToString(copy);
}
