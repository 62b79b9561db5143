"""An answer as it is told: tokens → text, without stop strings, with calls of tools read out of it."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from appliance.pipelines.base import Told
from appliance.pipelines.language.decoder import Decoder
from appliance.pipelines.language.stops import StopStrings
from appliance.pipelines.language.tools import ToolCall, ToolReader

Finish = Literal["stop", "length", "tool_calls"]


class TokenTold(NamedTuple):
    """One token's own text and the logarithm of its probability."""

    id: int
    logprob: float


class Piece(msgspec.Struct):
    """What there is to tell now. ``finish``: it was the last one."""

    text: str = ""
    calls: list[ToolCall] = []
    tokens: list[TokenTold] = []
    finish: Finish | None = None


class Answer:
    """One answer on its way. ``count``: its tokens so far, with those that the text does not show.

    ``one_call``: it ends with its first call.
    """

    def __init__(
        self, decoder: Decoder, stops: Sequence[str] = (), tools: ToolReader | None = None, one_call: bool = False
    ) -> None:
        self._decoder = decoder
        self._stops = StopStrings(stops)
        self._tools = tools
        self._one_call = one_call
        self._called = False
        self.count = 0

    def feed(self, told: Told) -> Piece:
        """The next part of the engine's answer. After a piece with ``finish`` nothing may follow."""
        piece = Piece(calls=[], tokens=[])
        for at, token in enumerate(told.ids):
            self.count += 1
            if told.logprobs:
                piece.tokens.append(TokenTold(token, told.logprobs[at]))
            self._tell(piece, self._stops.feed(self._decoder.feed(token)))
            if self._stops.hit or (self._one_call and self._called):
                return self._end(piece, "stop")
        return self._end(piece, told.finish) if told.finish else piece

    def _end(self, piece: Piece, finish: Literal["stop", "length"]) -> Piece:
        if not (self._one_call and self._called):
            self._tell(piece, self._stops.feed(self._decoder.rest()))
            self._tell(piece, self._stops.rest())
            if self._tools is not None:
                self._add(piece, *self._tools.rest())
        piece.finish = "tool_calls" if self._called else "stop" if self._stops.hit else finish
        return piece

    def _tell(self, piece: Piece, text: str) -> None:
        if text and self._tools is not None:
            self._add(piece, *self._tools.feed(text))
        else:
            piece.text += text

    def _add(self, piece: Piece, text: str, calls: list[ToolCall]) -> None:
        piece.text += text
        if self._one_call and calls:
            calls = [] if self._called else calls[:1]
        piece.calls += calls
        self._called = self._called or bool(calls)
