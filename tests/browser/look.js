// What a page looks like to who reads it: evaluated in the page, returns plain data.
(() => {
  const seen = element => element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  const place = element => {
    const box = element.getBoundingClientRect();
    return [box.left + scrollX, box.top + scrollY, box.width, box.height];
  };
  const all = selector => [...document.querySelectorAll(selector)].filter(seen);
  const right = element => element.getBoundingClientRect().right;
  // What lies beyond the window's edge, or a table's.
  const beyond = all("body *").filter(each => right(each) > innerWidth + 1 && !each.closest(".scroll"));
  return {
    beyond: beyond.slice(0, 5).map(each => `${each.tagName}: ${each.textContent.trim().slice(0, 40)}`),
    small: all("p, td, th, li, dt, dd, code").filter(each => parseFloat(getComputedStyle(each).fontSize) < 11).length,
    colours: ["backgroundColor", "color"].map(name => getComputedStyle(document.body)[name]),
    verdict: document.querySelector("#verdict").textContent,
    drawings: all("figure img.heat[alt]").map(place),
    bars: all("#time .bar").length,
    parts: Object.fromEntries(all("[id]").map(each => [each.id, place(each)])),
  };
})()
