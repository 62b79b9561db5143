"""ONNX Runtime's builds keep a session file for what they tell Microsoft of models and machines. There is none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
