"""Requests of Triton's generate extension."""

import json
from typing import Any

import pytest

from appliance.api.triton_generate import decode
from appliance.errors import InvalidInput, UnsupportedParameter
from appliance.pipelines.language.generate import Sampling


def read(stream: bool = False, **fields: Any) -> Any:
    return decode(json.dumps({"text_input": "a", **fields}).encode(), stream)


def test_parameters_may_stand_inside_or_beside() -> None:
    wish = {"max_tokens": 9, "temperature": 0.5, "top_k": 3, "top_p": 0.9, "seed": 7, "stop": ["x"]}
    inside, beside = read(parameters=wish), read(**wish)
    assert inside.sampling() == beside.sampling() == Sampling(9, 0.5, 0.9, 3, 7)
    assert inside.stops == beside.stops == ["x"]


def test_names_of_triton_s_backends() -> None:
    asked = read(
        stop_words=["", "end"], bad_words=[""], random_seed=5, stream=False, exclude_input_in_output=True, id="7"
    )
    assert (asked.stops, asked.sampling().seed, asked.id) == (["end"], 5, "7")
    assert read(stream=True, parameters={"stream": True}).stream


@pytest.mark.parametrize(
    ("fields", "param", "kind"),
    [
        ({"beam_width": 2}, "beam_width", UnsupportedParameter),
        ({"parameters": {"min_length": 2}}, "min_length", UnsupportedParameter),
        ({"bad_words": ["x"]}, "bad_words", UnsupportedParameter),
        ({"parameters": {"stream": True}}, "stream", UnsupportedParameter),
        ({"exclude_input_in_output": False}, "exclude_input_in_output", UnsupportedParameter),
        ({"text_input": 5}, "text_input", InvalidInput),
        ({"parameters": [1]}, "parameters", InvalidInput),
        ({"top_k": 1, "parameters": {"top_k": 1}}, "top_k", InvalidInput),
        ({"seed": 1, "random_seed": 1}, "random_seed", InvalidInput),
        ({"stop_words": ["x"] * 17}, "stop_words", InvalidInput),
        ({"stop_words": "x" * 257}, "stop_words", InvalidInput),
        ({"parameters": []}, "parameters", InvalidInput),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(fields: Any, param: str, kind: type[InvalidInput]) -> None:
    with pytest.raises(kind) as caught:
        read(**fields)
    assert caught.value.param == param


def test_a_body_that_is_none() -> None:
    for body in (b"", b"{", b"[]", b"{}", b'{"parameters": {}}'):
        with pytest.raises(InvalidInput):
            decode(body, False)
