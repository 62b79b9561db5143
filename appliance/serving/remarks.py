"""Remarks of ``/api/status`` that come and go with what they tell of."""

import asyncio
from collections.abc import Callable

import structlog

log = structlog.get_logger("appliance")

_EVERY_S = 5.0


class Remarks:
    """Those of one source, among others' in ``notes``."""

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes
        self._mine: list[str] = []

    def are(self, found: list[str]) -> None:
        """From now on; the log tells each that is new, and each that is over."""
        for words in [w for w in self._mine if w not in found]:
            self._notes.remove(words)
            log.info("over", remark=words)
        for words in [w for w in found if w not in self._mine]:
            self._notes.append(words)
            log.warning("told in the status", remark=words)
        self._mine = found


async def keep(notes: list[str], look: Callable[[], list[str]]) -> None:
    """Look every 5 s, in another thread (a disk may be slow), for ever."""
    remarks = Remarks(notes)
    while True:
        try:
            remarks.are(await asyncio.to_thread(look))
        except Exception:
            log.exception("internal fault", what="looking at the machine")
        await asyncio.sleep(_EVERY_S)
