"""What is purged, and what never is."""

from pathlib import Path

import pytest

from appliance.system import belongings, paths


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "default_state", lambda: tmp_path / "state")
    monkeypatch.setattr(paths, "settings_files", lambda: [tmp_path / "config" / "settings.toml"])
    monkeypatch.setattr(paths, "default_models", lambda: tmp_path / "own" / "models")
    for file in ("state/logs/appliance.log", "config/settings.toml", "own/models/m/1/model.onnx", "other/kept.txt"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text("x")
    return tmp_path


def test_all_of_it_goes_and_nothing_else(home: Path) -> None:
    assert belongings.purge(belongings.own_folders()) == []
    assert sorted(path.name for path in home.rglob("*")) == ["kept.txt", "other"]
    assert belongings.purge(belongings.own_folders()) == []


def test_what_lies_beside_the_models_stays(home: Path) -> None:
    (home / "own" / "notes.txt").write_text("mine")
    assert belongings.purge(belongings.own_folders()) == []
    assert [path.name for path in (home / "own").iterdir()] == ["notes.txt"]


def test_links_are_not_followed(home: Path) -> None:
    elsewhere = home / "other"
    (home / "state" / "link").symlink_to(elsewhere)
    models = home / "own" / "models"
    models.rename(home / "kept")
    models.symlink_to(home / "kept")
    assert belongings.purge(belongings.own_folders()) == []
    assert (elsewhere / "kept.txt").exists()
    assert (home / "kept" / "m" / "1" / "model.onnx").exists()
    assert not models.is_symlink()


def test_what_cannot_be_deleted_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(belongings, "_delete", lambda folder: None)
    assert belongings.purge([home / "state", home / "none"]) == [home / "state"]
