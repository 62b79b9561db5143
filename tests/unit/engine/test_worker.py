"""What an engine does whose runtime does not load."""

import socket
from pathlib import Path

import pytest

from appliance import backends
from appliance.engine.worker import Worker
from appliance.errors import ModelLoadError


def test_a_library_that_does_not_load_is_a_fault_of_the_model_and_no_end_of_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def get(name: str, packs: Path | None = None) -> None:
        raise OSError("[WinError 127] Error loading C:\\secret\\torch\\lib\\c10.dll")

    monkeypatch.setattr(backends, "get", get)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = Worker(theirs, family="torch")
        worker._hello()
        assert ours.recv(4096), "it says hello, so that it can tell the fault of each model"
        with pytest.raises(ModelLoadError, match="the libraries of backend 'pytorch' cannot be loaded") as raised:
            worker._backend("pytorch")
        assert "secret" not in raised.value.message
