"""Child processes that end with the host, the socket between the two, and the signals that mean stop.

The host side is `start_child`, the child side `connect_to_parent`. The child finds what it needs in
its environment, under names that no setting has; it takes them out again, so that they reach nobody else.
"""

import ctypes
import hmac
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO, Any

from appliance.system import jobs

_PARENT = "_APPLIANCE_CHILD_PARENT"
_SOCKET = "_APPLIANCE_CHILD_SOCKET"
_SECRET = "_APPLIANCE_CHILD_SECRET"  # noqa: S105 - the name of a variable, not a secret

SOCKET_BUFFER = 4 << 20
"""Bytes asked for in each direction; the system may give less (`net.core.wmem_max`)."""

if sys.platform == "win32":
    _FLAGS = subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP
else:
    _FLAGS = 0

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_CLOSE_GRACE = 4.5  # seconds; Windows ends a process 5 s after its console was closed


class ChildDidNotConnect(RuntimeError):
    """The child ended, or said nothing, before it was connected."""


def start_child(
    command: list[str],
    env: Mapping[str, str] | None = None,
    stderr: int | IO[Any] | None = None,
    *,
    loopback: bool = sys.platform == "win32",
    connect_timeout: float = 60.0,
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start `command` so that it ends when this process does, and give the host's end of their socket.

    `env` is the child's whole environment (None: this one's). What the child prints to its standard output
    goes where `stderr` goes (None: inherited), or nowhere if that is a pipe, since only one end is read.
    The child has its own session or process group: Ctrl-C in a terminal reaches the host alone, which then
    ends the child in order. It may be called from any thread, also one that ends soon.

    On POSIX this returns at once. With `loopback` it waits until the child has connected and shown the
    secret; it raises `ChildDidNotConnect` if the child ends first or needs longer than `connect_timeout`
    seconds. OSError if the program cannot be started.
    """
    variables = dict(os.environ if env is None else env)
    variables[_PARENT] = str(os.getpid())
    stdout = subprocess.DEVNULL if stderr == subprocess.PIPE else stderr
    start = _start_loopback if loopback else _start_pair
    return start(command, variables, stdout, stderr, connect_timeout)


def _start_pair(
    command: list[str],
    env: dict[str, str],
    stdout: int | IO[Any] | None,
    stderr: int | IO[Any] | None,
    _timeout: float,
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    _widen(ours)
    _widen(theirs)
    env[_SOCKET] = f"fd:{theirs.fileno()}"
    try:
        child = _spawn(command, env, stdout, stderr, (theirs.fileno(),))
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()  # held open here, it would keep the end of the child from showing as end of file
    return child, ours


def _start_loopback(
    command: list[str],
    env: dict[str, str],
    stdout: int | IO[Any] | None,
    stderr: int | IO[Any] | None,
    timeout: float,
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    secret = secrets.token_hex(32)
    with socket.create_server(("127.0.0.1", 0), backlog=4) as listener:
        env[_SOCKET] = f"port:{listener.getsockname()[1]}"
        env[_SECRET] = secret
        child = _spawn(command, env, stdout, stderr, ())
        try:
            return child, _accept(listener, secret, child, time.monotonic() + timeout)
        except BaseException:
            child.kill()
            child.wait()
            raise


def _accept(listener: socket.socket, secret: str, child: subprocess.Popen[bytes], deadline: float) -> socket.socket:
    """The first connection that shows the secret; any other local program is turned away."""
    listener.settimeout(0.2)
    while time.monotonic() < deadline:
        try:
            peer, _ = listener.accept()
        except TimeoutError:
            if child.poll() is not None:
                raise ChildDidNotConnect(f"the child ended with code {child.returncode} at start") from None
            continue
        except ConnectionError:
            continue  # another local program, which was gone before it was let in
        if _shows(peer, secret):
            peer.settimeout(None)
            _widen(peer)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return peer
        peer.close()
    raise ChildDidNotConnect("the child did not connect in time")


def _shows(peer: socket.socket, secret: str) -> bool:
    peer.settimeout(2.0)
    shown = b""
    try:
        while len(shown) < len(secret):
            part = peer.recv(len(secret) - len(shown))
            if not part:
                return False
            shown += part
    except OSError:
        return False
    return hmac.compare_digest(shown, secret.encode())


def _spawn(
    command: list[str],
    env: dict[str, str],
    stdout: int | IO[Any] | None,
    stderr: int | IO[Any] | None,
    pass_fds: tuple[int, ...],
) -> subprocess.Popen[bytes]:
    """Start the child from a thread that lives as long as the child does.

    Linux sends the parent-death signal when the *thread* that forked ends, so a thread of a pool would
    take the child with it. On Windows the same thread closes the child's job when the child has ended.
    """
    started = threading.Event()
    result: list[subprocess.Popen[bytes] | BaseException] = []

    def keep() -> None:
        try:
            child = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                pass_fds=pass_fds,
                start_new_session=sys.platform != "win32",
                creationflags=_FLAGS,
            )
            job = jobs.hold(child)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that asked
            result.append(error)
            started.set()
            return
        result.append(child)
        started.set()
        _until_it_ended(child)
        jobs.release(job)

    threading.Thread(target=keep, name="child-keeper", daemon=True).start()
    started.wait()
    outcome = result[0]
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _until_it_ended(child: subprocess.Popen[bytes]) -> None:
    if sys.platform == "win32":
        child.wait()
        return
    try:
        # WNOWAIT leaves the exit code to whoever holds the Popen
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        return  # somebody has waited for it already


def connect_to_parent() -> socket.socket:
    """In the child, once and early: its end of the socket, blocking. From now on it ends with its parent.

    RuntimeError if this process was not started by `start_child`; OSError if the parent is gone.
    """
    where = os.environ.pop(_SOCKET, "")
    secret = os.environ.pop(_SECRET, "")
    parent = os.environ.pop(_PARENT, "")
    kind, _, number = where.partition(":")
    if kind not in ("fd", "port") or not parent.isdigit():
        raise RuntimeError("this command is started by the host process only")
    die_with_parent(int(parent))
    if kind == "fd":
        descriptor = int(number)
        os.set_inheritable(descriptor, False)
        return socket.socket(fileno=descriptor)
    connection = socket.create_connection(("127.0.0.1", int(number)), timeout=10.0)
    connection.settimeout(None)
    connection.sendall(secret.encode())
    _widen(connection)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def die_with_parent(parent: int) -> None:
    """Ask the system to end this process when the one that started it ends; `parent` is that one's id.

    Linux: a signal on the parent's death, even while native code hangs. If the parent is gone already, this
    process ends here. Windows: nothing to do, the host holds the job. Elsewhere: end of file on the socket.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent and not _alive(parent):  # a tool such as a profiler may stand in between
        os._exit(1)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _widen(connection: socket.socket) -> None:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        try:
            connection.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)
        except OSError:
            continue  # some systems refuse instead of giving less


def on_stop(callback: Callable[[], None]) -> Callable[[], None]:
    """Call `callback` whenever the system or a person wants this process to end; returns what undoes it.

    Called in the main thread only. SIGINT and SIGTERM; on POSIX also SIGHUP unless it was ignored (nohup);
    on Windows also SIGBREAK and the console's close, log-off and shutdown, which come in a thread of their
    own, and are held back until the process has ended or Windows ends it. The callback may be called several
    times and from different threads: it should set an event and return.
    """
    wanted = [signal.SIGINT, signal.SIGTERM]
    if sys.platform == "win32":
        wanted.append(signal.SIGBREAK)
    elif signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        wanted.append(signal.SIGHUP)
    before = {number: signal.signal(number, lambda _number, _frame: callback()) for number in wanted}
    console = jobs.on_console_event(callback, _CLOSE_GRACE)

    def undo() -> None:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        console()

    return undo
