"""What warm-ups found out is found again for the same files, bounds and runtime, and for nothing else."""

from pathlib import Path

from appliance.engine.messages import CostPoint, Known
from appliance.serving.profiles import Profiles

KNOWN = Known("cpu", 8, (CostPoint(((3, 4), ()), 1, 100), CostPoint(((3, 4), ()), 8, 700)), ("a note",))
RUNTIMES = {"onnxruntime": "1.32.0"}


def test_round_trip(tmp_path: Path) -> None:
    Profiles(tmp_path / "profiles").keep("m", "f1", "auto 16", RUNTIMES, KNOWN)
    again = Profiles(tmp_path / "profiles")
    assert again.find("m", "f1", "auto 16", RUNTIMES) == KNOWN
    assert again.find("m", "f2", "auto 16", RUNTIMES) is None
    assert again.find("n", "f1", "auto 16", RUNTIMES) is None
    assert again.find("m", "f1", "auto 32", RUNTIMES) is None
    assert again.find("m", "f1", "auto 16", {"onnxruntime": "1.33.0"}) is None


def test_a_damaged_file_counts_as_none(tmp_path: Path) -> None:
    profiles = Profiles(tmp_path)
    profiles.keep("m", "f1", "auto 16", RUNTIMES, KNOWN)
    (file,) = tmp_path.glob("*.json")
    for data in (b"", b"{}", file.read_bytes()[:-5], b"\xff\xfe"):
        file.write_bytes(data)
        assert profiles.find("m", "f1", "auto 16", RUNTIMES) is None


def test_a_folder_that_cannot_be_made_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    profiles = Profiles(tmp_path / "file")
    profiles.keep("m", "f1", "auto 16", RUNTIMES, KNOWN)
    assert profiles.find("m", "f1", "auto 16", RUNTIMES) is None


def test_no_more_than_so_many_are_kept(tmp_path: Path) -> None:
    profiles = Profiles(tmp_path)
    for number in range(515):
        profiles.keep("m", f"f{number}", "auto 16", RUNTIMES, KNOWN)
    assert len(list(tmp_path.glob("*.json"))) == 512
    assert profiles.find("m", "f514", "auto 16", RUNTIMES) == KNOWN
