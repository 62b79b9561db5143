"""The frozen program, installed and used under Wine as a person and a fleet would: from nothing to nothing left.

The tests of one user go on from each other, in their order. They need the frozen folder of ``build/windows/build.sh``
(``APPLIANCE_TEST_PROGRAM`` names another) and take some minutes. What they measure and photograph is printed, and
kept in the folder ``APPLIANCE_TEST_REPORT`` if that is set.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from PIL import Image, ImageChops

from tests.packaging.wine import APP, BASE, RUN_KEY, UNINSTALL_KEY, Wine, display, make_setup, require, until
from tests.process.helpers import Callers
from tests.support import nets
from tests.support.server import PHOTOS, ROOT

require("makensis", "convert", "import", "Xvfb", "xdotool", "curl")
PROGRAM = Path(os.environ.get("APPLIANCE_TEST_PROGRAM") or BASE / "dist-cpu" / "appliance")
if not (PROGRAM / "appliance.exe").exists():
    pytest.skip(f"there is no frozen program at {PROGRAM} (build/windows/build.sh makes it)", allow_module_level=True)

pytestmark = pytest.mark.timeout(600)
PICTURES = {
    "classify": PHOTOS / "chelsea.png",
    "detect": PHOTOS / "chelsea.png",
    "segment": PHOTOS / "astronaut.png",
    "ocr": ROOT / "assets" / "selftest" / "text.png",
}
USERS = ["Anna", "Jörg Müller 测试"]


def say(words: str) -> None:
    print(f"\n  {words}", end="", flush=True)


def keep(file: Path, name: str) -> None:
    """For whoever wants to see it."""
    where = os.environ.get("APPLIANCE_TEST_REPORT")
    if where:
        Path(where).mkdir(parents=True, exist_ok=True)
        shutil.copy(file, Path(where) / name)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Installed:
    """One user's machine: Wine, a screen, the set-up, and the settings that the user has made."""

    def __init__(self, wine: Wine, setup: Path, port: int, models: Path) -> None:
        self.wine, self.setup, self.port, self.models = wine, setup, port, models
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=self.url, timeout=60, trust_env=False)
        self.windowed = wine.program / "appliance.exe"
        self.console = wine.program / "appliance-cli.exe"
        self.before: set[str] = set()

    def install(self, *options: str) -> float:
        """Seconds that it took."""
        began = time.monotonic()
        done = self.wine.run(self.setup, "/S", *options)
        assert done.returncode == 0, (done.returncode, done.stdout, self.log())
        return time.monotonic() - began

    def log(self) -> str:
        logs = list((self.wine.local / "Temp").glob("*setup.log"))
        return logs[0].read_text("utf-16") if logs else ""

    def settle(self) -> None:
        """The settings file of this user, and a model of the user's own."""
        self.wine.state.mkdir(parents=True, exist_ok=True)
        lines = [f"port = {self.port}", f"models = '{self.wine.path(self.models)}'"]
        (self.wine.state / "settings.toml").write_text("\n".join(lines) + "\n", "utf-8")
        nets.scale(self.models / "scale" / "1" / "model.onnx")

    def answers(self, path: str = "/ready") -> bool:
        try:
            return self.client.get(path).status_code == 200
        except httpx.HTTPError:
            return False

    def ready(self, within_s: float = 120) -> None:
        until(self.answers, within_s, "ready")

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get("/api/status").json()
        return found

    def stop(self) -> None:
        done = self.wine.run(self.console, "stop")
        assert done.returncode == 0, done.stdout
        assert done.stdout.splitlines()[-1] == "stopped"
        assert not self.answers("/health")

    def check_answers(self) -> None:
        """All four embedded models by curl, the user's own by NVIDIA's client."""
        found = {}
        for model, picture in PICTURES.items():
            command = ["curl", "-sS", "--noproxy", "*", "-m", "60", "-H", "Accept: application/json"]
            command += ["-F", f"file=@{picture}", f"{self.url}/predict/{model}"]
            done = subprocess.run(command, capture_output=True, check=True)
            found[model] = json.loads(done.stdout)
        assert found["classify"]["labels"][0]["label"] == "Egyptian cat"
        assert "Cat" in {entry["label"] for entry in found["detect"]["detections"]}
        assert found["segment"]["coverage"] == pytest.approx(0.55, abs=0.03)
        assert found["ocr"]["text"] == "The answer is ready\nat port 11711"
        with triton.InferenceServerClient(f"127.0.0.1:{self.port}") as client:
            values = np.arange(4, dtype=np.float32).reshape(1, 4)
            given = triton.InferInput("x", [1, 4], "FP32")
            given.set_data_from_numpy(values)
            assert client.infer("scale", [given]).as_numpy("y").tolist() == (values * 2).tolist()
            pixels = triton.InferInput("image", [1, 3, 224, 224], "FP32")
            pixels.set_data_from_numpy(np.zeros((1, 3, 224, 224), np.float32))
            assert client.infer("classify", [pixels]).as_numpy("logits").shape == (1, 1000)


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The set-up of the frozen folder."""
    given = os.environ.get("APPLIANCE_TEST_SETUP")
    if given:
        return Path(given)
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    return make_setup(PROGRAM, tmp_path_factory.mktemp("setup"), version[1])


@pytest.fixture(scope="module", params=USERS)
def machine(
    request: pytest.FixtureRequest, setup: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installed]:
    user: str = request.param
    folder = tmp_path_factory.mktemp("machine")
    with display(folder, "1280x800x24") as screen, Wine(folder, user, screen) as wine:
        (folder / setup.name).hardlink_to(setup)  # Wine sees the machine's folder
        deep = wine.home / "Inference Appliance" / "models"
        if user != USERS[0]:
            deep = wine.home.joinpath("Modelle", *["ein-Ordner-mit-einem-langen-Namen-für-模型"] * 6)
            assert len(wine.path(deep)) > 260
        machine = Installed(wine, folder / setup.name, free_port(), deep)
        wine.run("cmd", "/c", "exit 0")  # Wine makes what a user has
        machine.before = wine.files()
        yield machine
        machine.client.close()


def same(machine: Installed) -> None:
    """The program folder has the files of the frozen one, and those that the set-up adds."""
    frozen = {path.relative_to(PROGRAM): path for path in PROGRAM.rglob("*") if path.is_file()}
    there = {
        path.relative_to(machine.wine.program): path for path in machine.wine.program.rglob("*") if path.is_file()
    }
    added = {Path("LICENSE.txt"), Path("uninstall.exe"), Path("_internal/parts.txt")}
    assert set(there) == set(frozen) | added
    assert all(there[name].read_bytes() == path.read_bytes() for name, path in frozen.items())


def test_silent_install(machine: Installed) -> None:
    took = machine.install("/AUTOSTART=1")
    size = sum(path.stat().st_size for path in PROGRAM.rglob("*") if path.is_file())
    say(f"set-up {machine.setup.stat().st_size / 1e6:.0f} MB, folder {size / 1e6:.0f} MB, installed in {took:.1f} s")
    same(machine)
    assert (machine.wine.menu / f"{APP}.lnk").exists()
    assert machine.wine.registry(RUN_KEY)[APP].endswith('\\appliance.exe" run')
    assert abs(int(machine.wine.registry(UNINSTALL_KEY)["EstimatedSize"], 16) * 1024 - size) < 100_000
    machine.settle()


def test_selftest_of_the_console_program(machine: Installed) -> None:
    done = machine.wine.run(machine.console, "selftest")
    say(done.stdout.splitlines()[-1] if done.stdout else "")
    assert done.returncode == 0, done.stdout


def test_selftest_of_the_windowed_program(machine: Installed) -> None:
    """It has no console: the report is a file."""
    report = machine.wine.home / "report"
    done = machine.wine.run(machine.windowed, "selftest", "--report", machine.wine.path(report))
    text = "\n".join(path.read_text("utf-8", "replace") for path in sorted(report.glob("*.txt")))
    assert done.returncode == 0, text or done.stdout
    assert json.loads((report / "selftest.json").read_text("utf-8"))
    shutil.rmtree(report)


def test_a_double_click(machine: Installed) -> None:
    began = time.monotonic()
    machine.wine.start(machine.windowed)
    until(lambda: machine.answers("/health"), 60, "the first answer")
    first = time.monotonic() - began
    machine.ready()
    say(f"double click → first answer {first:.1f} s, all models ready {time.monotonic() - began:.1f} s")
    machine.check_answers()
    assert machine.status()["address"] == machine.url


def photograph(machine: Installed, file: Path) -> Image.Image:
    environment = {**os.environ, "DISPLAY": machine.wine.env["DISPLAY"]}
    subprocess.run(["import", "-window", "root", file], env=environment, check=True)
    return Image.open(file).convert("RGB")


def press(machine: Installed, *words: str) -> None:
    environment = {**os.environ, "DISPLAY": machine.wine.env["DISPLAY"]}
    subprocess.run(["xdotool", *words], env=environment, check=True)


def test_the_tray_menu(machine: Installed) -> None:
    """Opened with a click on the icon, photographed, and read by the appliance itself."""
    file = machine.wine.folder / "screen.png"

    def icon() -> tuple[int, int, int, int] | None:
        """Where something is on the empty screen: Wine shows tray icons in a small bar of its own."""
        return photograph(machine, file).getbbox()

    left, top, _, bottom = until(icon, 20, "the icon")
    before = photograph(machine, file)
    for _ in range(5):
        press(machine, "mousemove", str(left + 10), str((top + bottom) // 2), "click", "3")
        time.sleep(1.5)
        after = photograph(machine, file)
        changed = ImageChops.difference(before, after).getbbox()
        if changed and changed[3] - changed[1] > 100:
            break
    assert changed and changed[3] - changed[1] > 100, "no menu came up"
    menu = after.crop(changed)
    menu.save(file)
    keep(file, f"tray-{USERS.index(machine.wine.user)}.png")
    menu.resize((menu.width * 2, menu.height * 2), Image.Resampling.LANCZOS).save(file)
    found = machine.client.post(
        "/predict/ocr", content=file.read_bytes(), headers={"content-type": "image/png"}
    ).json()
    text = found["text"]
    for words in ("Ready", "Memory:", "Queue:", "Open dashboard", "Quit"):
        assert words.lower().replace(" ", "") in text.lower().replace(" ", ""), text
    press(machine, "key", "Escape")


def test_the_engine_killed(machine: Installed) -> None:
    before = machine.status()["engine"]
    machine.wine.run("taskkill", "/F", "/PID", str(before["pid"]))
    until(lambda: machine.status()["engine"]["restarts"] > before["restarts"], 30, "the restart")
    machine.ready()
    machine.check_answers()
    assert machine.status()["engine"]["pid"] != before["pid"]


def test_a_second_start(machine: Installed) -> None:
    done = machine.wine.run(machine.console, "serve")
    assert done.returncode == 0
    assert f"running already: {machine.url}" in done.stdout
    machine.stop()


def test_the_link_in_the_start_menu(machine: Installed) -> None:
    link = machine.wine.menu / f"{APP}.lnk"
    content = link.read_bytes()
    for name in (machine.wine.user, "Programs", APP, "appliance.exe"):
        assert name.encode("utf-16-le") in content
    try:
        machine.wine.user.encode("cp1252")
    except UnicodeEncodeError:
        pytest.skip("the link is right, but Wine goes by the path in it that has only the letters of its code page")
    machine.wine.start("start", machine.wine.path(link))
    machine.ready()
    machine.stop()


def test_start_at_log_on(machine: Installed) -> None:
    machine.wine.end_all()
    machine.wine.start("wineboot")
    machine.ready()
    machine.check_answers()


def test_an_upgrade_under_load(machine: Installed) -> None:
    """The copy that log-on has started is replaced, and started again. What was taken is answered; the rest is told
    to come back, or finds nobody."""
    (machine.wine.program / "_internal" / "stale.pyd").write_text("stale")
    with Callers(machine.url, "scale", 4) as callers:
        until(lambda: len(callers.outcomes) > 50, 20, "the load")
        took = machine.install()
        machine.ready()
        before = len(callers.outcomes)
        until(lambda: len(callers.outcomes) > before + 50, 20, "answers of the new copy")
    kinds: dict[str, int] = {}
    for value, status, got in callers.outcomes:
        if status == 200:
            assert got == [2.0 * value] * 4
            kinds["right"] = kinds.get("right", 0) + 1
        elif isinstance(status, int):
            body = json.loads(got)
            code = body.get("code") or body["error"]["code"]
            assert (status, code) in ((503, "paused"), (503, "warming_up"), (503, "engine_restarting")), got
            kinds[f"503 {code}"] = kinds.get(f"503 {code}", 0) + 1
        else:
            assert status in ("ConnectError", "ReadError", "RemoteProtocolError", "WriteError"), (status, got)
            kinds[status] = kinds.get(status, 0) + 1
    say(f"upgrade under load in {took:.1f} s: {kinds}")
    same(machine)
    assert (machine.wine.state / "settings.toml").exists()
    machine.check_answers()


def test_uninstall_keeps_what_is_the_users(machine: Installed) -> None:
    """Of a running copy."""
    done = machine.wine.run(
        machine.wine.program / "uninstall.exe", "/S", f"_?={machine.wine.path(machine.wine.program)}"
    )
    assert done.returncode == 0, machine.log()
    until(lambda: not machine.wine.program.exists(), 20, "the last file")
    assert not machine.answers("/health")
    left = machine.wine.files() - machine.before
    own = [machine.wine.state, machine.models, *machine.models.parents]
    kept = [path.relative_to(machine.wine.drive).as_posix() for path in own if path.is_relative_to(machine.wine.home)]
    assert {name for name in left if not name.startswith((kept[0], kept[1])) and name not in kept} == set()
    assert (machine.wine.state / "settings.toml").exists()
    assert (machine.models / "scale" / "1" / "model.onnx").exists()
    assert machine.wine.mentions() == []


def test_purge_leaves_nothing(machine: Installed) -> None:
    """But a models folder that the settings name: somebody chose it, and may have other things there."""
    machine.install("/START=1")
    machine.ready()
    uninstaller = machine.wine.program / "uninstall.exe"
    done = machine.wine.run(uninstaller, "/S", "/PURGE", f"_?={machine.wine.path(machine.wine.program)}")
    assert done.returncode == 0, machine.log()
    until(lambda: not machine.wine.program.exists(), 20, "the last file")
    assert not machine.answers("/health")
    left = machine.wine.files() - machine.before
    if machine.wine.user != USERS[0]:
        chosen = (machine.wine.home / "Modelle").relative_to(machine.wine.drive).as_posix()
        left = {name for name in left if not name.startswith(chosen)}
    assert left == set()
    assert machine.wine.mentions() == []
