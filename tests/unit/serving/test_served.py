"""What is known of a model: which copy serves, which file failed, what is still to be done."""

from pathlib import Path
from typing import Literal

from appliance.models.repository import ModelFile, ModelFolder
from appliance.models.spec import ModelConfig
from appliance.serving.served import LoadedCopy, ServedModel, ServedVersion


def file(version: str = "1", fingerprint: str = "a") -> ModelFile:
    return ModelFile(version, Path("m"), Path(), fingerprint)


def folder(*files: ModelFile, load: Literal["eager", "manual"] = "eager", error: str | None = None) -> ModelFolder:
    return ModelFolder("m", Path("m"), ModelConfig(load=load), files, error=error)


def test_a_version_on_its_way() -> None:
    version = ServedVersion(file())
    assert (version.state, version.ready, version.current) == ("UNAVAILABLE", False, False)
    version.serves(LoadedCopy("a", 3, None))
    assert (version.state, version.ready, version.current, version.copies[""].handle) == ("READY", True, True, 3)


def test_a_broken_new_file_leaves_the_old_copy_serving() -> None:
    version = ServedVersion(file(fingerprint="old"))
    version.serves(LoadedCopy(version.file.fingerprint, 1, None))
    version.file = file(fingerprint="new")
    assert not version.current
    version.failed("broken")
    assert (version.ready, version.error, version.tried) == (True, "broken", "new")
    fresh = ServedVersion(file())
    fresh.failed("broken")
    assert (fresh.state, fresh.error) == ("UNAVAILABLE", "broken")


def test_serving_again_clears_the_fault() -> None:
    version = ServedVersion(file())
    version.failed("broken")
    version.load_deaths[""] = 2
    version.serves(LoadedCopy("a", 2, None))
    assert (version.error, version.tried, version.load_deaths.total()) == (None, None, 0)


def test_a_lost_copy_comes_back_and_what_never_served_does_not() -> None:
    version = ServedVersion(file())
    version.serves(LoadedCopy("a", 2, None))
    version.lost()
    assert (version.state, version.copies, version.current) == ("LOADING", {}, False)
    never = ServedVersion(file())
    never.lost()
    assert never.state == "UNAVAILABLE"


def test_the_newest_ready_version_by_number() -> None:
    model = ServedModel(folder(file("2"), file("10"), file("9")))
    assert model.newest_ready() is None
    for number in ("2", "9", "10"):
        model.versions[number].serves(LoadedCopy("a", 1, None))
    newest = model.newest_ready()
    assert newest is not None and newest.file.version == "10"
    model.versions["10"].lost()
    newest = model.newest_ready()
    assert newest is not None and newest.file.version == "9"


def test_settled() -> None:
    model = ServedModel(folder(file("1"), file("2")))
    assert model.wanted and not model.settled
    model.versions["1"].serves(LoadedCopy("a", 1, None))
    assert not model.settled
    model.versions["2"].failed("broken")
    assert model.settled
    assert model.error == "broken"
    assert ServedModel(folder(file(), load="manual")).settled


def test_a_changed_folder_brings_new_versions_and_keeps_the_old_until_they_are_let_go() -> None:
    model = ServedModel(folder(file("1")))
    model.versions["1"].serves(LoadedCopy("a", 1, None))
    model.replace(folder(file("1", "b"), file("2")))
    assert list(model.versions) == ["1", "2"]
    assert model.versions["1"].ready and not model.versions["1"].current
    model.replace(folder(file("2")))
    assert list(model.versions) == ["1", "2"]


def test_a_wish_of_the_api_outlives_a_change_of_the_files() -> None:
    model = ServedModel(folder(file(), load="manual"))
    model.wanted = True
    model.replace(folder(file(fingerprint="b"), load="manual"))
    assert model.wanted
    eager = ServedModel(folder(file()))
    eager.wanted = False  # unloaded by hand
    eager.replace(folder(file(fingerprint="b")))
    assert not eager.wanted
    manual = ServedModel(folder(file(), load="manual"))
    manual.replace(folder(file()))
    assert manual.wanted, "the folder has changed its mind"


def test_a_folder_that_comes_back_is_as_it_says() -> None:
    model = ServedModel(folder(file()))
    model.gone, model.wanted = True, False
    model.replace(folder(file()))
    assert (model.gone, model.wanted) == (False, True)
