"""A disk that fills up while the program runs, and a log folder that goes away."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.helpers import answer, code, fake, infer
from tests.support.server import Server

LOG = "the log folder cannot be written: "
FULL = "the disk that holds the state folder is full"


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Path]:
    """The state folder on a disk of 128 MB."""
    state = folder / "state"
    state.mkdir()
    mount = shutil.which("mount")
    if mount is None or not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("needs root, to mount a small disk")
    if subprocess.run([mount, "-t", "tmpfs", "-o", "size=128m", "tmpfs", state], capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield state
    subprocess.run(["umount", state], check=True)


def notes(server: Server) -> str:
    return "; ".join(server.status()["notes"])


def reload(server: Server) -> None:
    """Something that is logged."""
    for what in ("unload", "load"):
        assert server.client.post(f"/v2/repository/models/m/{what}").status_code == 200


def test_a_full_disk_is_told_and_harms_nobody(folder: Path, small_disk: Path) -> None:
    fake(folder / "models", "m")
    with Server(folder) as server:
        assert notes(server) == ""
        filler = small_disk / "filler"
        with pytest.raises(OSError), filler.open("wb", buffering=0) as out:
            while True:
                out.write(bytes(1 << 20))

        def told() -> bool:
            reload(server)  # until the page is full that the log has already
            return FULL in notes(server) and LOG in notes(server)

        server.wait_for(told, 20, "both notes")
        printed = server.log.read_text()
        assert "Traceback" not in printed and "Logging error" not in printed
        for _ in range(20):
            reload(server)
            assert answer(infer(server.client, "m", 3)) == [6.0] * 4
        server.models.joinpath("m/model.toml").unlink()
        shutil.rmtree(server.models / "m")
        fake(folder / "models", "n", gain=3)
        server.wait_for(lambda: infer(server.client, "n", 3).status_code == 200, 20, "a new model")
        assert code(infer(server.client, "m", 3)) == "model_not_found"
        filler.unlink()
        server.wait_for(lambda: notes(server) == "", 40, "no notes")
        log = (small_disk / "logs" / "appliance.log").read_text()
        assert "the log could not be written (No space left on device), lines lost: " in log
        assert "Traceback" not in server.log.read_text()


def test_a_log_folder_that_cannot_be_made_is_tried_again(folder: Path) -> None:
    (folder / "state").mkdir()
    (folder / "state" / "logs").write_text("in the way")
    fake(folder / "models", "m")
    with Server(folder) as server:
        server.wait_for(lambda: LOG in notes(server), 10, "the note")
        assert answer(infer(server.client, "m", 3)) == [6.0] * 4
        (folder / "state" / "logs").unlink()
        server.wait_for(lambda: LOG not in notes(server), 40, "no note")
        reload(server)
        assert '"event": "served"' in (folder / "state" / "logs" / "appliance.log").read_text()
