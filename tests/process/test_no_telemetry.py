"""ONNX Runtime's and GenAI's builds keep files for what they tell Microsoft. There are none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import language, speech
from tests.support.nets import mlp
from tests.support.server import Server

QUIET = ("ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS", "CI")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows' builds write no file")
def test_the_engine_tells_nobody(folder: Path) -> None:
    places = {name: folder / name for name in ("plain", "ours")}
    for place in places.values():
        place.mkdir()
    talkative = {name: value for name, value in os.environ.items() if name not in QUIET}
    model = mlp(folder / "mlp.onnx")
    code = f"import onnxruntime; onnxruntime.InferenceSession({str(model)!r})"
    subprocess.run([sys.executable, "-c", code], check=True, env=talkative | {"TMPDIR": str(places["plain"])})
    if not list(places["plain"].glob("*.ses")):
        pytest.skip("this build of ONNX Runtime writes no session file, so its absence would say nothing")

    (folder / "models" / "mlp" / "1").mkdir(parents=True)
    (folder / "models" / "mlp" / "1" / "model.onnx").write_bytes(model.read_bytes())
    server = Server(folder)
    server.env = {name: value for name, value in server.env.items() if name not in QUIET}
    server.env["TMPDIR"] = str(places["ours"])
    with server:
        assert server.status()["models"][0]["ready"]
    assert not list(places["ours"].glob("*.ses"))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the file lies where no variable leads")
def test_a_language_model_tells_nobody(folder: Path) -> None:
    pytest.importorskip("onnxruntime_genai")
    homes = {name: folder / name for name in ("plain", "ours")}
    for home in homes.values():
        home.mkdir()
    talkative = {name: value for name, value in os.environ.items() if name not in QUIET}
    talkative |= {"https_proxy": "http://127.0.0.1:9"}  # a door that is shut: this test tells nobody either
    model = speech.beside(language.sums(folder / "models" / "llm", vocabulary=speech.VOCABULARY))
    code = f"import onnxruntime_genai; onnxruntime_genai.Model({str(model)!r})"
    subprocess.run([sys.executable, "-c", code], check=True, env=talkative | _home(homes["plain"]))
    if not list(homes["plain"].rglob("*.db")):
        pytest.skip("this build of ONNX Runtime GenAI keeps no file, so its absence would say nothing")

    server = Server(folder)
    server.env = {name: value for name, value in server.env.items() if name not in QUIET} | _home(homes["ours"])
    with server:
        assert server.status()["models"][0]["ready"]
    told = [file for file in homes["ours"].rglob("*") if file.name in ("deviceid", ".ses") or file.suffix == ".db"]
    assert not told


def _home(folder: Path) -> dict[str, str]:
    return {"HOME": str(folder), "TMPDIR": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
