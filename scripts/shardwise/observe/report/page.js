"use strict";
(() => {
  const phases = ["waiting", "read", "upload", "compute", "download", "write"];
  const tip = document.getElementById("tip");
  const spent = (s) => (s >= 1 || s === 0 ? String(+s.toPrecision(4)) + " s" : +(s * 1000).toPrecision(3) + " ms");
  let lit = null;

  function words(bar) {
    const lines = ["Shard " + bar.dataset.shard + ": " + spent(+bar.dataset.s)];
    if (bar.dataset.state) lines[0] += " so far, " + bar.dataset.state;
    const held = bar.dataset.held ? bar.dataset.held.split(" ").map(Number) : [];
    held.forEach((value, i) => { if (value > 0) lines.push(phases[i] + " " + spent(value)); });
    return lines.join("\n");
  }
  function show(bar, x, y) {
    if (lit !== bar) {
      hide();
      lit = bar;
      bar.classList.add("on");
      tip.textContent = words(bar);
      tip.hidden = false;
    }
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 4)) + "px";
    tip.style.top = (y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 12) : y + 18) + "px";
  }
  function hide() {
    if (lit) lit.classList.remove("on");
    lit = null;
    tip.hidden = true;
  }
  const barOf = (target) => (target instanceof Element ? target.closest(".s") : null);
  for (const kind of ["pointermove", "click"]) {
    document.addEventListener(kind, (event) => {
      const bar = barOf(event.target);
      if (bar) show(bar, event.clientX, event.clientY);
      else if (!(document.activeElement instanceof SVGElement)) hide();
    });
  }

  // One stop of the Tab key for each device; the arrows go from shard to shard.
  for (const plot of document.querySelectorAll("svg.plot")) {
    if (plot.querySelector(".s")) plot.setAttribute("tabindex", "0");
  }
  function step(plot, by) {
    const bars = [...plot.querySelectorAll(".s")];
    const at = lit && plot.contains(lit) ? bars.indexOf(lit) + by : by < 0 ? bars.length - 1 : 0;
    const bar = bars[Math.max(0, Math.min(at, bars.length - 1))];
    const box = bar.getBoundingClientRect();
    show(bar, box.left, box.bottom);
  }
  document.addEventListener("focusin", (event) => {
    if (event.target instanceof SVGElement && event.target.matches(":focus-visible")) step(event.target, 0);
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return hide();
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by || !(event.target instanceof SVGElement)) return undefined;
    event.preventDefault();
    return step(event.target, by);
  });

  for (const table of document.querySelectorAll("table[data-filter]")) {
    const box = document.createElement("div");
    const field = document.createElement("input");
    box.className = "filter";
    field.type = "search";
    field.placeholder = "Show rows that hold …";
    field.setAttribute("aria-label", "Show only rows of the table that hold this text");
    box.append(field);
    table.parentElement.before(box);
    field.addEventListener("input", () => {
      const wanted = field.value.trim().toLowerCase();
      for (const row of table.tBodies[0].rows) {
        row.hidden = wanted !== "" && !row.textContent.toLowerCase().includes(wanted);
      }
    });
  }
})();
