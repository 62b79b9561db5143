"""Streams that each have a ``Generator`` of their own: one token of a stream, or one piece of a prompt, is a turn.

So a long prompt holds up nobody for longer than a piece takes. In a round every stream that speaks has one turn, and
one prompt has one; prompts take turns as well, so that a short one does not wait for a long one. Streams share no
run, so what one says does not depend on the others.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from appliance.backends.base import DeviceLost
from appliance.backends.genai_loop import make_way, tell
from appliance.backends.genai_stream import Stream


class Speaker(Protocol):
    """A stream in the making: see ``genai_voice.Voice``. ``close`` gives back what it holds of the device."""

    stream: Stream

    def read(self, tokens: int) -> bool: ...

    def speak(self) -> bytes | None: ...

    def close(self) -> None: ...


class VoiceTurns:
    """``begin``: makes a speaker of a stream; ``piece``: tokens of a prompt that are read at once."""

    def __init__(self, begin: Callable[[Stream], Speaker], piece: int) -> None:
        self._begin = begin
        self._piece = piece
        self._reading: deque[Speaker] = deque()
        self._speaking: list[Speaker] = []

    def admit(self, stream: Stream) -> None:
        self._reading.append(self._begin(stream))

    def round(self, pause: Callable[[], None]) -> bool:
        moved = False
        for speaker in list(self._speaking):
            pause()
            if speaker in self._speaking and not speaker.stream.rests():
                moved = True
                self._speak(speaker)
        self._tell()
        pause()
        if self._reading:
            moved = True
            self._read(self._reading[0])
        return moved

    def drop(self) -> list[Stream]:
        return self._let_go([s for s in (*self._reading, *self._speaking) if s.stream.handle.cancelled])

    def drop_all(self) -> list[Stream]:
        return self._let_go([*self._reading, *self._speaking])

    def _read(self, speaker: Speaker) -> None:
        try:
            ready = speaker.read(self._piece)
        except Exception as error:  # noqa: BLE001 - one stream's fault is no other's
            self._failed(speaker, error)
            return
        self._reading.rotate(-1)
        if ready:
            self._reading.pop()
            self._speaking.append(speaker)
            self._speak(speaker)
            self._tell()
        make_way()

    def _speak(self, speaker: Speaker) -> None:
        try:
            finish = speaker.speak()
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(speaker, error)
            return
        if finish is not None:
            for stream in self._let_go([speaker]):
                stream.end(finish)
            make_way()

    def _tell(self) -> None:
        now = time.monotonic()
        if sum(speaker.stream.tell(now) for speaker in self._speaking):
            make_way()

    def _failed(self, speaker: Speaker, error: Exception) -> None:
        self._let_go([speaker])
        tell(speaker.stream, error)
        if isinstance(error, DeviceLost):  # every other stream would meet the same
            for stream in self.drop_all():
                tell(stream, error)

    def _let_go(self, gone: list[Speaker]) -> list[Stream]:
        self._reading = deque(s for s in self._reading if s not in gone)
        self._speaking = [s for s in self._speaking if s not in gone]
        for speaker in gone:
            speaker.close()
        return [speaker.stream for speaker in gone]
