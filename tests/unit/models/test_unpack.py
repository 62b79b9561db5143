"""Zips that somebody sends: what is taken of them, and what is refused."""

import stat
import zipfile
from pathlib import Path

import pytest

from appliance.errors import InputTooLarge, InvalidInput
from appliance.models.unpack import MAGIC, unpack

LIMIT = 1 << 20


def packed(folder: Path, files: dict[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> Path:
    path = folder / "sent.zip"
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def unpacked(folder: Path, files: dict[str, bytes]) -> dict[str, bytes]:
    target = folder / "out"
    unpack(packed(folder, files), target, LIMIT)
    return {p.relative_to(target).as_posix(): p.read_bytes() for p in target.rglob("*") if p.is_file()}


def test_the_files_of_a_model(tmp_path: Path) -> None:
    files = {"1/model.onnx": b"net", "model.toml": b"x = 1", "labels.txt": b"a"}
    assert packed(tmp_path, files).read_bytes()[:4] == MAGIC
    assert unpacked(tmp_path, files) == files


def test_a_folder_around_everything_is_left_out(tmp_path: Path) -> None:
    files = {"yolo/1/model.onnx": b"net", "yolo/model.toml": b""}
    assert unpacked(tmp_path, files) == {"1/model.onnx": b"net", "model.toml": b""}


@pytest.mark.parametrize("name", ["1/model.onnx", "model.onnx/model.onnx"])
def test_a_version_or_a_model_of_several_files_is_no_folder_around(tmp_path: Path, name: str) -> None:
    assert unpacked(tmp_path, {name: b"net"}) == {name: b"net"}


def test_what_desktops_add_is_left_out(tmp_path: Path) -> None:
    files = {"a/model.onnx": b"net", "__MACOSX/a/._model.onnx": b"", "a/.DS_Store": b"", "a/Thumbs.db": b""}
    assert unpacked(tmp_path, files) == {"model.onnx": b"net"}


@pytest.mark.parametrize(
    "name",
    [
        "../evil.onnx", "a/../../evil.onnx", "/etc/evil", "a//b", "C:/evil", "..\\evil", "a\\b.onnx",
        "x\x01y", "nul", "a/com1.txt", "dot.", "space ", "a:stream", "./a", "a?b",
    ],
)  # fmt: skip
def test_names_that_lead_elsewhere(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="name that cannot be used"):
        unpacked(tmp_path, {"model.onnx": b"net", name: b"evil"})
    assert not (tmp_path / "out").exists()
    assert not (tmp_path.parent / "evil.onnx").exists()


def test_links_are_refused(tmp_path: Path) -> None:
    path = packed(tmp_path, {"model.onnx": b"net"})
    with zipfile.ZipFile(path, "a") as archive:
        link = zipfile.ZipInfo("link")
        link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(InvalidInput, match="a link or a device: 'link'"):
        unpack(path, tmp_path / "out", LIMIT)


def test_what_it_unpacks_to_is_bounded_whatever_it_says(tmp_path: Path) -> None:
    path = packed(tmp_path, {"model.onnx": bytes(LIMIT), "more": b"x"})
    assert path.stat().st_size < LIMIT / 100
    with pytest.raises(InputTooLarge, match=str(LIMIT)):
        unpack(path, tmp_path / "out", LIMIT)
    lying = path.read_bytes().replace(LIMIT.to_bytes(4, "little"), (5).to_bytes(4, "little"))
    path.write_bytes(lying)
    with pytest.raises((InputTooLarge, InvalidInput)):
        unpack(path, tmp_path / "out2", LIMIT // 2)


def test_names_that_are_one_on_windows(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="same name"):
        unpacked(tmp_path, {"Model.onnx": b"1", "model.onnx": b"2"})
    with pytest.raises(InvalidInput, match="same name"):
        unpacked(tmp_path, {"a": b"1", "a/b": b"2", "c": b""})


def test_too_many_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="10001 files"):
        unpacked(tmp_path, {f"f{n}": b"" for n in range(10_001)})


def test_too_deep(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="deep"):
        unpacked(tmp_path, {"a/b/c/d/e/f/g/h/i/j": b"", "x": b""})


def test_other_kinds_of_zip(tmp_path: Path) -> None:
    for kind in (zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2):
        with pytest.raises(InvalidInput, match="compressed in a way"):
            unpack(packed(tmp_path, {"model.onnx": b"net"}, kind), tmp_path / "out", LIMIT)
    with pytest.raises(InvalidInput, match="no file"):
        unpacked(tmp_path, {})
    with pytest.raises(InvalidInput, match="no file"):
        unpacked(tmp_path, {".hidden": b"x"})


@pytest.mark.parametrize("cut", [3, 20, 60, -1, -20])
def test_damaged(tmp_path: Path, cut: int) -> None:
    path = packed(tmp_path, {"model.onnx": b"net" * 100})
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InvalidInput, match="the zip"):
        unpack(path, tmp_path / "out", LIMIT)


def test_a_wrong_checksum(tmp_path: Path) -> None:
    path = packed(tmp_path, {"model.onnx": b"all that is in it"}, zipfile.ZIP_STORED)
    path.write_bytes(path.read_bytes().replace(b"all that", b"ALL that"))
    with pytest.raises(InvalidInput, match="CRC"):
        unpack(path, tmp_path / "out", LIMIT)
