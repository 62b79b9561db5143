"""Files that hold secrets: written whole or not at all, and for this user only."""

import os
import sys
import time
from pathlib import Path

_WRITE_TRIES = 40  # Windows refuses to replace a file that somebody is reading just now


def write(file: Path, content: bytes) -> None:
    """Put ``content`` in the place of what the file holds. Nobody else ever may read it, not even for a moment.

    Its folder must exist. OSError, and the file is as it was.
    """
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)  # of one that was killed; rights are given when a file is made
    try:
        with os.fdopen(_make(draft), "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        _replace(draft, file)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _replace(draft: Path, file: Path) -> None:
    for attempt in range(_WRITE_TRIES):
        try:
            draft.replace(file)
            return
        except PermissionError:
            if attempt == _WRITE_TRIES - 1:
                raise
            time.sleep(0.05)


if sys.platform == "win32":
    import ctypes
    import msvcrt
    from ctypes import wintypes

    _TOKEN_QUERY = 0x0008  # winnt.h
    _TOKEN_USER = 1  # winnt.h, TokenUser
    _GENERIC_WRITE = 0x40000000
    _CREATE_NEW = 1  # fileapi.h
    _SDDL_REVISION_1 = 1  # sddl.h

    class _SecurityAttributes(ctypes.Structure):
        _fields_ = (
            ("length", wintypes.DWORD),
            ("descriptor", ctypes.c_void_p),
            ("inherit", wintypes.BOOL),
        )

    def _checked(succeeded: int) -> None:
        if not succeeded:
            raise ctypes.WinError(ctypes.get_last_error())

    def _user() -> str:
        """This user's SID, as text."""
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        security = ctypes.WinDLL("advapi32", use_last_error=True)
        kernel.GetCurrentProcess.restype = wintypes.HANDLE
        security.OpenProcessToken.argtypes = (wintypes.HANDLE, wintypes.DWORD, ctypes.POINTER(wintypes.HANDLE))
        security.GetTokenInformation.argtypes = (
            wintypes.HANDLE,
            ctypes.c_int,
            ctypes.c_void_p,
            wintypes.DWORD,
            ctypes.POINTER(wintypes.DWORD),
        )
        security.ConvertSidToStringSidW.argtypes = (ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
        kernel.LocalFree.argtypes = (ctypes.c_void_p,)
        kernel.CloseHandle.argtypes = (wintypes.HANDLE,)
        token, size, text = wintypes.HANDLE(), wintypes.DWORD(), ctypes.c_void_p()
        _checked(security.OpenProcessToken(kernel.GetCurrentProcess(), _TOKEN_QUERY, ctypes.byref(token)))
        try:
            # TOKEN_USER: a pointer to the SID, attributes, and behind them the SID itself.
            found = (ctypes.c_void_p * 32)()
            room = ctypes.sizeof(found)
            _checked(security.GetTokenInformation(token, _TOKEN_USER, found, room, ctypes.byref(size)))
            _checked(security.ConvertSidToStringSidW(found[0], ctypes.byref(text)))
            try:
                return ctypes.wstring_at(text.value or 0)
            finally:
                kernel.LocalFree(text)
        finally:
            kernel.CloseHandle(token)

    def _make(file: Path) -> int:
        """A new file, open for writing, that only this user and the system may open; nothing is inherited."""
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        security = ctypes.WinDLL("advapi32", use_last_error=True)
        security.ConvertStringSecurityDescriptorToSecurityDescriptorW.argtypes = (
            wintypes.LPCWSTR,
            wintypes.DWORD,
            ctypes.POINTER(ctypes.c_void_p),
            ctypes.c_void_p,
        )
        kernel.CreateFileW.restype = wintypes.HANDLE
        kernel.CreateFileW.argtypes = (
            wintypes.LPCWSTR,
            wintypes.DWORD,
            wintypes.DWORD,
            ctypes.POINTER(_SecurityAttributes),
            wintypes.DWORD,
            wintypes.DWORD,
            wintypes.HANDLE,
        )
        kernel.LocalFree.argtypes = (ctypes.c_void_p,)
        rights, descriptor = f"D:P(A;;FA;;;{_user()})(A;;FA;;;SY)", ctypes.c_void_p()
        _checked(
            security.ConvertStringSecurityDescriptorToSecurityDescriptorW(
                rights, _SDDL_REVISION_1, ctypes.byref(descriptor), None
            )
        )
        try:
            attributes = _SecurityAttributes(ctypes.sizeof(_SecurityAttributes), descriptor.value, False)
            handle = kernel.CreateFileW(str(file), _GENERIC_WRITE, 0, ctypes.byref(attributes), _CREATE_NEW, 0, None)
            _checked(handle != wintypes.HANDLE(-1).value)
        finally:
            kernel.LocalFree(descriptor)
        return msvcrt.open_osfhandle(handle, os.O_WRONLY)

    def fault(file: Path) -> str | None:
        """Windows' rights are those that the file was made with; there is nothing that one look would tell."""
        return None

else:

    def _make(file: Path) -> int:
        return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    def fault(file: Path) -> str | None:
        """Why what the file says cannot be trusted: somebody else may have written it. OSError if there is none."""
        found = file.stat()
        if found.st_uid not in (0, os.getuid()):
            return "it belongs to another user"
        return "others may write it (chmod 600)" if found.st_mode & 0o022 else None
