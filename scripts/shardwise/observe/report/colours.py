"""Colour scales of the heat map, and the PNG that shows them: standard library and NumPy only.

Both scales are straight lines in OKLab (B. Ottosson, "A perceptual color space for image
processing", 2020), so that equal steps of the numbers look equal. Lightness alone tells low from
high, and blue stands against yellow or orange: they are read without seeing red or green, too.
"""

import base64
import struct
import zlib

import numpy as np

LEVELS = 255
"""Colours of a scale; the palette's last entry is for what is not finite."""

MISSING = (255, 0, 200)
"""What is not finite: no scale has it."""

_TO_LMS = np.array([[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728],
                    [1, -0.0894841775, -1.2914855480]])  # fmt: skip
_TO_RGB = np.array([[4.0767416621, -3.3077115913, 0.2309699292],
                    [-1.2684380046, 2.6097574011, -0.3413193965],
                    [-0.0041960863, -0.7034186147, 1.7076147010]])  # fmt: skip

# Lightness, green to red, blue to yellow.
_DARK_BLUE, _YELLOW = (0.22, 0.0, -0.10), (0.95, -0.02, 0.13)
_BLUE, _PALE, _ORANGE = (0.40, -0.04, -0.15), (0.97, 0.0, 0.0), (0.40, 0.09, 0.085)


def sequential() -> np.ndarray:
    """From dark blue to light yellow, ``(255, 3)`` of uint8."""
    return _rgb(_between(_DARK_BLUE, _YELLOW, LEVELS))


def diverging() -> np.ndarray:
    """From blue over nearly white to brown, ``(255, 3)`` of uint8."""
    half = LEVELS // 2 + 1
    left, right = _between(_BLUE, _PALE, half), _between(_PALE, _ORANGE, half)
    return _rgb(np.concatenate([left, right[1:]]))


def _between(low: tuple[float, ...], high: tuple[float, ...], steps: int) -> np.ndarray:
    return np.linspace(low, high, steps)


def _rgb(lab: np.ndarray) -> np.ndarray:
    """8-bit sRGB of OKLab."""
    linear = np.clip((lab @ _TO_LMS.T) ** 3 @ _TO_RGB.T, 0, 1)
    curved = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.round(255 * curved).astype(np.uint8)


def png(indices: np.ndarray, palette: np.ndarray) -> bytes:
    """An image of palette entries ``(rows, columns)``: https://www.w3.org/TR/png-3/."""
    height, width = indices.shape
    rows = np.zeros((height, width + 1), np.uint8)  # each row begins with its filter: none
    rows[:, 1:] = indices
    colours = np.concatenate([palette, [MISSING]]).astype(np.uint8)
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", colours.tobytes()),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def address(image: bytes) -> str:
    """An image as an address that holds it."""
    return "data:image/png;base64," + base64.b64encode(image).decode()
