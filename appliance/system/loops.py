"""The event loop of this platform."""

import asyncio
import sys


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it exists (it halves the cost of a request), else asyncio's own."""
    if sys.platform == "win32":
        return asyncio.ProactorEventLoop()
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
