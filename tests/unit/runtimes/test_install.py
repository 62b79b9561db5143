"""Unpacking a runtime pack: whole or not at all, and going on where it stopped."""

import errno
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from appliance.errors import PackError
from appliance.runtimes import install as installing
from appliance.runtimes import shelf as shelves
from appliance.runtimes.install import free_bytes, install, this_platform
from appliance.runtimes.shelf import Shelf, faults
from tests.unit.runtimes.packs import FILES, PLATFORM, entry, manifest, pack


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "state" / "runtimes")


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelves, "_PAUSE_S", 0.0)


def put(shelf: Shelf, file: Path, **more: Any) -> bool:
    return install(file, shelf, "cuda", platform=PLATFORM, **more)[1]


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }


def test_all_of_it_and_nothing_else(shelf: Shelf, tmp_path: Path) -> None:
    done: list[int] = []
    assert put(shelf, pack(tmp_path / "p.zip"), progress=done.append)
    assert [path.name for path in shelf.folder.iterdir()] == ["cuda-13.5.37"]
    assert files(shelf.folder / "cuda-13.5.37") == FILES
    assert sum(done) == sum(map(len, FILES.values()))
    (found,) = shelf.installed()
    assert (found.name, found.version, found.fault) == ("cuda", "13.5.37", None)
    assert found.manifest is not None
    assert list(faults(found.folder, found.manifest)) == []
    assert not put(shelf, tmp_path / "p.zip")


def test_one_that_is_there_and_not_whole_is_made_whole(shelf: Shelf, tmp_path: Path) -> None:
    file = pack(tmp_path / "p.zip")
    put(shelf, file)
    folder = shelf.folder / "cuda-13.5.37"
    (folder / "bin" / "cudnn64_9.dll").unlink()
    (folder / "bin" / "cublas64_13.dll").write_bytes(b"x" * 6000)
    (found,) = shelf.installed()
    assert found.manifest is not None
    assert [(wrong.path, fault) for wrong, fault in faults(folder, found.manifest)] == [
        ("bin/cublas64_13.dll", "is damaged"),
        ("bin/cudnn64_9.dll", "is missing"),
    ]
    assert put(shelf, file)
    assert files(folder) == FILES
    assert [path.name for path in shelf.folder.iterdir()] == ["cuda-13.5.37"]


class _Stopped(Exception):
    """Somebody pressed Ctrl-C."""


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The files of the archive that are read."""
    found: list[str] = []
    real = zipfile.ZipFile.open

    def spy(self: zipfile.ZipFile, name: Any, mode: Any = "r", **more: Any) -> IO[bytes]:
        found.append(name if isinstance(name, str) else name.filename)
        return real(self, name, mode, **more)

    monkeypatch.setattr(zipfile.ZipFile, "open", spy)
    yield found


def test_an_interrupted_one_goes_on(
    shelf: Shelf, tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = pack(tmp_path / "p.zip")
    monkeypatch.setattr(installing, "_CHUNK", 6000)
    parts: list[int] = []

    def stop(done: int) -> None:
        parts.append(done)
        if len(parts) == 3:  # the first file is whole, a part of the second is there
            raise _Stopped

    with pytest.raises(_Stopped):
        put(shelf, file, progress=stop)
    assert [path.name for path in shelf.folder.iterdir()] == [".cuda-13.5.37.part"]
    assert shelf.installed() == []
    (shelf.folder / ".cuda-13.5.37.part" / "bin" / "stray.dll").write_bytes(b"of another pack")
    opened.clear()
    done: list[int] = []
    assert put(shelf, file, progress=done.append)
    assert opened == ["manifest.json", "bin/cudnn64_9.dll", "licenses/nvidia-cublas-License.txt"]
    assert sum(done) == sum(map(len, FILES.values()))
    assert files(shelf.folder / "cuda-13.5.37") == FILES


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_keeps_what_is_there(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    file = pack(tmp_path / "p.zip")

    def full(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as broken:
        broken.setattr(installing.os, "fsync", full)
        with pytest.raises(PackError, match="the disk is full; make room and run the same command again"):
            put(shelf, file)
    assert shelf.installed() == []
    assert put(shelf, file)


def test_room_is_asked_for_before(shelf: Shelf, tmp_path: Path) -> None:
    file = pack(tmp_path / "p.zip")
    with pytest.raises(PackError, match="not enough room: 64 MiB are needed, 64 MiB are free"):
        put(shelf, file, free=lambda folder: 64 << 20)
    assert shelf.installed() == []
    assert put(shelf, file, free=lambda folder: (64 << 20) + sum(map(len, FILES.values())))
    assert free_bytes(tmp_path / "not" / "there") > 0


def test_other_packs_and_machines(shelf: Shelf, tmp_path: Path) -> None:
    file = pack(tmp_path / "p.zip")
    with pytest.raises(PackError, match=r"p\.zip is the pack 'cuda', not 'torch'"):
        install(file, shelf, "torch", platform=PLATFORM)
    with pytest.raises(PackError, match=r"p\.zip is for windows-x86_64, this is linux-x86_64"):
        install(file, shelf, "cuda", platform="linux-x86_64")
    assert not shelf.folder.exists()
    assert this_platform().count("-") == 1


def damaged(file: Path, of: bytes) -> Path:
    """A byte of the stored content changed."""
    data = bytearray(file.read_bytes())
    data[data.index(of) + 5] ^= 1
    file.write_bytes(data)
    return file


def test_damage(shelf: Shelf, tmp_path: Path) -> None:
    stored = tmp_path / "stored.zip"
    with zipfile.ZipFile(stored, "w", zipfile.ZIP_STORED) as archive:
        for path, content in FILES.items():
            archive.writestr(path, content)
        archive.writestr("manifest.json", json.dumps(manifest()))
    with pytest.raises(PackError, match=r"damaged at bin/cublas64_13\.dll"):
        put(shelf, damaged(stored, b"cublascublas"))
    other = pack(tmp_path / "other.zip", {**FILES, "bin/cudnn64_9.dll": b"x" * 102400}, manifest())
    with pytest.raises(PackError, match=r"damaged at bin/cudnn64_9\.dll"):
        put(shelf, other)
    cut = tmp_path / "cut.zip"
    cut.write_bytes(pack(tmp_path / "p.zip").read_bytes()[:-200])
    for file in (cut, tmp_path / "empty.zip"):
        file.touch()
        with pytest.raises(PackError, match="is no runtime pack, or it was cut off"):
            put(shelf, file)
    with pytest.raises(PackError, match="there is no file"):
        put(shelf, tmp_path / "nothing.zip")
    with pytest.raises(PackError, match="cannot be read"):
        put(shelf, tmp_path)
    assert shelf.installed() == []


def test_an_archive_that_is_none_of_ours(shelf: Shelf, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(PackError, match="it has no manifest"):
        put(shelf, tmp_path / "z.zip")
    large = {**manifest(), "contents": {"x": "y" * (1 << 20)}}
    with pytest.raises(PackError, match="its manifest is too large"):
        put(shelf, pack(tmp_path / "l.zip", FILES, large))


@pytest.mark.parametrize("extra", ["bin/extra.dll", "../../evil.dll", "/evil.dll"])
def test_files_that_the_manifest_does_not_name(shelf: Shelf, tmp_path: Path, extra: str) -> None:
    with pytest.raises(PackError, match="its manifest and its files differ"):
        put(shelf, pack(tmp_path / "p.zip", {**FILES, extra: b""}, manifest()))
    fewer = {path: content for path, content in FILES.items() if "cudnn" not in path}
    with pytest.raises(PackError, match=r"differ \(bin/cudnn64_9\.dll\)"):
        put(shelf, pack(tmp_path / "q.zip", fewer, manifest()))
    assert list(tmp_path.rglob("evil.dll")) == []


def test_a_bomb(shelf: Shelf, tmp_path: Path) -> None:
    """Ten MiB that call themselves five bytes, in the manifest alone and in the archive too."""
    bomb = {"bin/a.dll": bytes(10 << 20)}
    small = manifest(files=[entry("bin/a.dll", b"small")])
    file = pack(tmp_path / "b.zip", bomb, small)
    with pytest.raises(PackError, match="another size than its manifest says"):
        put(shelf, file)
    data = file.read_bytes()
    liar = tmp_path / "liar.zip"
    liar.write_bytes(data.replace((10 << 20).to_bytes(4, "little"), (5).to_bytes(4, "little")))
    with pytest.raises(PackError, match=r"damaged|larger"):
        put(shelf, liar)
    assert sum(path.stat().st_size for path in shelf.folder.rglob("*.dll")) <= 5


def test_what_does_not_go_in_the_archive_s_way(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *, parents: bool = False, exist_ok: bool = False, mode: int = 0o777) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    file = pack(tmp_path / "p.zip")
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(PackError, match="it cannot be unpacked: Read-only file system"):
        put(shelf, file)
    with pytest.raises(PackError, match="cannot be written: Read-only file system"), shelf.alone():
        pass


# --- the shelf -------------------------------------------------------------------------------------------------


def test_removal(shelf: Shelf, tmp_path: Path) -> None:
    put(shelf, pack(tmp_path / "p.zip"))
    put(shelf, pack(tmp_path / "q.zip", FILES, manifest(version="13.6.1")))
    assert [pack.version for pack in shelf.find("cuda")] == ["13.5.37", "13.6.1"]
    shelf.remove(shelf.find("cuda", "13.5.37")[0])
    assert [path.name for path in shelf.folder.iterdir()] == ["cuda-13.6.1"]
    with pytest.raises(PackError, match=r"there is no pack 'cuda-1\.0' \(installed: cuda-13\.6\.1\)"):
        shelf.find("cuda", "1.0")
    with pytest.raises(PackError, match=r"there is no pack 'torch' "):
        shelf.find("torch")


def test_removal_while_in_use(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows opens a library that is loaded for nobody who might write."""
    put(shelf, pack(tmp_path / "p.zip"))
    tries: list[str] = []
    real = Path.open

    def refuse(self: Path, mode: str = "r", *more: Any) -> Any:
        if self.name == "cudnn64_9.dll" and mode == "r+b":
            tries.append(self.name)
            raise PermissionError(errno.EACCES, "The process cannot access the file")
        return real(self, mode, *more)

    with monkeypatch.context() as busy:
        busy.setattr(Path, "open", refuse)
        with pytest.raises(PackError, match=r"cuda-13\.5\.37 is in use: stop the appliance"):
            shelf.remove(shelf.installed()[0])
    assert len(tries) == 20
    assert files(shelf.folder / "cuda-13.5.37") == FILES
    shelf.remove(shelf.installed()[0])
    assert shelf.installed() == []


def test_what_was_left_goes_later(shelf: Shelf) -> None:
    (shelf.folder / ".cuda-1.removed" / "bin").mkdir(parents=True)
    left = [shelf.folder / ".cuda-2.part" / "bin", shelf.folder / ".downloads" / "a.part"]
    fresh = [shelf.folder / ".cuda-3.part" / "bin", shelf.folder / ".downloads" / "b.part"]
    for folder, file in (left, fresh):
        folder.mkdir(parents=True)
        file.parent.mkdir(exist_ok=True)
        file.touch()
    for path in (left[0].parent, *left):
        os.utime(path, (1e9, 1e9))
    shelf.sweep()
    assert sorted(shelf.folder.rglob("*")) == sorted([fresh[0].parent, fresh[1].parent, *fresh])
    Shelf(shelf.folder / "nothing").sweep()


def test_folders_that_are_not_whole(shelf: Shelf) -> None:
    (shelf.folder / "cuda-1.0").mkdir(parents=True)
    (shelf.folder / "cuda-2.0").mkdir()
    (shelf.folder / "cuda-2.0" / "manifest.json").write_text("{}")
    (shelf.folder / "cuda-3.0").mkdir()
    (shelf.folder / "cuda-3.0" / "manifest.json").write_text(json.dumps(manifest()))
    (shelf.folder / "other").mkdir()
    (shelf.folder / "file-1").touch()
    found = {pack.version: pack.fault or "" for pack in shelf.installed()}
    assert set(found) == {"1.0", "2.0", "3.0"}
    assert "cannot be read" in found["1.0"]
    assert "its manifest is wrong" in found["2.0"]
    assert found["3.0"] == "its manifest is that of cuda-13.5.37"


def test_one_command_at_a_time(shelf: Shelf) -> None:
    with shelf.alone(), pytest.raises(PackError, match="another command is at work"), shelf.alone():
        pass
    with shelf.alone():
        pass
