"""The tree of errors: codes, statuses, and the way back from a code."""

import copy
import re

import pytest

from appliance import errors
from appliance.errors import ApplianceError, InternalError, ModelError, ModelLoadError, PackError, TryLater, by_code


def tree(root: type[ApplianceError] = ApplianceError) -> list[type[ApplianceError]]:
    return [root, *(found for child in root.__subclasses__() for found in tree(child))]


ABSTRACT = {ApplianceError, TryLater}
LEAVES = [kind for kind in tree() if kind not in ABSTRACT and kind.__module__ == errors.__name__]


def test_every_code_means_one_thing() -> None:
    by = {}
    for kind in LEAVES:
        by.setdefault(kind.code, []).append(kind)
    shared = {code: kinds for code, kinds in by.items() if len(kinds) > 1}
    assert shared == {"model_error": [ModelError, ModelLoadError], "internal_error": [InternalError, PackError]}


@pytest.mark.parametrize("kind", LEAVES, ids=lambda k: k.__name__)
def test_the_way_back_from_a_code(kind: type[ApplianceError]) -> None:
    found = by_code(kind.code, "words")
    assert (found.code, found.status, found.message, str(found)) == (kind.code, kind.status, "words", "words")
    assert found.retryable is kind.retryable
    assert issubclass(kind, type(found))


def test_an_unknown_code_is_an_internal_error() -> None:
    assert type(by_code("no_such_code", "words")) is InternalError


@pytest.mark.parametrize("kind", LEAVES, ids=lambda k: k.__name__)
def test_what_may_be_tried_again_says_when(kind: type[ApplianceError]) -> None:
    assert kind.retryable is issubclass(kind, TryLater)
    assert kind.retryable is (kind.status in (429, 503))
    if issubclass(kind, TryLater):
        assert kind("words").retry_after_s == 1
        assert kind("words", retry_after_s=7).retry_after_s == 7


@pytest.mark.parametrize("kind", LEAVES, ids=lambda k: k.__name__)
def test_an_error_can_be_copied(kind: type[ApplianceError]) -> None:
    error = kind("words", param="x")
    again = copy.copy(error)
    assert again is not error
    assert type(again) is kind
    assert vars(again) == vars(error)


def test_the_drawing_is_the_tree() -> None:
    drawn = re.findall(r"[├└]── (\w+) +(\d{3}) (\w+)", errors.__doc__ or "")
    assert drawn, "the drawing is there"
    assert {(name, int(status), code) for name, status, code in drawn} == {
        (kind.__name__, kind.status, kind.code) for kind in LEAVES
    }
