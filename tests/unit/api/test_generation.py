"""What a run has heard and its caller has not: kept small, and told whole."""

from appliance.api.generation import _Heard
from appliance.pipelines.base import Told


def test_a_few_parts_are_told_as_they_came() -> None:
    heard = _Heard()
    for token in range(16):
        heard.add(Told([token], [-float(token)]), 1.0)
    assert [heard.take() for _ in range(16)] == [Told([n], [-float(n)]) for n in range(16)]
    assert not heard


def test_many_that_wait_are_joined_and_none_is_lost() -> None:
    heard = _Heard()
    for token in range(10_000):
        heard.add(Told([token], [-1.0]), token)
    heard.add(Told([], [], "stop"), 10_000)
    assert heard.at == 10_000
    parts = []
    while heard:
        parts.append(heard.take())
    assert [token for part in parts for token in part.ids] == list(range(10_000))
    assert sum(len(part.logprobs) for part in parts) == 10_000
    assert parts[-1].finish == "stop" and not any(part.finish for part in parts[:-1])
    # The first 15 as they came, then 256 tokens each.
    assert len(parts) == 15 + -(-(10_000 - 15) // 256)
    assert max(len(part.ids) for part in parts) == 256
