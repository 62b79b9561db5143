"""Answers that are not finite, and an engine that has gone wrong."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from tests.process.helpers import answer, code, fake, infer, restarted
from tests.support import nets
from tests.support.server import Server


def _root(path: Path) -> Path:
    return nets.save(
        path, [h.make_node("Sqrt", ["x"], ["y"])], [("x", T.FLOAT, ["N", 4])], [("y", T.FLOAT, ["N", 4])]
    )


def test_refused_where_it_was_finite_at_warm_up(folder: Path) -> None:
    _root(folder / "models/root/1/model.onnx")
    _root(folder / "models/free/1/model.onnx")
    (folder / "models/free/model.toml").write_text("finite = false\n")
    with Server(folder) as server:
        assert answer(infer(server.client, "root", 4)) == [2.0] * 4
        got = infer(server.client, "root", -4)
        assert got.status_code == 500 and code(got) == "invalid_output"
        assert "output 'y' is not finite" in got.text
        assert answer(infer(server.client, "root", 9)) == [3.0] * 4
        assert server.status()["engine"]["restarts"] == 0
        asked = {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [-4, 4, -4, 4]}],
            "parameters": {"binary_data_output": True},
        }
        free = server.client.post("/v2/models/free/infer", json=asked)
        head = int(free.headers["inference-header-content-length"])
        values = np.frombuffer(free.content[head:], np.float32)
        assert free.status_code == 200
        assert np.isnan(values[::2]).all() and (values[1::2] == 2).all()
        refused = server.client.post("/v2/models/root/infer", json=asked)
        assert refused.status_code == 500 and code(refused) == "invalid_output"


@pytest.mark.parametrize("doubt", ["nan_on", "oom_on"])
def test_an_engine_that_has_gone_wrong_is_restarted(folder: Path, doubt: str) -> None:
    """Every answer after the canary is a right one, also that of the request which brought it about."""
    fake(folder / "models", "weak", sick_on=7, **{doubt: 5})
    with Server(folder) as server:
        assert answer(infer(server.client, "weak", 3)) == [6.0] * 4
        assert answer(infer(server.client, "weak", 7)) == [28.0] * 4  # wrong, and nothing shows it yet
        told = infer(server.client, "weak", 5)
        assert (told.status_code, code(told)) == (500, "invalid_output") or doubt == "oom_on"
        assert told.status_code in (500, 503, 507)
        assert answer(infer(server.client, "weak", 3)) == [6.0] * 4
        engine = restarted(server, 1)["engine"]
        assert engine["restarts"] == 1
        reason = engine["deaths"][0]["reason"]
        assert "the canary of model 'weak' gives another answer than at warm-up (output 'y')" in reason
