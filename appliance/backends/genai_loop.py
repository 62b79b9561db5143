"""The decode thread of one language model: it alone touches the library. What a turn is, its ``Turns`` know."""

import threading
import time
from collections.abc import Callable
from typing import Protocol

import structlog

from appliance.backends.base import DeviceLost
from appliance.backends.genai_stream import Stream, cancelled, failed
from appliance.errors import ApplianceError, ModelError

log = structlog.get_logger("genai")


class Turns(Protocol):
    """Who speaks when. Called in the decode thread only. It tells streams their tokens and their ends; and gives back
    what a stream holds of the device before that stream hears of its end."""

    def admit(self, stream: Stream) -> None:
        """Take it on. Raises what the stream is to be told, and then has nothing of it."""
        ...

    def round(self, pause: Callable[[], None]) -> bool:
        """Let everyone have a turn who can; whether there was any. ``pause`` is called between turns: it may have
        cancelled streams dropped. Never raises."""
        ...

    def drop(self) -> list[Stream]:
        """Let go of the streams whose handles are cancelled; these."""
        ...

    def drop_all(self) -> list[Stream]:
        """Let go of all."""
        ...


class DecodeLoop:
    """``make``: makes the turns, first thing in the thread; what it raises, ``ready`` raises."""

    def __init__(self, name: str, make: Callable[[], Turns]) -> None:
        self._make = make
        self._wake = threading.Event()
        self._made = threading.Event()
        self._fault: BaseException | None = None
        self._lock = threading.Lock()
        self._arrived: list[Stream] = []
        self._cancelling = False
        self._closing = False
        self.thread = threading.Thread(target=self._run, name=f"decode {name}", daemon=True)
        self.thread.start()

    def ready(self) -> None:
        """Wait until the turns are made. As long as that takes: who loads a model has a limit for the whole."""
        self._made.wait()
        if self._fault is not None:
            raise self._fault

    def submit(self, stream: Stream) -> None:
        """Have it answered. Raises ModelError when the loop is closed."""
        stream.handle.attach(self.cancel)
        with self._lock:
            if self._closing:
                raise ModelError("the language model is being unloaded")
            self._arrived.append(stream)
        self._wake.set()

    def cancel(self) -> None:
        """Some stream's handle says that it is cancelled: its memory is given back before the next turn."""
        self._cancelling = True
        self._wake.set()

    def room(self) -> None:
        """A stream that had to rest may go on."""
        self._wake.set()

    def close(self) -> None:
        """End the thread. What is still asked fails."""
        with self._lock:
            self._closing = True
        self._wake.set()
        self.thread.join(30)

    def _run(self) -> None:
        try:
            turns = self._make()
        except Exception as error:  # noqa: BLE001 - told to who waits for it
            self._fault = error
            return
        finally:
            del self._make  # it holds the model, which is to go with this thread
            self._made.set()
        while not self._closing:
            self._wake.clear()
            self._admit(turns)
            self._drop(turns)
            if not turns.round(lambda: self._drop(turns)):
                self._wake.wait()
        for stream in turns.drop_all():
            stream.fail(ModelError("the language model is being unloaded"))
        self._admit(turns)

    def _admit(self, turns: Turns) -> None:
        with self._lock:
            arrived, self._arrived = self._arrived, []
        for stream in arrived:
            if self._closing:
                stream.fail(ModelError("the language model is being unloaded"))
                continue
            if stream.handle.cancelled:
                stream.fail(cancelled())
                continue
            try:
                turns.admit(stream)
            except Exception as error:  # noqa: BLE001 - one stream's fault is no other's
                tell(stream, error)
                if isinstance(error, DeviceLost):  # every other stream would meet the same
                    for other in turns.drop_all():
                        tell(other, error)

    def _drop(self, turns: Turns) -> None:
        if self._cancelling:
            self._cancelling = False
            for stream in turns.drop():
                stream.fail(cancelled())


def tell(stream: Stream, error: Exception) -> None:
    """The stream's end by a fault, as its reader may know it."""
    if not isinstance(error, ApplianceError | DeviceLost):
        log.error("internal fault", exc_info=error)
    found = failed(error)
    stream.fail(type(found)(str(found)))  # one of its own: several readers may raise it


def make_way() -> None:
    """Let the other threads have Python's interpreter: the library does not while it computes, and without this a
    token would leave one turn late."""
    time.sleep(0)
