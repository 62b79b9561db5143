"""Who has a port."""

import os
import socket

import psutil
import pytest

from appliance.system.ports import can_bind, owner_of


def test_a_port_in_use_and_who_uses_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not can_bind("127.0.0.1", port)
        owner = owner_of(port)
        assert owner is not None
        assert owner.endswith(f"(pid {os.getpid()})")
    assert can_bind("127.0.0.1", port)
    assert owner_of(port) is None


def test_any_free_port_and_an_address_that_is_not_ours() -> None:
    assert can_bind("localhost", 0)
    assert not can_bind("192.0.2.1", 0)
    assert not can_bind("no such host.invalid", 0)


@pytest.mark.parametrize("error", [psutil.AccessDenied(), OSError("no /proc")])
def test_a_system_that_does_not_tell(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(kind: str) -> None:
        raise error

    monkeypatch.setattr(psutil, "net_connections", refuse)
    assert owner_of(80) is None


def test_a_process_that_is_gone_or_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    address = psutil._common.addr("127.0.0.1", 80) if hasattr(psutil, "_common") else None
    if address is None:
        pytest.skip("another psutil")

    class Connection:
        status, laddr, pid = psutil.CONN_LISTEN, address, None

    monkeypatch.setattr(psutil, "net_connections", lambda kind: [Connection])
    assert owner_of(80) is None
    monkeypatch.setattr(Connection, "pid", 2**22 + 1)
    assert owner_of(80) == f"a program (pid {2**22 + 1})"
