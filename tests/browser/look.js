// What a page looks like to who reads it: evaluated in the page, returns plain data.
(() => {
  // Colours, as [r, g, b, alpha] of 0 to 1, as computed styles write them.
  const parse = text => {
    const found = text.match(/^rgba?\(([\d.]+), ([\d.]+), ([\d.]+)(?:, ([\d.]+))?\)$/);
    if (!found) throw new Error(`no colour: ${text}`);
    return [found[1] / 255, found[2] / 255, found[3] / 255, +(found[4] ?? 1)];
  };
  const over = (top, below) => {
    const alpha = top[3] + below[3] * (1 - top[3]);
    const mixed = [0, 1, 2].map(i => (top[i] * top[3] + below[i] * below[3] * (1 - top[3])) / (alpha || 1));
    return [...mixed, alpha];
  };
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
  const canvasColour = dark ? [0.07, 0.07, 0.07, 1] : [1, 1, 1, 1];
  const grounds = new Map();
  const ground = element => {
    if (!element) return canvasColour;
    if (!grounds.has(element)) {
      const own = parse(getComputedStyle(element).backgroundColor);
      grounds.set(element, own[3] === 1 ? own : over(own, ground(element.parentElement)));
    }
    return grounds.get(element);
  };
  const opacity = element =>
    element ? +getComputedStyle(element).opacity * opacity(element.parentElement) : 1;
  const seen = element =>
    element.checkVisibility({ opacityProperty: true, visibilityProperty: true, contentVisibilityAuto: true });
  const name = element =>
    element.tagName.toLowerCase() + (element.id ? "#" + element.id : "") +
    [...element.classList].map(c => "." + c).join("");

  // Text: its size, and its contrast with what is behind it. One element counts once.
  const small = [], faint = [], elements = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.data.trim()) elements.add(node.parentElement);
  }
  let texts = 0;
  for (const element of elements) {
    if (["SCRIPT", "STYLE", "TITLE", "DESC", "NOSCRIPT"].includes(element.tagName.toUpperCase())) continue;
    if (!seen(element)) continue;
    const style = getComputedStyle(element);
    const scale = element.getScreenCTM ? Math.hypot(element.getScreenCTM().a, element.getScreenCTM().b) : 1;
    const size = parseFloat(style.fontSize) * scale;
    texts += 1;
    if (size < 11) small.push(`${name(element)}: ${size} px: ${element.textContent.trim().slice(0, 40)}`);
    const paint = element instanceof SVGElement ? style.fill : style.color;
    const own = parse(paint), behind = ground(element);
    const shown = over([own[0], own[1], own[2], own[3] * opacity(element)], behind);
    const least = size >= 24 || (size >= 18.66 && +style.fontWeight >= 700) ? 3 : 4.5;
    const ratio = contrast(shown, behind);
    if (ratio < least - 0.005) {
      faint.push(`${name(element)}: ${ratio.toFixed(2)}: ${element.textContent.trim().slice(0, 40)}`);
    }
  }

  // Every legend stands out from its ground, and no figure is empty.
  const place = element => {
    const box = element.getBoundingClientRect();
    return [box.left + scrollX, box.top + scrollY, box.width, box.height];
  };
  const figures = [...document.querySelectorAll("figure")].map(figure => ({
    id: figure.id,
    drawings: [...figure.querySelectorAll("svg")].filter(seen).map(place),
    caption: figure.querySelector("figcaption").textContent.trim(),
  }));
  const dim = [];
  for (const mark of document.querySelectorAll(".legend i")) {
    const style = getComputedStyle(mark);
    if (style.backgroundImage !== "none" || !seen(mark)) continue;
    const paint = parseFloat(style.borderTopWidth) ? style.borderTopColor : style.backgroundColor;
    const behind = ground(mark.parentElement);
    const ratio = contrast(over(parse(paint), behind), behind);
    if (ratio < 3 - 0.005) dim.push(`${name(mark)}: ${ratio.toFixed(2)}`);
  }

  const beyond = [...document.querySelectorAll("body *")].filter(element => {
    const box = element.getBoundingClientRect();
    return box.width > 0 && box.right > innerWidth + 1 && !element.closest(".scroll") && seen(element);
  });
  const cut = [...document.querySelectorAll(".scroll")].filter(
    box => seen(box) && box.scrollWidth > box.clientWidth + 1
  );
  // Of a drawing, no letter lies beyond its edge, where it would not be seen.
  const clipped = [...document.querySelectorAll("svg text")].filter(text => {
    const [own, all] = [text, text.closest("svg")].map(each => each.getBoundingClientRect());
    return seen(text) && (own.left < all.left - 1 || own.right > all.right + 1);
  });
  const count = selector => document.querySelectorAll(selector).length;
  return {
    texts, small, faint, dim, figures,
    wide: document.documentElement.scrollWidth - innerWidth,
    beyond: beyond.slice(0, 5).map(name),
    clipped: clipped.map(text => text.textContent),
    cut: cut.map(box => box.textContent.trim().slice(0, 40)),
    nameless: [...document.querySelectorAll("svg")].filter(
      each => each.getAttribute("role") !== "img" || (each.getAttribute("aria-label") || "").length < 8
    ).map(name),
    ground: ground(document.body),
    verdict: document.querySelector("#verdict").textContent,
    title: document.title,
    count: { script: count("script") - 1, img: count("img"), bars: count("#time .bar") },
    parts: Object.fromEntries([...document.querySelectorAll("[id]")].map(each => [each.id, {
      text: each.textContent, box: place(each),
    }])),
    height: document.documentElement.scrollHeight,
  };
})()
