"""What the tray does with a real appliance, from another thread than the server's."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.app import Appliance
from appliance.controls import LoopControls
from appliance.settings import Settings
from appliance.system import ports
from appliance.tray.actions import ControlError
from appliance.tray.state import ModelState, TrayState, from_status
from tests.process.helpers import answer, fake, infer


def until(probe: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if found := probe():
            return found
        time.sleep(0.02)
    raise AssertionError("nothing came")


class Running:
    """An appliance in this process, with the fake models "quick" and "slow" (0.6 s a run)."""

    def __init__(self, folder: Path) -> None:
        fake(folder / "models", "quick")
        fake(folder / "models", "slow", run_ms=600)
        settings = Settings(
            models=folder / "models", state=folder / "state", embedded_models=False, device="cpu", port=0
        )
        self.appliance = Appliance(settings, ports.listen("127.0.0.1", 0))
        self.appliance.start()
        self.address = self.appliance.address
        self.client = httpx.Client(base_url=self.address, timeout=30, trust_env=False)
        until(lambda: self.state().state == "ready")

    @property
    def controls(self) -> LoopControls:
        assert self.appliance.controls is not None
        return self.appliance.controls

    def state(self) -> TrayState:
        return from_status(self.appliance.status(), self.address)

    def model(self, name: str) -> ModelState:
        return next(m for m in self.state().models if m.name == name)

    def later(self, model: str) -> "Later":
        return Later(self, model)


class Later:
    """A request under way."""

    def __init__(self, running: Running, model: str) -> None:
        self._answers: list[httpx.Response] = []
        self._thread = threading.Thread(target=lambda: self._answers.append(infer(running.client, model, 2.0)))
        self._thread.start()

    def answer(self) -> httpx.Response:
        self._thread.join(30)
        (found,) = self._answers
        return found


@pytest.fixture
def running(folder: Path) -> Iterator[Running]:
    started = Running(folder)
    yield started
    started.client.close()
    started.appliance.stop()


def test_load_unload_and_pin(running: Running) -> None:
    controls = running.controls
    controls.unload("quick")
    assert running.model("quick").condition == "unloaded"
    controls.load("quick")
    assert running.model("quick").condition == "ready"
    assert answer(infer(running.client, "quick", 2.0))
    assert not running.model("quick").pinned
    controls.pin("quick", True)
    assert running.model("quick").pinned
    controls.pin("quick", False)
    assert not running.model("quick").pinned
    for call in (controls.load, controls.unload):
        with pytest.raises(ControlError, match="there is no model 'nobody'"):
            call("nobody")


def test_pause_and_resume(running: Running) -> None:
    running.controls.pause()
    assert running.state().state == "paused"
    request = running.later("quick")
    until(lambda: running.state().queued == 1)
    running.controls.resume()
    assert answer(request.answer())


def test_restarting_the_engine_loses_no_request(running: Running) -> None:
    request = running.later("slow")
    until(lambda: running.state().running == 1)
    running.controls.restart_engine()
    assert answer(request.answer())
    state = running.state()
    assert state.engine_restarts == 1
    assert (state.engine_last_end or "").startswith("asked for in the tray")


def test_quit_answers_what_is_there_and_takes_nothing_new(running: Running) -> None:
    request = running.later("slow")
    until(lambda: running.state().running == 1)
    assert running.controls.drain(30)
    assert not running.controls.drain(30)
    assert running.state().state == "stopped"
    assert infer(running.client, "quick", 1.0).status_code == 503
    assert answer(request.answer())
    assert running.appliance.stopped.wait(30)
    assert not running.controls.drain(30)
    with pytest.raises(ControlError, match="has ended"):
        running.controls.load("quick")
    assert running.state().state == "stopped"
