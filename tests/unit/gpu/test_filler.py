"""The process that fills a card, with a stand-in for PyTorch that only counts."""

from pathlib import Path

import psutil
import pytest

from tests.gpu.filler import CHUNK, Filler

MIB = 1 << 20
TOTAL = 8192 * MIB
TORCH = """
import os
from types import SimpleNamespace
uint8, held, TOTAL, REFUSED = "uint8", [], 8192 << 20, int(os.environ.get("REFUSED", "0"))
class OutOfMemoryError(RuntimeError): pass
def zeros(n, device): pass
def empty(n, dtype, device):
    if REFUSED and sum(held) + n > REFUSED: raise OutOfMemoryError("full")
    held.append(n)
    return SimpleNamespace(numel=lambda: n)
cuda = SimpleNamespace(mem_get_info=lambda device: (TOTAL - 2048 * (1 << 20) - sum(held), TOTAL))
"""


@pytest.fixture(autouse=True)
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "torch.py").write_text(TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "torch.py"


def test_it_leaves_what_it_was_told_and_ends_with_the_block() -> None:
    with Filler("cuda:0", 1000 * MIB) as filler:
        process = psutil.Process(filler._process.pid)
        assert filler.told == {"taken": 5144 * MIB, "free": 1000 * MIB, "total": TOTAL}
        assert process.is_running()
    assert filler._process.returncode == 0


def test_where_the_card_gives_less_it_takes_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFUSED", str(3 * CHUNK))
    with Filler("cuda:0", 1000 * MIB) as filler:
        assert filler.told["taken"] == 3 * CHUNK


def test_one_that_cannot_is_told(torch: Path) -> None:
    torch.write_text("raise ImportError('no CUDA')")
    with pytest.raises(RuntimeError, match="could not be filled"), Filler("cuda:0", 0):
        pass
