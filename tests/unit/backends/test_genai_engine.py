"""Streams that share the library's engine. The models here are without paged attention, which wants a GPU; with them
the same engine, requests and events of the library go one batch after the other."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime_genai")

import onnxruntime_genai as og

from appliance.backends.base import DeviceLost
from appliance.backends.genai_engine import EngineTurns
from appliance.backends.genai_loop import DecodeLoop
from appliance.backends.genai_stream import Handle, Stream
from appliance.errors import ApplianceError, Cancelled, InsufficientMemory, ModelError
from appliance.models.spec import GenerationOptions
from tests.support import language

OUTPUTS = ("token_ids", "logprobs", "finish")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return og.Model(str(language.sums(tmp_path_factory.mktemp("sums"), context=4096)))


@pytest.fixture
def loop(model: Any) -> Iterator[DecodeLoop]:
    made = DecodeLoop("m", lambda: EngineTurns(model, language.VOCABULARY))
    made.ready()
    yield made
    made.close()
    assert not made.thread.is_alive()


def ask(loop: DecodeLoop, prompt: list[int], **options: Any) -> Stream:
    asked = GenerationOptions(**{"max_tokens": 5, "temperature": 0, **options})
    stream = Stream(np.array(prompt, np.int32), asked, Handle(), loop.room)
    loop.submit(stream)
    return stream


def answer(loop: DecodeLoop, stream: Stream) -> tuple[list[int], str]:
    found = list(stream.parts(OUTPUTS, loop.thread))
    (finish,) = found[-1][2]
    return [int(i) for ids, _, _ in found for i in ids], finish.decode()


def failure(loop: DecodeLoop, stream: Stream) -> BaseException:
    with pytest.raises((ApplianceError, DeviceLost)) as told:
        answer(loop, stream)
    return told.value


def test_answers_and_their_ends(loop: DecodeLoop) -> None:
    # By hand as in test_genai.py.
    assert answer(loop, ask(loop, [5, 6, 7], max_tokens=10)) == ([19, 6, 12, 24, 16], "stop")
    assert answer(loop, ask(loop, [5, 6, 7], max_tokens=3)) == ([19, 6, 12], "length")
    assert answer(loop, ask(loop, [5, 6, 7], max_tokens=10, stop_ids=(12,))) == ([19, 6], "stop")
    said, finish = answer(loop, ask(loop, [5, 6, 7], max_tokens=9, ignore_end=True))
    assert (said[:6], len(said), finish) == ([19, 6, 12, 24, 16, 1], 9, "length")
    prompt = [(n * 7 + 3) % 32 for n in range(1000)]
    assert answer(loop, ask(loop, prompt, max_tokens=20))[0] == language.greedy(prompt, 20)


def test_sampling_keeps_to_the_likeliest(loop: DecodeLoop) -> None:
    total, others = 3, 0
    options = {"temperature": 5.0, "top_k": 2, "ignore_end": True, "max_tokens": 200}
    for token in answer(loop, ask(loop, [3], **options))[0]:
        best = [t for d in range(3) if (t := (total + 1 + d) % 32) != language.END][:2]
        assert token in best
        others += token == best[1]
        total += token
    assert 20 < others < 180


def test_a_cancelled_stream_ends_and_the_next_begins(loop: DecodeLoop) -> None:
    stream = ask(loop, [3], max_tokens=4000, ignore_end=True)
    parts = stream.parts(OUTPUTS, loop.thread)
    next(parts)
    stream.handle.cancel()
    with pytest.raises(Cancelled):
        list(parts)
    assert answer(loop, ask(loop, [5, 6, 7])) == ([19, 6, 12, 24, 16], "length")


def test_an_engine_that_fails_is_made_anew(model: Any) -> None:
    turns = EngineTurns(model, language.VOCABULARY)
    streams = [
        Stream(np.array([n], np.int32), GenerationOptions(max_tokens=5), Handle(), lambda: None) for n in (1, 2)
    ]
    for stream in streams:
        turns.admit(stream)
    gone = SimpleNamespace(is_alive=lambda: False)
    assert turns.round(lambda: None)  # a batch of two, which this model does not take
    for stream in streams:
        with pytest.raises(ModelError):
            list(stream.parts(OUTPUTS, gone))  # type: ignore[arg-type]
    assert not turns.round(lambda: None)
    again = Stream(
        np.array([5, 6, 7], np.int32), GenerationOptions(max_tokens=2, temperature=0), Handle(), lambda: None
    )
    turns.admit(again)
    while turns.round(lambda: None):
        pass
    assert [int(i) for part in again.parts(OUTPUTS, gone) for i in part[0]] == [19, 6]  # type: ignore[arg-type]


def test_what_is_asked_when_it_is_closed_fails(model: Any) -> None:
    loop = DecodeLoop("m", lambda: EngineTurns(model, language.VOCABULARY))
    loop.ready()
    stream = ask(loop, [3], max_tokens=4000, ignore_end=True)
    loop.close()
    assert isinstance(failure(loop, stream), ModelError)


def test_an_engine_that_cannot_be_made_is_told() -> None:
    def make() -> Any:
        raise InsufficientMemory("no room for the pool")

    with pytest.raises(InsufficientMemory, match="no room"):
        DecodeLoop("m", make).ready()


class Engine:
    """Stands in for the library's: ``run`` gives what a test put into ``script``, or raises it."""

    def __init__(self) -> None:
        self.script: list[Any] = []
        self.closed = 0

    def create_request(self, options: Any) -> Any:
        return SimpleNamespace(begin_turn=lambda ids, told: 1, cancel_turn=lambda turn: True, close=self._close)

    def _close(self) -> None:
        self.closed += 1

    def run(self, buffer: Any) -> list[Any]:
        found = self.script.pop(0)
        if isinstance(found, Exception):
            raise found
        return list(found)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, model: Any) -> tuple[EngineTurns, Engine]:
    turns, engine = EngineTurns(model, 32), Engine()
    turns._engine = engine
    limits = SimpleNamespace(set_max_session_tokens=lambda n: None)
    monkeypatch.setattr(og, "RequestOptions", lambda: limits)
    told = SimpleNamespace(
        set_max_generated_tokens=lambda n: None,
        set_do_sample=lambda on: None,
        set_min_generated_tokens=lambda n: None,
    )
    monkeypatch.setattr(og, "TurnOptions", lambda request: told)
    return turns, engine


def event(turns: EngineTurns, flags: tuple[str, ...], at: int | None = 0, token: int = 0, **more: Any) -> Any:
    value = sum(getattr(og.EngineEventFlags, name).value for name in flags)
    request = turns._open[at].request if at is not None else None
    told = {"finish_reason": og.FinishReason.NONE, "error_code": og.EngineErrorCode.NONE, **more}
    return SimpleNamespace(flags=SimpleNamespace(value=value), request=request, turn_id=1, token=token, **told)


def admitted(turns: EngineTurns, count: int = 2) -> list[Stream]:
    streams = [
        Stream(np.ones(1, np.int32), GenerationOptions(max_tokens=9, temperature=0), Handle(), lambda: None)
        for _ in range(count)
    ]
    for stream in streams:
        turns.admit(stream)
    return streams


def told(stream: Stream) -> Any:
    """All that it was told so far: its tokens and its end."""
    found: list[Any] = []
    stream._flush()
    while not stream._events.empty():
        one = stream._events.get_nowait()
        found += (
            [token for token, _ in one] if isinstance(one, list) else [one if isinstance(one, bytes) else type(one)]
        )
    return found


def test_tokens_go_to_their_streams_and_a_full_pool_is_waited_for(scripted: tuple[EngineTurns, Engine]) -> None:
    turns, engine = scripted
    first, second = admitted(turns)
    engine.script = [
        [event(turns, ("CAPACITY_BLOCKED",), 1), event(turns, ("TOKEN",), 0, 7)],
        [event(turns, ("RETRYABLE",), None)],
        [
            event(turns, ("TOKEN",), 1, 8),
            event(turns, ("TOKEN", "TURN_FINISHED"), 0, 9, finish_reason=og.FinishReason.MAX_GENERATED_TOKENS),
        ],
        [],
    ]
    for _ in range(4):
        assert turns.round(lambda: None)
    assert (told(first), told(second)) == ([7, 9, b"length"], [8])
    engine.script = [[event(turns, ("TURN_FINISHED",), 0, finish_reason=og.FinishReason.EOS)]]
    turns.round(lambda: None)
    assert told(second) == [b"stop"]
    assert engine.closed == 2


@pytest.mark.parametrize(
    ("flags", "at", "code", "first", "second"),
    [
        (("TURN_FINISHED", "FAILED"), 0, "REQUEST_UNSERVICEABLE", [ModelError], []),
        (("TURN_FINISHED", "FAILED"), 0, "ENGINE_EXECUTION_FAILURE", [ModelError], [ModelError]),
        (("FAILED",), None, "ENGINE_CONTRACT_FAILURE", [ModelError], [ModelError]),
    ],
)
def test_whose_fault_a_fault_is(
    scripted: tuple[EngineTurns, Engine], flags: tuple[str, ...], at: int | None, code: str, first: Any, second: Any
) -> None:
    turns, engine = scripted
    streams = admitted(turns)
    engine.script = [[event(turns, flags, at, error_code=getattr(og.EngineErrorCode, code))]]
    turns.round(lambda: None)
    assert [told(stream) for stream in streams] == [first, second]
    assert (turns._engine is None) == bool(second)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("CUDA failure 2: out of memory"), InsufficientMemory),
        (RuntimeError("CUDA error cudaErrorIllegalAddress"), DeviceLost),
        (RuntimeError("something"), ModelError),
    ],
)
def test_a_step_that_fails(scripted: tuple[EngineTurns, Engine], error: Exception, kind: type[Exception]) -> None:
    turns, engine = scripted
    streams = admitted(turns)
    engine.script = [error]
    turns.round(lambda: None)
    assert [told(stream) for stream in streams] == [[kind], [kind]]


def test_an_engine_that_makes_no_progress_is_given_up(scripted: tuple[EngineTurns, Engine]) -> None:
    turns, engine = scripted
    (stream,) = admitted(turns, 1)
    engine.script = [[event(turns, ("RETRYABLE",), None)] for _ in range(100)]
    while turns.round(lambda: None):
        pass
    assert told(stream) == [ModelError]
    assert len(engine.script) == 100 - 21
