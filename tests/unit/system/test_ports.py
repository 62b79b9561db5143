"""Who has a port."""

import os
import socket
from types import SimpleNamespace

import psutil
import pytest

from appliance.system.ports import listen, owner_of


def test_a_port_in_use_and_who_uses_it() -> None:
    with listen("127.0.0.1", 0) as server:
        port = server.getsockname()[1]
        with pytest.raises(OSError, match=r"."):
            listen("127.0.0.1", port)
        with socket.create_connection(("127.0.0.1", port)):
            pass
        owner = owner_of(port)
        assert owner is not None
        assert owner.endswith(f"(pid {os.getpid()})")
    assert owner_of(port) is None
    listen("127.0.0.1", port).close()


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host.invalid"])
def test_an_address_that_is_not_ours(host: str) -> None:
    with pytest.raises(OSError, match=r"."):
        listen(host, 0)


@pytest.mark.parametrize("error", [psutil.AccessDenied(), OSError("no /proc")])
def test_a_system_that_does_not_tell(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(kind: str) -> None:
        raise error

    monkeypatch.setattr(psutil, "net_connections", refuse)
    assert owner_of(80) is None


def test_a_process_that_is_gone_or_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    class Connection:
        status, laddr, pid = psutil.CONN_LISTEN, SimpleNamespace(ip="127.0.0.1", port=80), None

    monkeypatch.setattr(psutil, "net_connections", lambda kind: [Connection])
    assert owner_of(80) is None
    monkeypatch.setattr(Connection, "pid", 2**22 + 1)
    assert owner_of(80) == f"a program (pid {2**22 + 1})"
