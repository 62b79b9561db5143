"""The set-up's pages as a person sees them, in three languages, driven with the keyboard and photographed.

``APPLIANCE_TEST_PHOTOS`` names a folder that takes the pictures.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image, ImageChops

from tests.packaging.stand_in import GCC, stand_in
from tests.packaging.wine import APP, RUN_KEY, UNINSTALL_KEY, Wine, display, make_setup, require, until

require("makensis", GCC, "convert", "import", "Xvfb", "xdotool")

PAGES = ["welcome", "licence", "folder", "options", "finish"]
COMMENTS = {"en": "Local inference server", "de": "Lokaler Inferenzserver", "zh": "本机推理服务器"}


class Screen:
    """What is on the display, without the empty desktop around it."""

    def __init__(self, name: str, folder: Path) -> None:
        self._env = {**os.environ, "DISPLAY": name}
        self._file = folder / "screen.png"
        self.empty: Image.Image | None = None

    def whole(self) -> Image.Image:
        subprocess.run(["import", "-window", "root", self._file], env=self._env, check=True)
        return Image.open(self._file).convert("RGB")

    def window(self) -> Image.Image | None:
        """The picture of the window that is there, if one is."""
        now = self.whole()
        assert self.empty is not None
        box = ImageChops.difference(self.empty, now).getbbox()
        return now.crop(box) if box and box[2] - box[0] > 300 and box[3] - box[1] > 200 else None

    def next_window(self, last: Image.Image | None) -> Image.Image:
        """The page after ``last``, once it stands still."""
        seen: list[Image.Image | None] = [None]

        def still() -> Image.Image | None:
            found = self.window()
            before, seen[0] = seen[0], found
            if found is None or before is None or found.tobytes() != before.tobytes():
                time.sleep(0.3)
                return None
            same = last is not None and found.size == last.size and _share(found, last) < 0.01
            return None if same else found

        page = until(still, 30, "the next page")
        assert isinstance(page, Image.Image)
        return page

    def keys(self, *names: str) -> None:
        subprocess.run(["xdotool", "key", "--delay", "100", *names], env=self._env, check=True)


def _share(one: Image.Image, other: Image.Image) -> float:
    """Of the pixels that differ."""
    counts = ImageChops.difference(one, other).convert("L").point(lambda v: 255 * (v > 0)).histogram()
    return counts[255] / sum(counts)


def keep(picture: Image.Image, name: str) -> None:
    where = os.environ.get("APPLIANCE_TEST_PHOTOS")
    if where:
        Path(where).mkdir(parents=True, exist_ok=True)
        picture.save(Path(where) / name, optimize=True)


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("setup")
    return make_setup(stand_in(base / "program", "1", a="one"), base / "out", "0.1.0")


@pytest.fixture
def seen(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Wine, Screen]]:
    with display(tmp_path, "800x600x24") as screen_name, Wine(tmp_path, "Anna", screen_name) as wine:
        fonts = wine.drive / "windows" / "Fonts"
        for font in Path("/usr/share/fonts").rglob("*"):  # whatever this machine has; Wine's own know no Chinese
            if font.suffix in (".ttf", ".ttc", ".otf"):
                shutil.copy(font, fonts / font.name)
        for name in ("SimSun", "Tahoma", "MS Shell Dlg", "MS Shell Dlg 2"):
            key = r"HKCU\Software\Wine\Fonts\Replacements"
            if request.param == "zh" and (fonts / "wqy-microhei.ttc").exists():
                wine.run("reg", "add", key, "/v", name, "/d", "WenQuanYi Micro Hei", "/f")
        # Wine's own desktop has title bars, which a display without a window manager lacks.
        screen = Screen(screen_name, tmp_path)
        wine.start("explorer", "/desktop=test,800x600")
        until(lambda: screen.whole().getbbox(), 30, "the desktop")
        time.sleep(2)
        screen.empty = screen.whole()
        yield wine, screen


@pytest.mark.parametrize("seen", COMMENTS, indirect=True)
def test_a_person_installs(
    seen: tuple[Wine, Screen], setup: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    wine, screen = seen
    language: str = request.node.callspec.params["seen"]
    copy = tmp_path / setup.name
    copy.write_bytes(setup.read_bytes())
    process = wine.start("explorer", "/desktop=test,800x600", wine.path(copy), f"/LANG={language}")
    page: Image.Image | None = None
    for name in PAGES:
        page = screen.next_window(page)
        keep(page, f"setup-{name}-{language}.png")
        screen.keys("Return")  # on the last page with the box that starts the program
    process.wait(60)
    until(lambda: (wine.drive / "asked.txt").exists(), 20, "the program's start")
    assert (wine.program / "appliance.exe").exists()
    entry = wine.registry(UNINSTALL_KEY)
    assert entry["DisplayName"] == APP
    assert APP in wine.registry(RUN_KEY)
    hive = (wine.end_all(), (wine.prefix / "user.reg").read_text("latin-1"))[1]
    escaped = COMMENTS[language].encode("unicode_escape").decode().replace("\\u", "\\x")
    assert f'"Comments"="{escaped}"' in hive
