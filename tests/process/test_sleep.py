"""A machine that sleeps, as the program sees it: its clocks read a file, everything else is real."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.helpers import answer, ending, fake, infer, launch, restarted
from tests.support.server import Server

PROGRAM = """
import sys, time
from pathlib import Path
from appliance.system import power
slept = Path({slept!r})
power.clocks = lambda: (time.monotonic() + float(slept.read_text() or 0), time.monotonic())
from appliance.cli import main
sys.argv = ["appliance", "serve"]
main()
"""


@pytest.fixture
def machine(folder: Path) -> Iterator[tuple[Server, Path]]:
    """The server, and the file that holds for how many seconds it has slept."""
    slept = folder / "slept"
    slept.write_text("0")
    (folder / "device").touch()
    fake(folder / "models", "m", device_file=str(folder / "device"), sick_on=7)
    with ending(Server(folder)) as server:
        launch(server, "-c", PROGRAM.format(slept=str(slept)))
        server.wait_ready()
        yield server, slept


def logged(server: Server) -> str:
    return (server.state / "logs" / "appliance.log").read_text()


def test_after_a_sleep_all_is_well(machine: tuple[Server, Path]) -> None:
    server, slept = machine
    assert answer(infer(server.client, "m", 3)) == [6.0] * 4
    slept.write_text("3600")
    server.wait_for(lambda: "the models are as they were" in logged(server), 20, "the check")
    assert answer(infer(server.client, "m", 3)) == [6.0] * 4
    status: dict[str, Any] = server.status()
    assert status["engine"]["restarts"] == 0 and status["notes"] == []


@pytest.mark.parametrize("gone", [False, True])
def test_after_a_sleep_the_engine_is_not_what_it_was(machine: tuple[Server, Path], folder: Path, gone: bool) -> None:
    """It gives wrong answers, or the device is away: nobody needs to ask for that to be found."""
    server, slept = machine
    if gone:
        (folder / "device").unlink()
    else:
        assert answer(infer(server.client, "m", 7)) == [28.0] * 4  # from now on it is wrong, as a GPU after a sleep
    slept.write_text("3600")
    status = restarted(server, 1)
    assert "the canary of model 'm' " in status["engine"]["deaths"][0]["reason"]
    assert status["device"]["running"] == ("cpu" if gone else "fake:0")
    assert status["device"]["reason"] == ("the fake device is not there" if gone else None)
    assert answer(infer(server.client, "m", 3)) == [6.0] * 4
    assert status["notes"] == []
