"""Spellings of long paths, and where a path really leads."""

import os
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, cast

import pytest

from appliance.system import long_paths

DEEP = "\\".join(["C:", *["a folder of twenty-two"] * 6])


def spelled(path: str) -> str:
    return str(long_paths.extended(cast(Path, PureWindowsPath(path)), windows=True)).replace("/", "\\")


def test_a_long_folder_gets_the_extended_spelling() -> None:
    assert len(DEEP) == 140
    assert spelled(DEEP) == "\\\\?\\" + DEEP
    assert spelled("\\\\?\\" + DEEP) == "\\\\?\\" + DEEP


def test_a_share_has_a_spelling_of_its_own() -> None:
    assert spelled("\\\\server\\share" + DEEP[2:]) == "\\\\?\\UNC\\server\\share" + DEEP[2:]


def test_a_short_folder_stays_as_it_is() -> None:
    assert spelled("C:\\Users\\me\\models") == "C:\\Users\\me\\models"


def test_other_systems_know_one_spelling() -> None:
    path = cast(Path, PurePosixPath("/" + "x" * 300))
    assert long_paths.extended(path, windows=False) is path


@pytest.mark.parametrize(
    ("path", "seen"),
    [
        ("\\\\?\\C:\\models", "C:\\models"),
        ("\\\\?\\UNC\\server\\share\\models", "\\\\server\\share\\models"),
        ("C:\\models", "C:\\models"),
        ("/home/me/models", "/home/me/models"),
    ],
)
def test_a_person_sees_the_plain_spelling(path: str, seen: str) -> None:
    assert long_paths.shown(path) == seen


class NoRoom(OSError):
    winerror = 234


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def realpath(path: Any, *, strict: bool = False) -> str:
        raise NoRoom(22, "More data available")

    monkeypatch.setattr(os.path, "realpath", realpath)


def test_a_path_that_the_system_cannot_answer_for_is_its_own_answer(tmp_path: Path, no_room: None) -> None:
    here = tmp_path / "a"
    here.mkdir()
    assert long_paths.real_path(here / ".." / "a", strict=True) == str(here)


def test_but_not_where_a_link_is_on_it(tmp_path: Path, no_room: None) -> None:
    (tmp_path / "outside").mkdir()
    try:
        (tmp_path / "link").symlink_to(tmp_path / "outside", target_is_directory=True)
    except OSError:
        pytest.skip("this user may make no links")
    with pytest.raises(NoRoom):
        long_paths.real_path(tmp_path / "link")


def test_other_faults_stay_faults(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        long_paths.real_path(tmp_path / "nothing", strict=True)
