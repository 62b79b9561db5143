"""What warm-ups found out, and what runs taught, is found again for the same files, bounds and runtime only."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from appliance.engine.messages import CostPoint, Known
from appliance.gate.costs import Learned, Samples
from appliance.serving.profiles import Of, Profiles

KNOWN = Known("cpu", 8, (CostPoint(((3, 4), ()), 1, 100), CostPoint(((3, 4), ()), 8, 700)), ("a note",))
LEARNED = Learned("cpu", (CostPoint(((3, 4), ()), 1, 100),), (Samples(((3, 4), ()), 8, (700, 800), 1000),))
RUNTIMES = {"onnxruntime": "1.32.0"}
OF = Of("m", "f1", "auto 16", RUNTIMES)
OTHERS = [
    OF._replace(fingerprint="f2"),
    OF._replace(model="n"),
    OF._replace(bounds="auto 32"),
    OF._replace(runtimes={"onnxruntime": "1.33.0"}),
]

Kind = tuple[Callable[[Profiles, Of], Any], Callable[[Profiles, Of, Any], None], Any]
KINDS: list[Kind] = [
    (Profiles.find, Profiles.keep, KNOWN),
    (Profiles.learned, Profiles.keep_learned, LEARNED),
]


@pytest.fixture(params=KINDS, ids=["known", "learned"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def test_round_trip(tmp_path: Path, kind: Kind) -> None:
    find, keep, what = kind
    keep(Profiles(tmp_path / "profiles"), OF, what)
    again = Profiles(tmp_path / "profiles")
    assert find(again, OF) == what
    assert [find(again, other) for other in OTHERS] == [None] * 4


def test_the_two_do_not_meet(tmp_path: Path) -> None:
    profiles = Profiles(tmp_path)
    profiles.keep(OF, KNOWN)
    assert profiles.learned(OF) is None
    profiles.keep_learned(OF, LEARNED)
    assert (profiles.find(OF), profiles.learned(OF)) == (KNOWN, LEARNED)


def test_a_damaged_file_counts_as_none_and_is_told(tmp_path: Path, kind: Kind) -> None:
    find, keep, what = kind
    profiles = Profiles(tmp_path)
    keep(profiles, OF, what)
    (file,) = tmp_path.rglob("*.json")
    for data in (b"", b"{}", file.read_bytes()[:-5], b"\xff\xfe", b"[" * 10_000, b" " * (9 << 20)):
        file.write_bytes(data)
        with structlog.testing.capture_logs() as told:
            assert find(profiles, OF) is None
        assert [line["event"] for line in told] == ["a profile cannot be read and is not used"]
    keep(profiles, OF, what)
    assert find(profiles, OF) == what


def test_one_that_is_not_there_is_nothing_to_tell_of(tmp_path: Path, kind: Kind) -> None:
    with structlog.testing.capture_logs() as told:
        assert kind[0](Profiles(tmp_path / "none"), OF) is None
    assert told == []


def test_one_of_another_version_counts_as_none(tmp_path: Path, kind: Kind) -> None:
    find, keep, what = kind
    profiles = Profiles(tmp_path)
    keep(profiles, OF, what)
    (file,) = tmp_path.rglob("*.json")
    file.write_bytes(file.read_bytes().replace(b'"version":3', b'"version":4'))
    assert find(profiles, OF) is None


def test_a_folder_that_cannot_be_made_is_no_fault(tmp_path: Path, kind: Kind) -> None:
    find, keep, what = kind
    (tmp_path / "file").write_text("in the way")
    profiles = Profiles(tmp_path / "file")
    keep(profiles, OF, what)
    assert find(profiles, OF) is None


def test_no_more_than_so_many_are_kept(tmp_path: Path, kind: Kind) -> None:
    find, keep, what = kind
    profiles = Profiles(tmp_path)
    for number in range(515):
        keep(profiles, OF._replace(fingerprint=f"f{number}"), what)
    assert len(list(tmp_path.rglob("*.json"))) == 512
    assert find(profiles, OF._replace(fingerprint="f514")) == what
