"""Windows only: the job that ends a child with its host, and the console's events.

Elsewhere the three functions exist and do nothing, so that their callers need no branches.
"""

import ctypes
import subprocess
import sys
import time
from collections.abc import Callable

if sys.platform == "win32":
    from ctypes import wintypes

    _KILL_ON_JOB_CLOSE = 0x2000  # winnt.h, JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
    _EXTENDED_LIMIT_INFORMATION = 9  # winnt.h, JobObjectExtendedLimitInformation
    _CTRL_C_EVENT, _CTRL_BREAK_EVENT = 0, 1  # wincon.h

    class _BasicLimits(ctypes.Structure):
        _fields_ = (
            ("per_process_user_time", wintypes.LARGE_INTEGER),
            ("per_job_user_time", wintypes.LARGE_INTEGER),
            ("limit_flags", wintypes.DWORD),
            ("minimum_working_set", ctypes.c_size_t),
            ("maximum_working_set", ctypes.c_size_t),
            ("active_process_limit", wintypes.DWORD),
            ("affinity", ctypes.c_size_t),
            ("priority_class", wintypes.DWORD),
            ("scheduling_class", wintypes.DWORD),
        )

    class _ExtendedLimits(ctypes.Structure):
        _fields_ = (
            ("basic", _BasicLimits),
            ("io", ctypes.c_ulonglong * 6),
            ("process_memory_limit", ctypes.c_size_t),
            ("job_memory_limit", ctypes.c_size_t),
            ("peak_process_memory", ctypes.c_size_t),
            ("peak_job_memory", ctypes.c_size_t),
        )

    def hold(child: "subprocess.Popen[bytes]") -> int:
        """Put `child` in a job of its own that Windows ends when this process ends; 0 where there is none.

        A failure (an old system, a job that forbids nesting) is not fatal: the child also ends when its
        socket does.
        """
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        kernel.CreateJobObjectW.restype = wintypes.HANDLE
        kernel.CreateJobObjectW.argtypes = (ctypes.c_void_p, wintypes.LPCWSTR)
        kernel.SetInformationJobObject.argtypes = (
            wintypes.HANDLE,
            ctypes.c_int,
            ctypes.c_void_p,
            wintypes.DWORD,
        )
        kernel.AssignProcessToJobObject.argtypes = (wintypes.HANDLE, wintypes.HANDLE)
        job = kernel.CreateJobObjectW(None, None)
        if not job:
            return 0
        limits = _ExtendedLimits()
        limits.basic.limit_flags = _KILL_ON_JOB_CLOSE
        kernel.SetInformationJobObject(job, _EXTENDED_LIMIT_INFORMATION, ctypes.byref(limits), ctypes.sizeof(limits))
        handle = int(child._handle)  # type: ignore[attr-defined]  # has no public name; the type stubs lack it
        kernel.AssignProcessToJobObject(job, wintypes.HANDLE(handle))
        return int(job)

    def release(job: int) -> None:
        """Close the job that `hold` gave; whatever the child left behind in it ends."""
        if job:
            kernel = ctypes.WinDLL("kernel32", use_last_error=True)
            kernel.CloseHandle.argtypes = (wintypes.HANDLE,)
            kernel.CloseHandle(job)

    def on_console_event(callback: Callable[[], None], grace: float) -> Callable[[], None]:
        """Call `callback` for every event of the console, in a thread of Windows'; returns what undoes it.

        Windows ends the process when the handler of a close, log-off or shutdown returns, so the handler
        then waits `grace` seconds for the process to end by itself.
        """

        def handle(event: int) -> bool:
            callback()
            if event not in (_CTRL_C_EVENT, _CTRL_BREAK_EVENT):
                time.sleep(grace)
            return True

        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        pointer = ctypes.WINFUNCTYPE(wintypes.BOOL, wintypes.DWORD)(handle)
        kernel.SetConsoleCtrlHandler(pointer, True)

        def undo() -> None:
            kernel.SetConsoleCtrlHandler(pointer, False)  # also keeps the pointer alive until then

        return undo

else:

    def hold(child: "subprocess.Popen[bytes]") -> int:
        """There are no jobs here."""
        return 0

    def release(job: int) -> None:
        """There are no jobs here."""

    def on_console_event(callback: Callable[[], None], grace: float) -> Callable[[], None]:
        """There are no console events here; signals say the same."""
        return lambda: None
