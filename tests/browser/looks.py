"""What a page shows, as the browser has drawn it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.browser.devtools import Page

LOOK = Path(__file__).with_name("look.js").read_text()

_COLOURS = """(async () => {
  const image = new Image();
  image.src = "data:image/png;base64,%s";
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width, image.height];
  const drawn = canvas.getContext("2d", {willReadFrequently: true});
  drawn.drawImage(image, 0, 0);
  return %s.map(([left, top, width, height]) => {
    const data = drawn.getImageData(left, top, Math.max(1, width), Math.max(1, height)).data;
    const count = new Map();
    for (let i = 0; i < data.length; i += 4) {
      const colour = (data[i] << 16) | (data[i + 1] << 8) | data[i + 2];
      count.set(colour, (count.get(colour) || 0) + 1);
    }
    return [count.size, 1 - Math.max(...count.values()) / (data.length / 4)];
  });
})()"""


def look(page: Page) -> dict[str, Any]:
    """All that ``look.js`` finds out, in one go."""
    return page.evaluate(LOOK)


def ink(page: Page, boxes: Sequence[Sequence[float]]) -> list[tuple[int, float]]:
    """Of parts of a page as it is drawn: how many colours, and the share of the rarer ones.

    Parameters
    ----------
    boxes
        Left, top, width and height in CSS pixels from the page's begin.
    """
    png = base64.b64encode(page.picture()).decode()
    with page.browser.page() as empty:  # a page of ours may forbid itself to look at pictures
        return empty.evaluate(_COLOURS % (png, [[round(side) for side in box] for box in boxes]))


def nameless(page: Page) -> list[str]:
    """Pictures for which the browser has no words to tell who cannot see them."""
    page.call("Accessibility.enable")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    page.call("Accessibility.disable")
    pictures = [
        node for node in nodes
        if not node["ignored"] and node["role"]["value"] in ("image", "img", "graphics-document",
                                                            "SvgRoot", "Canvas")
    ]  # fmt: skip
    return [str(node) for node in pictures if len(node.get("name", {}).get("value", "")) < 8]
