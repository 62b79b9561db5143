"""Which PyTorch files are refused before PyTorch reads them, and that what they hold did not run."""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import ModelLoadError
from appliance.models import torch_file, torch_script
from tests.support import torch_nets
from tests.support.torch_nets import torch
from tests.unit.models.torch_helpers import PICKLE, Evil, refused, runs_elsewhere


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """Made by whatever code in a file runs."""
    return tmp_path / "it-ran"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return torch_nets.export(tmp_path_factory.mktemp("good") / "model.pt2")


# --- pickles ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("ending", [".pt", ".pt2", ".ts", ".jit"])
def test_a_pickle_is_refused_and_does_not_run(tmp_path: Path, mark: Path, zipped: bool, ending: str) -> None:
    path = tmp_path / f"model{ending}"
    torch.save({"weights": Evil(mark)}, path, _use_new_zipfile_serialization=zipped)
    told = refused(path)
    assert "it is a Python pickle" in told
    assert "torch.export.save(" in told
    assert not mark.exists()
    if ending == ".pt":  # it would have
        assert runs_elsewhere(path, mark, PICKLE)


def test_a_plain_pickle_and_a_module_are_refused(tmp_path: Path, mark: Path) -> None:
    (tmp_path / "a.pt").write_bytes(pickle.dumps(Evil(mark)))
    torch.save(torch_nets.Small(), tmp_path / "b.pt")
    torch.save(torch_nets.Small().state_dict(), tmp_path / "c.pt")
    for name in "abc":
        assert "it is a Python pickle" in refused(tmp_path / f"{name}.pt")
    assert not mark.exists()


# --- TorchScript -----------------------------------------------------------------------------------------------


class Saves(torch.nn.Module):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.save(x, self.path)
        return x


class Maps(torch.nn.Module):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_file(self.path, True, 4) + x


class AtLoad(torch.nn.Module):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    @torch.jit.export
    def __getstate__(self) -> tuple[str, bool]:
        return self.path, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]) -> None:
        self.path = state[0]
        self.training = state[1]
        torch.save(torch.ones(1), self.path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Saves, "it uses the operator aten::save, which reaches outside of the model"),
        (Maps, "it uses the operator aten::from_file, which reaches outside of the model"),
        (AtLoad, "a class in it runs code while it is loaded"),
    ],
)
def test_torch_script_that_writes_files(tmp_path: Path, mark: Path, kind: Any, words: str) -> None:
    path = torch_nets.script(tmp_path / "m.pt", kind(str(mark)))
    assert words in refused(path)
    assert not mark.exists()
    loaded = torch.jit.load(str(path))  # it would have
    if kind is not AtLoad:
        loaded(torch.ones(4))
    assert mark.exists()


def test_native_classes_and_operators_of_other_libraries() -> None:
    torch_script.check({"code/a.py": b"def forward(self): return torch.relu(x)"}, {"data.pkl": b"c__torch__.A\n"})
    for code, pickled in ((b"__torch__.torch.classes.x.Y", b""), (b"", b"c__torch__.torch.classes.x\nY\n")):
        with pytest.raises(ModelLoadError, match="native classes"):
            torch_script.check({"code/a.py": code}, {"data.pkl": pickled})
    assert torch_script.graph_fault(["aten::add", "prim::If", "quantized::linear"]) is None
    assert "mine::op" in (torch_script.graph_fault(["aten::add", "mine::op"]) or "")
    assert "prim::rpc_sync" in (torch_script.graph_fault(["prim::rpc_sync"]) or "")


# --- files that are not what they seem -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "it is a web page, not a PyTorch model"),
        (b"\x7fELF\x02\x01\x01" + bytes(64), "it is a library of machine code"),
        (b"MZ" + bytes(64), "it is a library of machine code"),
        (b"PK\x03\x04 and then nothing", "it is damaged or cut off"),
        (bytes(range(1, 200)), "it is not a PyTorch model"),
    ],
)
def test_other_files(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    assert words in refused(path)


def archive(path: Path, **records: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as out:
        for name, content in records.items():
            out.writestr(f"m/{name}", content)
    return path


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ({"readme.txt": b"x"}, "it is a zip archive, but not a PyTorch model"),
        ({"archive_format": b"other"}, "of an unknown format"),
        ({"archive_format": b"pt2"}, "there is no program in it"),
        ({"archive_format": b"pt2", "models/model.json": b"{"}, "the program in it is damaged"),
        ({"archive_format": b"pt2", "models/model.json": b"{}", "models/b.json": b"{}"}, "several programs"),
        ({"archive_format": b"pt2", "models/model.json": b"{}", "data/weights/model.pt": b""}, "are pickled"),
        ({"archive_format": b"pt2", "Archive_Format": b"pt2"}, "two of its records have one name"),
        ({"archive_format": b"pt2", "data/aotinductor/model/m.so": b"\x7fELF"}, "it is an AOTInductor package"),
        ({"serialized_exported_program.json": b"{}"}, "program of an old PyTorch"),
        ({"data.pkl": b""}, "it is a Python pickle"),
    ],
)
def test_archives(tmp_path: Path, records: dict[str, bytes], words: str) -> None:
    assert words in refused(archive(tmp_path / "model.pt2", **records))


def test_a_file_that_is_cut_off_anywhere_or_changed_is_refused_in_words(tmp_path: Path, good: Path) -> None:
    content = good.read_bytes()
    path = tmp_path / "m.pt2"
    for size in range(0, len(content), len(content) // 40):
        path.write_bytes(content[:size])
        refused(path)


@given(where=st.integers(0, 1 << 30), value=st.integers(0, 255))
@settings(max_examples=150, deadline=None)
def test_a_changed_byte_never_surprises(good: Path, where: int, value: int) -> None:
    """Either it is a model still, or the reason is in words."""
    content = bytearray(good.read_bytes())
    content[where % len(content)] = value
    path = good.with_name("changed.pt2")
    path.write_bytes(content)
    try:
        torch_file.inspect(path, path.parent)
    except ModelLoadError as error:
        assert error.message.startswith("changed.pt2: ")


def test_links_that_lead_out_are_not_followed(tmp_path: Path, good: Path) -> None:
    (tmp_path / "in").mkdir()
    link = tmp_path / "in" / "model.pt2"
    link.symlink_to(good)
    with pytest.raises(ModelLoadError, match="a link leads outside of the model's folder"):
        torch_file.inspect(link, tmp_path / "in")


def test_what_a_body_of_bytes_is(tmp_path: Path, good: Path) -> None:
    assert torch_file.sniff(good) == ".pt2"
    assert torch_file.sniff(torch_nets.script(tmp_path / "a")) == ".pt"
    assert torch_file.sniff(archive(tmp_path / "b", **{"model.toml": b""})) is None
    (tmp_path / "c").write_bytes(b"onnx")
    assert torch_file.sniff(tmp_path / "c") is None
