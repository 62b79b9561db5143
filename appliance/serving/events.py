"""What happened, for whoever listens (the event stream, the tray). No history is kept."""

import asyncio
from typing import Any

import msgspec


class Event(msgspec.Struct, frozen=True):
    """``kind``: ``status``, ``model``, ``engine``, ``power``, ``settings``."""

    kind: str
    data: dict[str, Any]


class Events:
    """Fan-out to bounded queues: a listener that does not keep up loses the oldest events, never the newest."""

    def __init__(self, room: int = 100) -> None:
        self._room = room
        self._listeners: set[asyncio.Queue[Event | None]] = set()
        self._closed = False

    def subscribe(self) -> "asyncio.Queue[Event | None]":
        """A queue of coming events; None means the end. Give it back to ``unsubscribe``."""
        queue: asyncio.Queue[Event | None] = asyncio.Queue(self._room)
        if self._closed:
            queue.put_nowait(None)
        self._listeners.add(queue)
        return queue

    def unsubscribe(self, queue: "asyncio.Queue[Event | None]") -> None:
        self._listeners.discard(queue)

    def publish(self, kind: str, **data: Any) -> None:
        """Tell all listeners."""
        self._put(Event(kind, data))

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        self._put(None)

    def _put(self, event: Event | None) -> None:
        for queue in self._listeners:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(event)
