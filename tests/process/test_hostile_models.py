"""Broken and hostile models harm nobody: the others serve, and it is said in words what is wrong with each."""

import io
import json
import os
import pickle
import re
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from tests.process.helpers import answer, ending, infer
from tests.support import nets
from tests.support.server import ROOT, Server


def _external(path: Path, location: str) -> None:
    """y = x + w, where ``w`` lies in the file ``location``."""
    w = onnx.TensorProto(name="w", data_type=T.FLOAT, dims=[4], data_location=T.EXTERNAL)
    for key, value in (("location", location), ("offset", "0"), ("length", "16")):
        w.external_data.add(key=key, value=value)
    graph = h.make_graph(
        [h.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [h.make_tensor_value_info("x", T.FLOAT, ["N", 4])],
        [h.make_tensor_value_info("y", T.FLOAT, ["N", 4])],
        [w],
    )
    path.parent.mkdir(parents=True)
    path.write_bytes(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8).SerializeToString())


def _node(path: Path, node: onnx.NodeProto, opset: int = 17, domain: str = "") -> None:
    made = nets.save(path, [node], [("x", T.FLOAT, ["N", 4])], [("y", T.FLOAT, ["N", 4])], opset=17)
    model = onnx.load(made)
    model.opset_import[0].version = opset
    if domain:
        model.opset_import.append(h.make_opsetid(domain, 1))
    made.write_bytes(model.SerializeToString())


class Run:
    """What a pickle would run: it leaves a trace."""

    def __init__(self, trace: str) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.mkdir, (self.trace,)


def make(models: Path, outside: Path) -> dict[str, str]:
    """All of them, in the models folder; name → words that must be in what is said of it.

    ``outside`` gets what must not be touched: pipes, on which whoever opens them hangs, and a folder that a
    pickle or an operator library would make.
    """
    outside.mkdir()
    os.mkfifo(outside / "secret.bin")
    whole = nets.mlp(outside / "whole.onnx").read_bytes()

    def write(name: str, data: bytes) -> None:
        (models / name / "1").mkdir(parents=True)
        (models / name / "1/model.onnx").write_bytes(data)

    write("truncated", whole[: len(whole) // 2])
    write("text", b"# not a model\nprint('hello')\n")
    write("empty", b"")
    write("noise", np.random.default_rng(1).bytes(5000))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("model.onnx", whole)
    write("zipped", packed.getvalue())
    write("pickled", pickle.dumps(Run(str(outside / "trace"))))
    _external(models / "missing/1/model.onnx", "weights.bin")
    _external(models / "absolute/1/model.onnx", str(outside / "secret.bin"))
    _external(models / "climbing/1/model.onnx", "../../../outside/secret.bin")
    _external(models / "linked/1/model.onnx", "weights.bin")
    (models / "linked/1/weights.bin").symlink_to(outside / "secret.bin")
    _external(models / "piped/1/model.onnx", "weights.bin")
    os.mkfifo(models / "piped/1/weights.bin")
    _external(models / "short/1/model.onnx", "weights.bin")
    (models / "short/1/weights.bin").write_bytes(b"12345678")
    (models / "fifo/1").mkdir(parents=True)
    os.mkfifo(models / "fifo/1/model.onnx")
    (models / "leading-out").symlink_to(outside)
    (models / "leading/1").mkdir(parents=True)
    (models / "leading/1/model.onnx").symlink_to(outside / "whole.onnx")
    _node(models / "future/1/model.onnx", h.make_node("Relu", ["x"], ["y"]), opset=999)
    _node(models / "unknown/1/model.onnx", h.make_node("Frobnicate", ["x"], ["y"]))
    _node(models / "library/1/model.onnx", h.make_node("Own", ["x"], ["y"], domain="my.ops"), domain="my.ops")
    (models / "library/1/custom_ops.so").write_bytes(b"\x7fELF" + bytes(60))
    (models / "zero/0").mkdir(parents=True)
    nets.scale(models / "zero/0/model.onnx")
    (models / "hollow").mkdir()
    (models / "two/1").mkdir(parents=True)
    (models / "two/config.pbtxt").write_text('name: "another"\n')
    nets.scale(models / "two/1/model.onnx")
    return {
        "truncated": "cut off",
        "text": "text",
        "empty": "empty",
        "noise": "not",
        "zipped": "zip",
        "pickled": "pickle",
        "missing": "missing",
        "absolute": "absolute",
        "climbing": "outside",
        "linked": "link",
        "piped": "regular file",
        "short": "not whole",
        "fifo": "regular file",
        "leading-out": "outside",
        "leading": "outside",
        "future": "opset",
        "unknown": "Frobnicate",
        "library": "operator librar",
        "zero": "no model file",
        "hollow": "no model file",
        "two": "another",
    }


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, dict[str, str]]]:
    """A running appliance with all of them, and two good models around."""
    folder = tmp_path_factory.mktemp("hostile")
    server = Server(folder)
    words = make(server.models, folder / "outside")
    nets.scale(server.models / "aaa/1/model.onnx")
    nets.scale(server.models / "zzz/1/model.onnx")
    # Whoever opens the pipe for reading lets this open for writing return.
    opened = threading.Event()

    def lure() -> None:
        descriptor = os.open(folder / "outside/secret.bin", os.O_WRONLY)
        os.close(descriptor)
        opened.set()

    lured = threading.Thread(target=lure, daemon=True)
    lured.start()
    with ending(server):
        server.start()
        yield server, words
        assert not opened.is_set(), "something outside of the models folder was opened"
    descriptor = os.open(folder / "outside/secret.bin", os.O_RDONLY | os.O_NONBLOCK)
    lured.join(5)
    os.close(descriptor)
    assert not (folder / "outside/trace").exists()


def _check_words(found: dict[str, str | None], words: dict[str, str], folder: Path) -> None:
    assert set(found) >= set(words)
    for name, word in words.items():
        said = found[name]
        assert said and word.lower() in said.lower(), f"{name}: {said}"
        # What the model's author wrote into the file is quoted to whoever is to mend it; all else is without a path.
        own = re.sub(r"external data '[^']*'", "", said)
        assert not re.search(r"(?<![\w.])/\w+/", own), f"{name} tells a path: {said}"
        assert str(folder) not in own and "Traceback" not in said
        assert len(said) < 700


def test_the_index_says_what_is_wrong(told: tuple[Server, dict[str, str]]) -> None:
    server, words = told
    index = server.index()
    found: dict[str, str | None] = {name: entry["reason"] for (name, _), entry in index.items()}
    for name, said in found.items():
        print(f"{name}: {said}")
    _check_words(found, words, server.models.parent)
    assert all(entry["state"] == "UNAVAILABLE" for (name, _), entry in index.items() if name in words)
    for name, word in words.items():
        got = infer(server.client, name, 1)
        assert got.status_code == 404 and word.lower() in got.text.lower(), (name, got.text)


def test_the_others_serve(told: tuple[Server, dict[str, str]]) -> None:
    server, _ = told
    for name in ("aaa", "zzz"):
        assert answer(infer(server.client, name, 1)) == [2.0] * 4
    engine = server.status()["engine"]
    assert engine["restarts"] == 0 and engine["deaths"] == []
    assert server.client.get("/ready").status_code == 200
    assert server.status()["state"] == "degraded"


def test_asking_again_changes_nothing(told: tuple[Server, dict[str, str]]) -> None:
    server, words = told
    for name in ("truncated", "absolute", "library", "hollow"):
        got = server.client.post(f"/v2/repository/models/{name}/load")
        assert got.status_code == 500 and got.json()["code"] == "model_error"
        assert words[name].lower() in got.text.lower()
        assert str(server.models) not in got.text and str(server.state) not in got.text


def test_check_says_the_same(told: tuple[Server, dict[str, str]]) -> None:
    server, words = told
    done = subprocess.run(
        [sys.executable, "-m", "appliance", "models", "check", "--json"],
        cwd=ROOT,
        env=server.env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    rows = json.loads(done.stdout)
    _check_words({row["name"]: row["error"] for row in rows}, words, server.models.parent)
    assert {row["name"] for row in rows if row["error"] is None} == {"aaa", "zzz"}


def test_nothing_was_changed(told: tuple[Server, dict[str, str]]) -> None:
    server, _ = told
    assert stat.S_ISFIFO((server.models / "piped/1/weights.bin").stat().st_mode)
    assert not [path for path in server.models.rglob("*") if path.name.startswith(".")]
