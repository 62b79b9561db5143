"""Files for this user only."""

import os
import sys
from pathlib import Path

import pytest

from appliance.system import private

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="rights of POSIX")


def test_nobody_else_may_read_it_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        private.write(tmp_path / "a", b"secret")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "a").read_bytes() == b"secret"


def test_a_file_that_others_could_read_is_replaced_not_written_into(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"old")
    file.chmod(0o644)
    with file.open("rb") as reader:
        private.write(file, b"new")
        assert reader.read() == b"old"
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"new", 0o600)


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    other, file = tmp_path / "other", tmp_path / "a"
    other.write_bytes(b"of somebody")
    file.symlink_to(other)
    private.write(file, b"new")
    assert other.read_bytes() == b"of somebody" and not file.is_symlink()


def test_a_draft_of_one_that_was_killed_is_no_hindrance_and_lends_no_rights(tmp_path: Path) -> None:
    draft = tmp_path / f"a.{os.getpid()}"
    draft.write_bytes(b"half")
    draft.chmod(0o666)
    private.write(tmp_path / "a", b"new")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private.write(tmp_path / "a", b"old")
    with pytest.raises(FileNotFoundError):
        private.write(tmp_path / "none" / "a", b"x")
    monkeypatch.setattr(private.os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        private.write(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


@pytest.mark.parametrize(("mode", "fault"), [(0o600, False), (0o644, False), (0o620, True), (0o602, True)])
def test_whether_what_it_says_can_be_trusted(tmp_path: Path, mode: int, fault: bool) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"")
    file.chmod(mode)
    assert (private.fault(file) is not None) is fault
    with pytest.raises(FileNotFoundError):
        private.fault(tmp_path / "none")


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"")
    os.chown(file, 12345, 12345)
    assert private.fault(file) == "it belongs to another user"
