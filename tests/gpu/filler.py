"""Fills a card from a process of its own, so that little is left: ``python -m tests.gpu.filler cuda:0 LEAVE_BYTES``.

Bounded: plain allocations, never more than what is free less what is to be left, and given back when its standard
input ends, which it does with whoever started it.
"""

import contextlib
import json
import subprocess
import sys
import threading
from types import TracebackType

from tests.support.server import ROOT

START_S = 120.0
MOST = 0.97
CHUNK = 1 << 28


class Filler:
    """The card is full inside the block, but for ``leave`` bytes. ``told``: bytes ``taken``, ``free``, ``total``."""

    def __init__(self, device: str, leave: int) -> None:
        self._command = [sys.executable, "-m", "tests.gpu.filler", device, str(leave)]
        self.told: dict[str, int] = {}

    def __enter__(self) -> "Filler":
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        lines: list[str] = []
        assert self._process.stdout is not None
        reader = threading.Thread(target=lambda out: lines.append(out.readline()), args=(self._process.stdout,))
        reader.daemon = True
        reader.start()
        reader.join(START_S)
        if not lines or not lines[0]:
            self._end()
            raise RuntimeError("the card could not be filled: the process that should do it ended or hung")
        self.told = json.loads(lines[0])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._process.stdout.close()


def to_take(free: int, total: int, leave: int) -> int:
    """Bytes to take so that ``leave`` of what is free stay free; at most 97 % of the card."""
    return max(0, min(free - leave, int(total * MOST)))


def main() -> None:
    """Take it, say so, and wait for the end of the standard input."""
    import torch

    device, leave = sys.argv[1], int(sys.argv[2])
    torch.zeros(1, device=device)  # what CUDA itself takes is taken now
    free, total = torch.cuda.mem_get_info(device)
    held, left = [], to_take(free, total, leave)
    while left >= 1 << 21:
        size = min(CHUNK, left)
        try:
            held.append(torch.empty(size, dtype=torch.uint8, device=device))
        except torch.OutOfMemoryError:
            break
        left -= size
    taken = sum(block.numel() for block in held)
    print(json.dumps({"taken": taken, "free": torch.cuda.mem_get_info(device)[0], "total": total}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
