"""Draws assets/icons from the same shapes as the tray icon: ``python build/icons.py``."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from appliance.tray.drawing import draw, svg  # noqa: E402 - the checkout need not be installed

COLOUR, GLYPH = "#0072b2", "play"
SIZES = (16, 20, 24, 32, 40, 48, 64, 128, 256)


def main() -> None:
    """Write the Windows icon with every size drawn for itself, the PNG and the SVG."""
    folder = ROOT / "assets" / "icons"
    folder.mkdir(parents=True, exist_ok=True)
    pictures = [draw(COLOUR, GLYPH, size) for size in SIZES]
    pictures[-1].save(folder / "appliance.png", optimize=True)
    pictures[-1].save(folder / "appliance.ico", sizes=[(size, size) for size in SIZES], append_images=pictures[:-1])
    (folder / "appliance.svg").write_text(svg(COLOUR, GLYPH), encoding="utf-8")


if __name__ == "__main__":
    main()
