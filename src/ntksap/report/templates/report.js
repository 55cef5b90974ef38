"use strict";
// The page's words and tables are complete without this script, which draws the charts (with Plotly, which is loaded before
// it) and adds: one choice at a time, values by keyboard, sortable tables, and files to download.

const LIGHT = { ink: "#1b1f24", soft: "#57606a", grid: "#e3e6ea", page: "#ffffff", bad: "#c8102e", shade: "#1b1f2414" };
const coarse = matchMedia("(pointer: coarse)").matches; // a finger: dragging is for scrolling
const CONFIG = {
  displaylogo: false,
  displayModeBar: coarse ? true : "hover",
  modeBarButtons: [["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]], // and none that sends anything
  locale: "en",
};
const figures = [...document.querySelectorAll(".plot")].map((plot) => {
  const figure = plot.closest("figure");
  return { plot, figure, text: figure.querySelector("script").textContent };
});

function palette() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(Object.keys(LIGHT).map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

// What Plotly is to draw: the chart with names replaced by colours, and a legend beside it, or below if it is narrow.
function chartOf(text, width, colours) {
  const isColour = (key, value) => key.endsWith("color") && Object.hasOwn(colours, value);
  const chart = JSON.parse(text, (key, value) => (isColour(key, value) ? colours[value] : value));
  const font = { family: "system-ui, sans-serif", size: 12, color: colours.ink };
  const layout = { ...chart.layout, font, width: Math.max(width, chart.minWidth), height: chart.height + 60 };
  const isMap = chart.data[0].type === "heatmap";
  const names = chart.data.filter((trace) => trace.showlegend).map((trace) => trace.name);
  Object.assign(layout, { paper_bgcolor: colours.page, plot_bgcolor: colours.page, hovermode: "closest" });
  Object.assign(layout, { margin: { l: 10, r: 12, t: isMap ? 6 : 34, b: 60 }, dragmode: coarse ? false : "zoom" });
  layout.hoverlabel = { font, bgcolor: colours.page, bordercolor: colours.soft, namelength: -1 };
  layout.legend = { groupclick: "togglegroup", bgcolor: colours.page, tracegroupgap: 0 };
  if (layout.width < 640 || isMap) {
    const lines = names.map((name) => name.split("<br>"));
    const entry = 6.5 * Math.max(...lines.flat().map((text) => text.length), 0);
    const high = 4 + 16 * Math.max(...lines.map((parts) => parts.length), 1);
    const rows = Math.ceil(names.length / Math.max(1, Math.floor((layout.width - 80) / (entry + 46))));
    Object.assign(layout.legend, { orientation: "h", entrywidth: entry, yref: "container", y: 0, yanchor: "bottom", x: 0 });
    layout.height += high * rows;
    layout.margin.b += high * rows;
  }
  return { data: chart.data, layout };
}

function draw({ plot, text }) {
  const width = plot.parentElement.clientWidth;
  if (!width) return; // another choice is shown
  const { data, layout } = chartOf(text, width, palette());
  (plot.data || []).forEach((trace, index) => { data[index].visible = trace.visible; }); // what the reader has hidden
  const config = data[0].type === "heatmap" ? { ...CONFIG, displayModeBar: false } : CONFIG; // it shows all there is
  Plotly.react(plot, data, layout, config);
}

const drawAll = () => figures.forEach(draw);

// Values by keyboard: right and left go along a line, up and down to the next.
function valueAt(plot, place, [down, right]) {
  const isMap = plot.data[0].type === "heatmap";
  const lines = isMap
    ? plot.data[0].z.map((row, yval) => row.map((_, xval) => ({ xval, yval })))
    : plot.data
        .map((trace, curveNumber) => ({ trace, points: trace.x.map((_, pointNumber) => ({ curveNumber, pointNumber })) }))
        .filter(({ trace }) => trace.hoverinfo !== "skip" && trace.visible !== "legendonly")
        .map(({ points }) => points);
  if (!lines.length) return;
  place.line = (place.line + down + lines.length) % lines.length;
  const points = lines[place.line];
  place.point = Math.min(Math.max(place.point, right ? -1 : 0), points.length - 1); // it may come from a longer line
  place.point = (place.point + right + points.length) % points.length;
  Plotly.Fx.hover(plot, [points[place.point]]);
}

// For readers who listen to the page: the value shown in the chart that has the focus.
function say(plot) {
  if (document.activeElement !== plot) return;
  const labels = [...plot.querySelectorAll(".hovertext")].map((label) => {
    const lines = [...label.querySelectorAll("tspan.line")];
    return lines.length ? lines.map((line) => line.textContent).join(", ") : label.textContent;
  });
  document.getElementById("said").textContent = labels.join("; ");
}

const ARROWS = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
for (const { plot } of figures) {
  const place = { line: 0, point: -1 };
  plot.addEventListener("keydown", (event) => {
    if (event.key === "Escape") Plotly.Fx.unhover(plot);
    if (!ARROWS[event.key] || !plot.data) return;
    event.preventDefault();
    valueAt(plot, place, ARROWS[event.key]);
    setTimeout(() => say(plot), 80); // Plotly shows a value 50 ms after the last, and sends no event for one by keyboard
  });
  plot.addEventListener("blur", () => plot.data && Plotly.Fx.unhover(plot));
}

for (const panels of document.querySelectorAll(".panels")) {
  const all = [...panels.querySelectorAll(".panel")];
  if (all.length < 2) continue;
  const choices = document.createElement("div");
  choices.className = "choices";
  choices.setAttribute("role", "group");
  choices.setAttribute("aria-label", panels.dataset.choice);
  choices.append(panels.dataset.choice);
  const buttons = all.map((panel) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = panel.dataset.choice;
    button.addEventListener("click", () => {
      choose(panel);
      figures.filter(({ plot }) => panel.contains(plot)).forEach(draw);
    });
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
  choose(panels.dataset.choice === "Sparsity" ? all[all.length - 1] : all[0]); // methods differ most at the highest
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

// Numbers by value, names alphabetically, cells without a value last in either direction.
function compare(a, b, sign) {
  const [left, right] = [a.dataset.value, b.dataset.value];
  if (a.tagName === "TH") return sign * a.textContent.localeCompare(b.textContent);
  if (left === undefined || right === undefined) return (left === undefined) - (right === undefined);
  return sign * (Number(left) - Number(right));
}

for (const buttons of document.querySelectorAll(".buttons")) buttons.hidden = false;
for (const button of document.querySelectorAll("button[data-text]")) {
  button.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([button.dataset.text], { type: "text/plain" }));
    link.download = button.dataset.file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
}
// An image is dark on white, whatever the page is, and leaves out what the reader has hidden.
for (const { plot, figure, text } of figures) {
  for (const button of figure.querySelectorAll("[data-image]")) {
    button.addEventListener("click", () => {
      const { data, layout } = chartOf(text, plot.clientWidth, LIGHT);
      plot.data.forEach((trace, index) => { data[index].visible = trace.visible; });
      const { width, height } = layout;
      const filename = JSON.parse(text).file;
      Plotly.downloadImage({ data, layout }, { format: button.dataset.image, filename, width, height, scale: 2 });
    });
  }
}

drawAll();
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) drawAll(); // a phone's browser bars only change the height
  width = innerWidth;
});
for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", drawAll);
