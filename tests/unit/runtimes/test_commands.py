"""The commands, with a state folder of their own."""

import hashlib
import json
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from appliance import runtime_commands as commands
from appliance.runtimes.install import this_platform
from appliance.settings import Settings
from tests.unit.runtimes.packs import FILES, manifest, pack


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.model_construct(state=tmp_path / "state")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return pack(tmp_path / "shop" / "p.zip", FILES, manifest(platform=this_platform()))


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_from_a_file_to_nothing(settings: Settings, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.runtime_list(settings, False) == 0
    assert "no runtime pack is installed" in printed(capsys)
    digest = hashlib.sha256(made.read_bytes()).hexdigest()
    assert commands.runtime_install(settings, "cuda", str(made), digest) == 0
    assert "installed: cuda-13.5.37 (0 MiB) the next start of the engine uses it" in printed(capsys)
    assert commands.runtime_install(settings, "cuda", str(made), None) == 0
    assert printed(capsys) == "is there already: cuda-13.5.37 (0 MiB)"
    assert commands.runtime_list(settings, True) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "name": "cuda",
            "version": "13.5.37",
            "platform": this_platform(),
            "bytes": 108405,
            "contents": {"nvidia-cublas": "13.10.0.20"},
            "error": None,
        }
    ]
    assert commands.runtime_list(settings, False) == 0
    assert "nvidia-cublas 13.10.0.20" in printed(capsys)
    assert commands.runtime_verify(settings, "cuda") == 0
    assert printed(capsys) == "cuda-13.5.37: whole"
    folder = settings.state_folder() / "runtimes" / "cuda-13.5.37"
    (folder / "bin" / "cudnn64_9.dll").unlink()
    assert commands.runtime_verify(settings, None) == 1
    assert "cuda-13.5.37: bin/cudnn64_9.dll is missing install it again: appliance runtime" in printed(capsys)
    assert commands.runtime_remove(settings, "cuda", None) == 0
    assert printed(capsys) == "removed: cuda-13.5.37"
    assert commands.runtime_remove(settings, "cuda", None) == 1
    assert printed(capsys) == "appliance: there is no pack 'cuda' (installed: none)"
    assert commands.runtime_verify(settings, None) == 0


def test_another_version_stays_and_is_told(
    settings: Settings, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.runtime_install(settings, "cuda", str(made), None)
    newer = pack(tmp_path / "q.zip", FILES, manifest(platform=this_platform(), version="14.0"))
    commands.runtime_install(settings, "cuda", str(newer), None)
    assert (
        "cuda-13.5.37 is there too; if no other program needs it: appliance runtime remove cuda 13.5.37"
        in printed(capsys)
    )


def test_refusals(settings: Settings, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.runtime_install(settings, "cuda", str(made), "0" * 64) == 1
    assert "another SHA-256" in printed(capsys)
    assert commands.runtime_install(settings, "cuda", str(tmp_path / "no.zip"), "0" * 64) == 1
    assert "cannot be read" in printed(capsys)
    assert commands.runtime_install(settings, "torch", str(made), None) == 1
    assert "is the pack 'cuda', not 'torch'" in printed(capsys)
    assert commands.runtime_verify(settings, "torch") == 1
    folder = settings.state_folder() / "runtimes"
    (folder / "cuda-1.0").mkdir()
    assert commands.runtime_list(settings, False) == 0
    assert "manifest cannot be read" in printed(capsys)
    assert commands.runtime_verify(settings, None) == 1


def test_from_an_address(settings: Settings, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(made.parent))) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        assert commands.runtime_install(settings, "cuda", f"{address}/none.zip", None) == 1
        assert "the server answered 404" in printed(capsys)
        (made.parent / "web.zip").write_text("<html>log in first</html>")
        assert commands.runtime_install(settings, "cuda", f"{address}/web.zip", None) == 1
        assert "is no runtime pack" in printed(capsys)
        assert commands.runtime_install(settings, "cuda", f"{address}/p.zip", None) == 0
        server.shutdown()
    assert "installed: cuda-13.5.37" in printed(capsys)
    assert list((settings.state_folder() / "runtimes" / ".downloads").iterdir()) == []


def test_where_libraries_come_from(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.runtime_libraries(settings, "torch", True) in (0, 1)
    rows = json.loads(capsys.readouterr().out)
    assert {"name", "wanted", "kind", "file", "loadable", "reason"} == set(rows[0])
    assert any(row["name"].startswith(("cusolver", "libcusolver")) for row in rows)
    commands.runtime_libraries(settings, "onnx", False)
    assert "verdict" in printed(capsys)
