"""Memory that this process has let go of, and whether the system has it back."""

import ctypes
import sys


def give_back() -> None:
    """Give the system what lies free in the heap. The C library of Linux keeps blocks of up to 32 MB for later, which
    is most of a small model's weights: the next one would seem to weigh nothing. Elsewhere nothing is kept."""
    if sys.platform != "linux":
        return
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):  # another C library
        return
