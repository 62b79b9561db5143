"""TCP ports of this machine: can it be had, and if not, who has it."""

import ipaddress
import socket
import sys

import psutil


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on the first address of `host`; port 0 takes a free one. OSError if it cannot be had."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform == "win32":
            # without it Windows lets two programs share a port, and the older one gets the calls
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server that just ended is no hindrance
        listener.bind(address)
        listener.listen(2048)
    except BaseException:
        listener.close()
        raise
    return listener


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine can reach what listens on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def owner_of(port: int) -> str | None:
    """Who listens on `port`, as "name (pid N)"; None if nobody does or the system does not tell this user."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return None
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
            if connection.pid:
                return f"{_name(connection.pid)} (pid {connection.pid})"
            return None
    return None


def _name(pid: int) -> str:
    try:
        return psutil.Process(pid).name() or "a program"
    except psutil.Error:
        return "a program"
