"""The event loop of this platform."""

import asyncio
import sys

if sys.platform == "win32":
    import socket
    from typing import Any

    _ENOUGH_S = 0.1
    # winerror.h: unexpected network error, network name deleted, semaphore timeout, connection aborted
    _CALLER_IS_GONE = (59, 64, 121, 1236)

    def _caller_is_gone(error: object) -> bool:
        return isinstance(error, ConnectionError) or (
            isinstance(error, OSError) and error.winerror in _CALLER_IS_GONE
        )

    class _Proactor(asyncio.IocpProactor):
        """One that goes on listening. asyncio's own closes the listening socket for good when a caller is gone before
        it was let in."""

        def accept(self, listener: socket.socket) -> "asyncio.Task[Any]":
            """The next connection and its address."""
            return asyncio.ensure_future(self._next(listener))

        async def _next(self, listener: socket.socket) -> Any:
            while True:
                try:
                    return await super().accept(listener)
                except OSError as error:
                    if listener.fileno() == -1:
                        raise
                    if not _caller_is_gone(error):  # too many handles, no memory: they may come back
                        message = {"message": "a connection could not be accepted", "exception": error}
                        asyncio.get_running_loop().call_exception_handler(message)
                        await asyncio.sleep(_ENOUGH_S)

    class _Loop(asyncio.ProactorEventLoop):
        """One for which it is no news that a caller hangs up."""

        def __init__(self) -> None:
            super().__init__(_Proactor())

        def call_exception_handler(self, context: dict[str, Any]) -> None:
            """As asyncio has it."""
            if not _caller_is_gone(context.get("exception")):
                super().call_exception_handler(context)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it exists (it halves the cost of a request), else asyncio's own, mended on Windows."""
    if sys.platform == "win32":
        return _Loop()
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
