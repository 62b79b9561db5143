"""What a pack may say of itself."""

import json
from typing import Any

import pytest

from appliance.errors import PackError
from appliance.runtimes import manifest as manifests
from tests.unit.runtimes.packs import entry, manifest


def decoded(told: Any) -> manifests.Manifest:
    return manifests.decode(json.dumps(told).encode())


def test_a_good_one_is_the_same_after_writing() -> None:
    found = decoded(manifest())
    assert (found.folder, found.size) == ("cuda-13.5.37", 6000 + 102400 + 5)
    assert manifests.decode(manifests.encode(found)) == found
    assert manifests.encode(found) == manifests.encode(found)
    assert decoded(manifest(version="13.5.37_cudnn9.28.1.4")).folder == "cuda-13.5.37_cudnn9.28.1.4"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": 2}, "format 2, this program knows 1"),
        ({"format": "x"}, "its manifest is wrong"),
        ({"name": "../cuda"}, "cannot be a name"),
        ({"name": "Cuda"}, "cannot be a name"),
        ({"version": "13/../.."}, "cannot be a version"),
        ({"version": "13..5"}, "cannot be a version"),
        ({"version": "13-5"}, "cannot be a version"),
        ({"platform": "solaris"}, "its manifest is wrong"),
        ({"more": 1}, "its manifest is wrong"),
        ({"files": []}, "it names 0 files"),
        ({"files": [entry("bin/a.dll", b""), entry("bin/A.dll", b"")]}, "named twice"),
        ({"files": [{**entry("bin/a.dll", b""), "size": -1}]}, "negative size"),
        ({"files": [{**entry("bin/a.dll", b""), "size": 1 << 40}]}, "over 32 GiB"),
        ({"files": [{**entry("bin/a.dll", b""), "sha256": "0"}]}, "no SHA-256"),
        ({"files": [entry(f"bin/{n}.dll", b"") for n in range(1001)]}, "1 to 1000 may be"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PackError, match=words.replace("(", r"\(")):
        decoded(manifest(**changes))


@pytest.mark.parametrize(
    "path",
    [
        "../evil.dll",
        "bin/../evil.dll",
        "/bin/evil.dll",
        "bin//evil.dll",
        "bin/evil.dll/",
        "bin\\evil.dll",
        "bin/..\\evil.dll",
        "C:/evil.dll",
        "bin/c:evil.dll",
        "bin/.evil",
        "bin/evil.dll.",
        "bin/evil.dll ",
        "bin/con",
        "bin/NUL.dll",
        "bin/sub/evil.dll",
        "evil.dll",
        "manifest.json",
        "lib/evil.dll",
        "bin/" + "e" * 101,
        "bin/evil\0.dll",
        "bin/böse.dll",
        "",
    ],
)
def test_places_outside(path: str) -> None:
    with pytest.raises(PackError, match="no place for a file"):
        decoded(manifest(files=[entry(path, b"")]))


def test_no_json() -> None:
    for data in (b"", b"[]", b"{", b"\xff", b"null"):
        with pytest.raises(PackError):
            manifests.decode(data)
