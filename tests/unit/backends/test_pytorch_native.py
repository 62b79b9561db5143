"""What an AOTInductor package must be before any of its code runs. Packages that really run: tests/process."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from appliance import backends
from appliance.backends.base import LoadRequest
from appliance.errors import ModelLoadError
from appliance.models.spec import ModelConfig, PyTorchConfig
from appliance.system import torch_setup
from tests.support import torch_nets
from tests.unit.backends.pytorch_helpers import X, Y

assert torch_nets.torch  # skipped where it is not installed

from appliance.backends.pytorch_device import Place  # noqa: E402 - needs PyTorch
from appliance.backends.pytorch_native import misfit  # noqa: E402

HERE = dict(zip(("AOTI_PLATFORM", "AOTI_MACHINE"), torch_setup.machine(), strict=True)) | {"AOTI_DEVICE_KEY": "cpu"}
LIBRARY = "data/aotinductor/model/m.wrapper.so"
META = "data/aotinductor/model/m.wrapper_metadata.json"


def package(path: Path, library: bytes = b"\x7fELF", meta: dict[str, Any] | None = None, **more: bytes) -> Path:
    records = {"archive_format": b"pt2", "version": b"3", "byteorder": b"little", ".data/version": b"3\n"}
    records |= {LIBRARY: library, META: json.dumps(HERE if meta is None else meta).encode(), **more}
    with zipfile.ZipFile(path, "w") as out:
        for name, content in records.items():
            out.writestr(f"{path.stem}/{name}", content)
    return path


def refused(path: Path, trusted: bool = True, **options: Any) -> str:
    declared = {"inputs": options.pop("inputs", (X,)), "outputs": options.pop("outputs", (Y,))}
    config = ModelConfig(pytorch=PyTorchConfig(**options))
    request = LoadRequest("m", path, path.parent, "cpu", 1, config, trusted=trusted, **declared)
    with pytest.raises(ModelLoadError) as caught:
        backends.get("pytorch").open(request)
    assert str(path.parent) not in caught.value.message
    return caught.value.message


@pytest.mark.skipif(sys.platform == "win32", reason="the library that is made here is for Linux")
def test_its_code_runs_by_the_servers_word_only(tmp_path: Path) -> None:
    compiler = shutil.which("g++") or pytest.skip("there is no C++ compiler (g++)")
    mark, source, library = tmp_path / "ran", tmp_path / "m.cpp", tmp_path / "m.so"
    source.write_text(
        f'#include <cstdio>\n__attribute__((constructor)) static void f() {{ fclose(fopen("{mark}", "w")); }}\n'
    )
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    path = package(tmp_path / "m.pt2", library.read_bytes())
    words = refused(path, trusted=False)
    assert "m.pt2: it is an AOTInductor package, which is machine code" in words
    assert "add 'm' to the server's setting trust_native_code" in words
    assert not mark.exists()
    assert "cannot load it" in refused(path)  # it has no model in it
    assert mark.exists()
    assert not list(Path(tempfile.gettempdir()).glob(f"appliance-native-{os.getpid()}-*"))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"data/aotinductor/other/m.so": b""}, "it holds several compiled models"),
        ({"data/aotinductor/model/../../../../m.txt": b""}, "would be unpacked outside of its folder"),
        ({"data/aotinductor/model/n.so": b""}, "not exactly one compiled library"),
        ({META: b"{"}, "of the machine that it is for is damaged"),
        ({META: b'{"AOTI_PLATFORM": 1}'}, "of the machine that it is for is damaged"),
        ({META: b"{}"}, "it does not tell which machine it was compiled for"),
        ({META: b'{"AOTI_PLATFORM": "plan9", "AOTI_MACHINE": "vax"}'}, "it was compiled for plan9 on vax, this is "),
    ],
)
def test_packages_that_are_refused_although_trusted(tmp_path: Path, more: dict[str, bytes], words: str) -> None:
    assert words in refused(package(tmp_path / "m.pt2", **more))


@pytest.mark.parametrize(
    "options", [{"dtype": "fp16"}, {"channels_last": True}, {"compile": True}, {"module": "a"}, {"method": "b"}]
)
def test_what_would_change_it_is_refused_by_name(tmp_path: Path, options: dict[str, Any]) -> None:
    assert f"pytorch.{next(iter(options))}: an AOTInductor package is compiled" in refused(
        package(tmp_path / "m.pt2"), **options
    )


def test_it_needs_declared_inputs_and_outputs(tmp_path: Path) -> None:
    path = package(tmp_path / "m.pt2")
    assert "inputs: an AOTInductor package does not tell" in refused(path, inputs=())
    assert "outputs: an AOTInductor package does not tell" in refused(path, outputs=())


@pytest.mark.parametrize(
    ("told", "index", "words"),
    [
        ({}, None, None),
        ({"AOTI_CPU_ISA": "INVALID_VEC_ISA"}, None, None),
        ({"AOTI_CPU_ISA": "AVX512 AVX512_VNNI"}, None, "a processor with AVX512_VNNI, which this one lacks"),
        ({"AOTI_CPU_ISA": "AVX2"}, None, None),
        ({"AOTI_MACHINE": "vax"}, None, " on vax, this is "),
        ({"AOTI_DEVICE_KEY": "xpu"}, None, "for a device 'xpu', which is not served"),
        ({"AOTI_DEVICE_KEY": "cuda"}, None, "for CUDA and would run on the CPU: no driver"),
        ({}, 1, 'would run on cuda:1; set device = "cpu" in model.toml'),
        ({"AOTI_DEVICE_KEY": "cuda", "AOTI_COMPUTE_CAPABILITY": "80"}, 0, None),
        ({"AOTI_DEVICE_KEY": "cuda", "AOTI_COMPUTE_CAPABILITY": "86"}, 0, None),
        ({"AOTI_DEVICE_KEY": "cuda", "AOTI_COMPUTE_CAPABILITY": "89"}, 0, "capability 8.9, cuda:0 has 8.6"),
        ({"AOTI_DEVICE_KEY": "cuda", "AOTI_COMPUTE_CAPABILITY": "90"}, 0, "capability 9.0, cuda:0 has 8.6"),
        ({"AOTI_DEVICE_KEY": "cuda", "AOTI_COMPUTE_CAPABILITY": "120"}, 0, "capability 12.0, cuda:0 has 8.6"),
    ],
)
def test_it_must_be_for_this_machine(
    told: dict[str, str], index: int | None, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    has = {"AVX2": lambda: True, "AVX512": lambda: True, "AVX512_VNNI": lambda: False}
    monkeypatch.setattr("appliance.backends.pytorch_native._SETS", has)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: (8, 6))
    fault = misfit(HERE | told, Place(index, "no driver" if index is None else None))
    assert fault is None if words is None else words in (fault or "")


@pytest.mark.skipif(sys.platform == "win32", reason="processes have other numbers there")
def test_what_a_killed_engine_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from appliance.backends.pytorch_native import _folder

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(60)
    left = tmp_path / f"appliance-native-{ended.pid}-x"
    alive = tmp_path / f"appliance-native-{os.getppid()}-x"
    other = tmp_path / "appliance-native-notes"
    for folder in (left, alive, other):
        folder.mkdir()
        (folder / "m.so").write_bytes(b"")
    before = os.environ.get("TMPDIR")
    with _folder(keep=True):
        inside = Path(os.environ["TMPDIR"])
        assert inside.parent == tmp_path and inside.stat().st_mode & 0o777 == 0o700
    assert os.environ.get("TMPDIR") == before
    assert sorted(tmp_path.iterdir()) == sorted([alive, other, inside])
    with _folder(keep=False):  # the model of before is gone, and what was in its folder
        assert not inside.exists()
    assert sorted(tmp_path.iterdir()) == sorted([alive, other])
