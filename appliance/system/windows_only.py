"""What only Windows has: sessions, reserved ports, its limit on paths, code pages, power plans. Elsewhere: None."""

import re
import subprocess
import sys
from pathlib import Path

import msgspec

if sys.platform == "win32":
    import ctypes
    import os
    import winreg
    from ctypes import wintypes

    _REMOTE_SESSION = 0x1000  # winuser.h, SM_REMOTESESSION
    _DRIVE_REMOTE = 4  # fileapi.h

HERE = sys.platform == "win32"

_PATIENCE_S = 5.0
_PLANS = {
    "a1841308-3541-4fab-bc81-f71556f20b4a": "power saver",
    "381b4222-f694-41f0-9685-ff5bb260df2e": "balanced",
    "8c5e7fda-e8bf-4a96-9a85-a6e23a8c635c": "high performance",
}


class Session(msgspec.Struct, frozen=True):
    """The session that this process is in. Services have number 0; ``remote``: it is shown by Remote Desktop."""

    number: int
    name: str
    remote: bool


def ranges(text: str) -> tuple[tuple[int, int], ...]:
    """The first and last port of each line of ``netsh interface ipv4 show excludedportrange``, in any language."""
    found = re.findall(r"(?m)^[ \t]*(\d{1,5})[ \t]+(\d{1,5})[ \t]*\*?[ \t]*\r?$", text)
    return tuple((int(first), int(last)) for first, last in found)


if sys.platform == "win32":

    def session() -> Session | None:
        number = wintypes.DWORD()
        if not ctypes.WinDLL("kernel32").ProcessIdToSessionId(os.getpid(), ctypes.byref(number)):
            return None
        name = os.environ.get("SESSIONNAME") or ("Services" if number.value == 0 else "unnamed")
        return Session(number.value, name, bool(ctypes.WinDLL("user32").GetSystemMetrics(_REMOTE_SESSION)))

    def reserved_ports() -> tuple[tuple[int, int], ...]:
        """The ranges of TCP ports that no program gets; empty if Windows does not tell."""
        netsh = Path(os.environ.get("SYSTEMROOT", r"C:\Windows")) / "System32" / "netsh.exe"
        command = [str(netsh), "interface", "ipv4", "show", "excludedportrange", "protocol=tcp"]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PATIENCE_S,
                check=False,
                creationflags=subprocess.CREATE_NO_WINDOW,
            )
        except (OSError, subprocess.TimeoutExpired):
            return ()
        return ranges(done.stdout.decode("ascii", "replace"))

    def long_paths_enabled() -> bool | None:
        """Whether an administrator has let programs use paths of over 260 characters in their plain spelling."""
        found = _registry(r"SYSTEM\CurrentControlSet\Control\FileSystem", "LongPathsEnabled")
        return None if found is None else found == 1

    def code_page() -> str | None:
        """Python's name of the code page in which older libraries read paths, such as "cp1252"."""
        return f"cp{ctypes.WinDLL('kernel32').GetACP()}"

    def guarded_folders() -> bool | None:
        """Whether Windows keeps programs that it does not know from writing into a person's folders."""
        found = _registry(
            r"SOFTWARE\Microsoft\Windows Defender\Windows Defender Exploit Guard\Controlled Folder Access",
            "EnableControlledFolderAccess",
        )
        return None if found is None else found == 1

    def power_plan() -> str | None:
        """Its name if it is one of Windows' own three, else its number."""
        found = _registry(r"SYSTEM\CurrentControlSet\Control\Power\User\PowerSchemes", "ActivePowerScheme")
        return None if found is None else _PLANS.get(str(found).lower(), str(found))

    def on_network(folder: Path) -> bool:
        """Whether a folder lies on another machine."""
        if folder.drive.startswith("\\\\") and not folder.drive.startswith("\\\\?\\"):
            return True
        drive = folder.drive.removeprefix("\\\\?\\")
        if drive.upper().startswith("UNC\\"):
            return True
        kernel = ctypes.WinDLL("kernel32")
        kernel.GetDriveTypeW.argtypes = (wintypes.LPCWSTR,)
        return bool(kernel.GetDriveTypeW(f"{drive}\\") == _DRIVE_REMOTE)

    def _registry(key: str, name: str) -> object:
        """A value of the machine's registry, or None."""
        try:
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as opened:
                return winreg.QueryValueEx(opened, name)[0]
        except OSError:
            return None

else:

    def session() -> Session | None:
        return None

    def reserved_ports() -> tuple[tuple[int, int], ...]:
        return ()

    def long_paths_enabled() -> bool | None:
        return None

    def code_page() -> str | None:
        return None

    def guarded_folders() -> bool | None:
        return None

    def power_plan() -> str | None:
        return None

    def on_network(folder: Path) -> bool:
        return False
