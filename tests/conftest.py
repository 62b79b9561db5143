"""Fixtures for all tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import Server

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # tests that use ONNX Runtime themselves tell nobody either


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One appliance with the embedded models, shared by tests that do not change it."""
    with Server(tmp_path_factory.mktemp("embedded"), embedded=True) as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for a server of the test's own."""
    return tmp_path
