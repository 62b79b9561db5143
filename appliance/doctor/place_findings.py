"""Where the program lives: its port and its folders. Pure: Windows' paths are judged as such on any system."""

from collections.abc import Iterator
from pathlib import PureWindowsPath

from appliance.doctor.facts import Facts, Folder, Port, Windows
from appliance.doctor.report import Line

_ROOM = 1 << 30  # bytes free, for logs, runtime packs and models
_OLD_LIMIT = 260  # characters, with the zero at the end: Windows' MAX_PATH
_CLOUDS = {"dropbox": "Dropbox", "google drive": "Google Drive", "my drive": "Google Drive", "iclouddrive": "iCloud"}
_SETTING = {"state": "state", "logs": "state", "models": "models"}


def port(facts: Facts) -> Iterator[Line]:
    """Free, the appliance's own, somebody else's, or reserved."""
    if facts.port is not None:
        yield _port(facts.port, facts.chosen.host, facts.chosen.port)


def _port(found: Port, host: str, number: int) -> Line:
    if found.url is not None:
        who = f"the appliance that runs has it ({found.url}, pid {found.pid})"
        if found.answers:
            return Line("port", "ok", f"{number}: {who}")
        cure = "end it (appliance stop --kill), then start it again"
        return Line("port", "failed", f"{number}: {who}, but it does not answer", cure)
    if found.error is None:
        return Line("port", "ok", "a free one is taken" if number == 0 else f"{number} on {host} is free")
    if found.other:
        return Line(
            "port", "ok", f"{number}: an appliance of another user, or with another state folder, answers there"
        )
    other = "choose another port (setting port)"
    held = next((pair for pair in found.reserved if pair[0] <= number <= pair[1]), None)
    if held is not None and found.owner is None:
        words = f"{number} is reserved by Windows (ports {held[0]} to {held[1]})"
        cure = f"{other}, or, as an administrator: net stop winnat, start the appliance, net start winnat"
        return Line("port", "failed", words, cure)
    words = f"{number} on {host} cannot be used: {found.error}"
    if found.owner is not None:
        return Line("port", "failed", f"{words}; it is held by {found.owner}", f"stop that program, or {other}")
    return Line("port", "failed", words, other)


def folders(facts: Facts) -> Iterator[Line]:
    """Can they be written, and is there room?"""
    for folder in facts.folders or ():
        if folder.role != "program":
            yield _folder(folder)


def _folder(folder: Folder) -> Line:
    words, setting = f"{folder.role}: {folder.path}", _SETTING[folder.role]
    if folder.fault is not None:
        cure = f"give this user the right to write there, or choose another folder (setting {setting})"
        return Line("folder", "failed", f"{words} cannot be written: {folder.fault}", cure)
    if folder.free is None:
        return Line("folder", "ok", f"{words} can be written")
    if folder.free < _ROOM:
        words = f"{words} can be written, but only {folder.free / 1e6:.0f} MB are free"
        return Line("folder", "warning", words, "make room on that disk")
    return Line("folder", "ok", f"{words} can be written, {folder.free / 1e9:.1f} GB are free")


def paths(facts: Facts) -> Iterator[Line]:
    """Letters beyond ASCII, and lengths that Windows does not take everywhere."""
    if facts.folders is None or facts.system is None:
        return
    judged = [folder for folder in facts.folders if folder.role != "logs"]  # those are in the state folder
    found = [line for folder in judged for line in (*_letters(folder, facts.windows), *_long(folder, facts))]
    yield from found or [Line("paths", "ok", "plain letters, and of a length that everything takes")]


def _letters(folder: Folder, windows: Windows | None) -> Iterator[Line]:
    text = folder.path if folder.role in ("program", "state") else (folder.longest or folder.path)
    beyond = list(dict.fromkeys(letter for letter in text if ord(letter) > 127))
    if not beyond:
        return
    words = f"{folder.role}: {folder.path} has letters beyond ASCII ({''.join(beyond[:8])})"
    page = windows.code_page if windows else None
    if page is None:
        yield Line("paths", "ok", f"{words}, which the appliance takes")
    elif _fits("".join(beyond), page):
        yield Line("paths", "ok", f"{words}, which the appliance takes and this machine's code page ({page}) has")
    else:
        cure = "the appliance takes them; if a library or a model there does not load, move the folder"
        yield Line("paths", "warning", f"{words} that this machine's code page ({page}) does not have", cure)


def _fits(letters: str, page: str) -> bool:
    try:
        letters.encode(page)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _long(folder: Folder, facts: Facts) -> Iterator[Line]:
    longest = max(folder.path, folder.longest or "", key=len)
    if facts.windows is None or len(longest) < _OLD_LIMIT:
        return
    name = f"…{longest[-40:]}"
    words = f"{folder.role}: a path of {len(longest)} characters ({name}), over Windows' {_OLD_LIMIT}"
    if facts.windows.long_paths:
        yield Line("paths", "ok", f"{words}; long paths are enabled")
        return
    cure = "choose a shorter folder, or let an administrator enable long paths (LongPathsEnabled)"
    if folder.extended:
        yield Line("paths", "warning", f"{words}; the appliance takes it, Explorer and other programs do not", cure)
    else:
        yield Line("paths", "failed", f"{words}, and long paths are not enabled: it cannot be opened", cure)


def scanners(facts: Facts) -> Iterator[Line]:
    """Windows: places where a virus scanner, a cloud or a clean-up gets in the way."""
    if facts.windows is None or facts.folders is None:
        return
    judged = [folder for folder in facts.folders if folder.role != "logs"]
    found = [line for folder in judged for line in _place(folder, facts.windows)]
    yield from found or [Line("antivirus", "ok", "no folder lies where a virus scanner or a cloud gets in the way")]


def _place(folder: Folder, windows: Windows) -> Iterator[Line]:
    setting = "install the program elsewhere" if folder.role == "program" else "choose another folder"
    if folder.role in _SETTING:
        setting += f" (setting {_SETTING[folder.role]})"
    where = f"{folder.role}: {folder.path} lies"
    cloud = _cloud(folder, windows)
    if cloud is not None:
        why = "files are locked while they are copied, and may be there by name only"
        yield Line("antivirus", "warning", f"{where} in {cloud}: {why}", setting)
    elif folder.network:
        why = "opening is slow, and changes may go unnoticed"
        yield Line("antivirus", "warning", f"{where} on a network share: {why}", setting)
    elif _below(folder, windows.places.get("Temp", ())):
        yield Line("antivirus", "warning", f"{where} in the temporary folder, which is emptied by Windows", setting)
    elif _below(folder, windows.places.get("Downloads", ())):
        why = "virus scanners look closest there, and hold up what is loaded from it"
        yield Line("antivirus", "warning", f"{where} in Downloads: {why}", setting)
    elif windows.guarded and folder.role != "program" and _below(folder, windows.places.get("Documents", ())):
        cure = f"allow the appliance in Windows Security (Controlled folder access), or {setting}"
        yield Line("antivirus", "warning", f"{where} in a folder that Windows guards from unknown programs", cure)


def _cloud(folder: Folder, windows: Windows) -> str | None:
    if _below(folder, windows.places.get("OneDrive", ())):
        return "OneDrive"
    parts = (part.lower() for part in PureWindowsPath(folder.path).parts)
    return next((_CLOUDS[part] for part in parts if part in _CLOUDS), None)


def _below(folder: Folder, places: tuple[str, ...]) -> bool:
    return any(PureWindowsPath(folder.path).is_relative_to(PureWindowsPath(place)) for place in places if place)
