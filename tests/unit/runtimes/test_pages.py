"""The page about runtime packs says what the code does."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from appliance.system import dlls
from appliance.system.cuda_needs import CUDA, RELEASES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "runtime-packs.md"


def rows() -> Iterator[list[str]]:
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_of_versions_is_that_of_the_code() -> None:
    real = []
    for release in RELEASES:
        first = ".".join(map(str, release.first))
        versions = f"{first} to {'.'.join(map(str, release.last))}" if release.last else f"{first} and newer"
        cuda = CUDA[release.cuda]
        capability = ".".join(map(str, cuda.capability))
        drivers = cuda.driver_linux, cuda.driver_windows
        real.append([versions, str(release.cuda), str(release.cudnn), *drivers, capability])
    assert [row for row in rows() if len(row) == 6 and row[0][0].isdigit()] == real


def test_each_kind_of_place_is_told() -> None:
    told = [found[1] for row in rows() if len(row) == 2 and (found := re.fullmatch(r"`([a-z]+)`", row[0]))]
    assert told == list(get_args(dlls.Kind))
