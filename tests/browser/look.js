// What a page looks like to who reads it: evaluated in the page, returns plain data.
(() => {
  // Colours, as [r, g, b, alpha] of 0 to 1, as computed styles write them.
  const parse = text => text.match(/[\d.]+/g).map((v, i) => (i < 3 ? v / 255 : +v)).concat(1).slice(0, 4);
  const over = (top, below) => top.map((v, i) => (i < 3 ? v * top[3] + below[i] * (1 - top[3]) : 1));
  // WCAG 2.2: relative luminance, contrast ratio.
  const luminance = colour => {
    const [r, g, b] = colour.map(v => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const dark = matchMedia("(prefers-color-scheme: dark)").matches && !matchMedia("print").matches;
  const canvas = dark ? [0.07, 0.07, 0.07, 1] : [1, 1, 1, 1];
  const ground = element =>
    element ? over(parse(getComputedStyle(element).backgroundColor), ground(element.parentElement)) : canvas;
  const seen = element => element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  const words = element => `${element.tagName}: ${element.textContent.trim().slice(0, 40)}`;

  // Text: its size, and its contrast with what is behind it. One element counts once.
  const small = [], faint = [], elements = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.data.trim() && !["SCRIPT", "STYLE"].includes(node.parentElement.tagName) && seen(node.parentElement)) {
      elements.add(node.parentElement);
    }
  }
  for (const element of elements) {
    const style = getComputedStyle(element), behind = ground(element);
    const own = parse(style.color);
    if (parseFloat(style.fontSize) < 11) small.push(words(element));
    if (contrast(over(own, behind), behind) < 4.495) faint.push(words(element));
  }

  // What lies beyond the window's edge, or a table's.
  const place = element => {
    const box = element.getBoundingClientRect();
    return [box.left + scrollX, box.top + scrollY, box.width, box.height];
  };
  const all = selector => [...document.querySelectorAll(selector)].filter(seen);
  const right = element => element.getBoundingClientRect().right;
  const beyond = all("body *").filter(each => right(each) > innerWidth + 1 && !each.closest(".scroll"));
  return {
    texts: elements.size, small, faint,
    beyond: beyond.slice(0, 5).map(words),
    ground: ground(document.body),
    verdict: document.querySelector("#verdict").textContent,
    drawings: all("figure img.heat[alt]").map(place),
    bars: all("#time .bar").length,
    parts: Object.fromEntries(all("[id]").map(each => [each.id, place(each)])),
  };
})()
