"""What is said of CUDA's libraries, by what the rows of ``runtime libraries`` say."""

from typing import Any

import pytest

from appliance.selftest.libraries import judge


def row(name: str, reason: str | None = None, kind: str = "pack") -> dict[str, Any]:
    return {
        "name": name,
        "wanted": "CUDA 13",
        "kind": kind,
        "loadable": reason is None,
        "reason": reason,
        "file": None,
    }


def test_all_load() -> None:
    finding = judge([row("cudart64_13.dll"), row("nvcuda.dll", kind="driver")], "auto")
    assert (finding.verdict, finding.found) == ("ok", "all 2 load, from: driver, pack")


@pytest.mark.parametrize(
    ("policy", "verdict"), [("auto", "warning"), ("cpu", "warning"), ("cuda:1", "failed"), ("cpu:0,cuda:0", "failed")]
)
def test_what_does_not_load_is_named(policy: str, verdict: str) -> None:
    finding = judge([row("cudart64_13.dll"), row("cublas64_13.dll", "it was not found", "missing")], policy)
    assert finding.verdict == verdict
    assert finding.found == "1 of 2 load; cublas64_13.dll (CUDA 13): it was not found"
    assert finding.cure
