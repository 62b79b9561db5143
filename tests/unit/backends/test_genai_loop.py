"""Whose turn it is, and what a fault of one means for the others: without the library, which is stood in for."""

import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from appliance.backends.base import DeviceLost
from appliance.backends.genai_loop import DecodeLoop
from appliance.backends.genai_stream import Handle, Stream
from appliance.backends.genai_turns import VoiceTurns
from appliance.errors import ApplianceError, Cancelled, InsufficientMemory, ModelError
from appliance.models.spec import GenerationOptions

OUTPUTS = ("token_ids", "logprobs", "finish")
PIECE = 4


class Script:
    """Every turn, as (what, prompt's first id), in order; ``gate`` holds the decode thread until it is opened."""

    def __init__(self) -> None:
        self.turns: list[tuple[str, int]] = []
        self.closed: list[int] = []
        self.faults: dict[tuple[str, int], Exception] = {}
        self.gate = threading.Event()
        self.at: Callable[[str, int], None] = lambda what, name: None

    def turn(self, what: str, name: int) -> None:
        self.gate.wait(10)
        self.turns.append((what, name))
        self.at(what, name)
        if error := self.faults.get((what, name)):
            raise error


class Speaker:
    def __init__(self, script: Script, stream: Stream) -> None:
        self.stream = stream
        self._script = script
        self._name = int(stream.prompt[0])
        self._left = stream.prompt.size
        script.turn("begin", self._name)

    def read(self, tokens: int) -> bool:
        self._script.turn("read", self._name)
        self._left -= tokens
        return self._left <= 0

    def speak(self) -> bytes | None:
        self._script.turn("speak", self._name)
        self.stream.say(self.stream.said, None)
        return b"length" if self.stream.said >= self.stream.options.max_tokens else None

    def close(self) -> None:
        self._script.closed.append(self._name)


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def loop(script: Script) -> Iterator[DecodeLoop]:
    made = DecodeLoop("m", lambda: VoiceTurns(lambda stream: Speaker(script, stream), PIECE))
    yield made
    script.gate.set()
    made.close()
    assert not made.thread.is_alive()


def ask(loop: DecodeLoop, name: int, prompt: int, tokens: int) -> Stream:
    """A stream with a prompt of so many ids, the first of which is its name."""
    ids = np.full(prompt, name, np.int32)
    stream = Stream(ids, GenerationOptions(max_tokens=tokens), Handle(), loop.room)
    loop.submit(stream)
    return stream


def read(loop: DecodeLoop, stream: Stream) -> list[int]:
    return [int(i) for part in stream.parts(OUTPUTS, loop.thread) for i in part[0]]


def failure(loop: DecodeLoop, stream: Stream) -> BaseException:
    with pytest.raises((ApplianceError, DeviceLost)) as told:
        read(loop, stream)
    return told.value


def test_between_two_pieces_of_a_prompt_everyone_speaks(loop: DecodeLoop, script: Script) -> None:
    streams = [ask(loop, 1, 1, 30), ask(loop, 2, 1, 30), ask(loop, 3, 4 * PIECE, 2)]
    script.gate.set()
    assert [len(read(loop, stream)) for stream in streams] == [30, 30, 2]
    turns = [turn for turn in script.turns if turn[0] != "begin"]
    pieces = [at for at, turn in enumerate(turns) if turn == ("read", 3)]
    assert len(pieces) == 4
    for first, second in pairwise(pieces[1:]):
        assert sorted(turns[first + 1 : second]) == [("speak", 1), ("speak", 2)]


def test_a_short_prompt_does_not_wait_for_a_long_one(loop: DecodeLoop, script: Script) -> None:
    streams = [ask(loop, 1, 50 * PIECE, 1), ask(loop, 2, 2 * PIECE, 1)]
    script.gate.set()
    for stream in streams:
        read(loop, stream)
    assert script.turns.index(("speak", 2)) <= 2 + 4  # two begin, then the two read in turn
    assert script.turns.index(("speak", 1)) > 50


def test_what_one_holds_is_given_back_before_its_end_is_told(loop: DecodeLoop, script: Script) -> None:
    script.gate.set()
    assert read(loop, ask(loop, 1, 1, 3)) == [0, 1, 2]
    assert script.closed == [1]


@pytest.mark.parametrize("what", ["begin", "read", "speak"])
@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (InsufficientMemory("no room"), InsufficientMemory, "no room"),
        (ValueError("a fault of our own"), ModelError, "the language model failed: ValueError"),
    ],
)
def test_a_fault_of_one_is_no_others(
    loop: DecodeLoop, script: Script, what: str, error: Exception, kind: type[ApplianceError], words: str
) -> None:
    script.faults[what, 2] = error
    streams = [ask(loop, n, 2 * PIECE, 20) for n in (1, 2, 3)]
    script.gate.set()
    told = failure(loop, streams[1])
    assert type(told) is kind
    assert str(told) == words
    assert [len(read(loop, stream)) for stream in (streams[0], streams[2])] == [20, 20]
    assert sorted(script.closed) == ([1, 3] if what == "begin" else [1, 2, 3])


def test_a_lost_device_is_everybodys(loop: DecodeLoop, script: Script) -> None:
    script.faults["speak", 2] = DeviceLost("CUDA error 700")
    streams = [ask(loop, n, PIECE, 10**6) for n in (1, 2, 3)]
    script.gate.set()
    for stream in streams:
        told = failure(loop, stream)
        assert isinstance(told, DeviceLost)
        assert str(told) == "CUDA error 700"
    assert sorted(script.closed) == [1, 2, 3]


@pytest.mark.parametrize("what", ["read", "speak"])
def test_what_is_cancelled_has_no_further_turn(loop: DecodeLoop, script: Script, what: str) -> None:
    streams: list[Any] = [ask(loop, 1, PIECE, 50), ask(loop, 2, 4 * PIECE, 10**6)]

    def cancel(turn: str, name: int) -> None:
        if (turn, name) == (what, 2):
            streams[1].handle.cancel()

    script.at = cancel
    script.gate.set()
    assert isinstance(failure(loop, streams[1]), Cancelled)
    assert len(read(loop, streams[0])) == 50
    assert script.turns.count((what, 2)) == 1
    assert sorted(script.closed) == [1, 2]


def test_what_is_cancelled_before_it_begins_never_does(loop: DecodeLoop, script: Script) -> None:
    first = ask(loop, 1, 1, 5)
    second = ask(loop, 2, 1, 5)
    second.handle.cancel()
    script.gate.set()
    read(loop, first)
    assert isinstance(failure(loop, second), Cancelled)
    assert ("speak", 2) not in script.turns


def test_a_decode_thread_that_is_gone_is_noticed(
    loop: DecodeLoop, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.backends.genai_stream._LOOK_S", 0.01)
    gone = threading.Thread(target=lambda: None)
    gone.start()
    gone.join()
    stream = Stream(np.ones(1, np.int32), GenerationOptions(max_tokens=1), Handle(), loop.room)
    with pytest.raises(ModelError, match="has stopped"):
        list(stream.parts(OUTPUTS, gone))
