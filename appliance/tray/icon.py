"""The tray icon on the screen: shows a `TrayState`, tells what was chosen, goes when asked."""

import contextlib
import importlib.util
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from appliance.system import desktop
from appliance.system.instance import only_one
from appliance.tray import backend, menu
from appliance.tray.drawing import draw
from appliance.tray.menu import Action, MenuItem
from appliance.tray.notices import Notices
from appliance.tray.state import TrayState

_SIZE = 64  # pixels; every backend reduces it to what the tray wants
_LEAST_PAUSE = 0.25  # seconds between two paintings, however often the state changes
_PATIENCE = 3.0  # seconds the loop may take to end
_HOST_TRIES = 10  # seconds a desktop that is just starting may need before its tray is there


def available() -> str | None:
    """Why no tray icon can be shown here, in one line, or None. Connects to nothing."""
    reason = desktop.no_session()
    if reason:
        return reason
    if importlib.util.find_spec("pystray") is None:
        return "pystray is not installed"
    if not desktop.tray_backends():
        return "this desktop needs PyGObject for a tray icon, and it is not installed"
    return None


@contextlib.contextmanager
def one_icon(state: Path, of: str) -> Iterator[bool]:
    """Whether no other program of this user shows the icon of the same appliance, within the ``with``. True, too,
    where that cannot be told. ``state``: the state folder; ``of``: what may stand in a file's name."""
    with contextlib.ExitStack() as stack:
        try:
            first = stack.enter_context(only_one(state / f"tray-{of}.lock"))
        except OSError:
            first = True
        yield first


def run_tray(
    get_state: Callable[[], TrayState],
    act: Callable[[Action, str], str | None],
    stop: threading.Event,
    changed: threading.Event,
    *,
    say: Callable[[str], None] = lambda _line: None,
    period: float | None = None,
) -> str | None:
    """Show the icon until `stop` is set (gives None) or until it cannot be shown (gives why, in one line).

    Blocks the calling thread, which does nothing but wait: in the main thread, signals are handled as ever.
    Nothing that the desktop does ends or holds up the program; on a reason the caller goes on without an
    icon.

    `get_state` is called when `changed` is set, and also every `period` seconds if one is given; the icon is
    touched only where the state looks different. `act` is called in a thread of its own with the chosen
    action and the model that it is about, if any; a text it returns is shown to the person, as is what
    `Notices` finds in a state. `say` gets single lines for the log.
    """
    reason = available()
    if reason:
        return reason
    return _Tray(get_state, act, changed, say, period).run(stop)


class _Tray:
    """One showing of the icon. Its threads: the loop (owns the toolkit), the painter, one that awaits stop."""

    def __init__(
        self,
        get_state: Callable[[], TrayState],
        act: Callable[[Action, str], str | None],
        changed: threading.Event,
        say: Callable[[str], None],
        period: float | None,
    ) -> None:
        self._get_state = get_state
        self._act = act
        self._changed = changed
        self._say = say
        self._period = period
        self._over = threading.Event()
        self._reason: str | None = None
        self._icon: Any = None
        self._module: Any = None
        self._name = ""
        self._state: TrayState | None = None
        self._notices = Notices()
        self._leave: Callable[[], None] = lambda: None
        self._hurried = False

    def run(self, stop: threading.Event) -> str | None:
        def leave() -> None:
            self._hurried = True  # the loop waits for the program's end, not the other way round
            stop.set()

        self._leave = leave
        loop = threading.Thread(target=self._loop, name="tray", daemon=True)
        loop.start()
        threading.Thread(target=self._forward, args=(stop,), name="tray-stop", daemon=True).start()
        while not self._over.wait(3600):  # one without an end is deaf to signals on Windows
            pass
        self._changed.set()  # lets the painter go
        if self._icon is not None:
            # in a thread: one backend waits here for its loop, which may be gone
            threading.Thread(target=self._icon.stop, name="tray-end", daemon=True).start()
            if self._reason is None and not self._hurried:
                loop.join(_PATIENCE)
        return self._reason

    def _forward(self, stop: threading.Event) -> None:
        stop.wait()
        self._end(None)

    def _end(self, reason: str | None) -> None:
        if not self._over.is_set():
            self._reason = reason
            self._over.set()

    def _loop(self) -> None:
        try:
            self._module, self._name = backend.load()
            self._state = self._get_state()
            icon = self._module.Icon(
                "inference-appliance",
                self._picture(self._state),
                menu.tooltip(self._state),
                self._module.Menu(self._items),
            )
            backend.prepare(icon, self._name, self._end, self._leave)
            self._icon = icon
            icon.run(self._paint)
        except backend.NoTray as error:
            self._end(str(error))
        except Exception as error:  # noqa: BLE001 - a toolkit's failure must not take the program along
            self._end(f"the tray icon failed: {type(error).__name__}: {error}")
        else:
            self._end("the tray icon was closed by the desktop")

    def _picture(self, state: TrayState) -> Any:
        return backend.picture(draw(menu.colour(state), menu.glyph(state), _SIZE), self._name)

    def _items(self) -> tuple[Any, ...]:
        """The menu of now, as pystray wants it. Called in the loop's thread."""
        return self._made(menu.items(self._state)) if self._state is not None else ()

    def _made(self, items: tuple[MenuItem, ...]) -> tuple[Any, ...]:
        return tuple(self._module.Menu.SEPARATOR if item.separator else self._item(item) for item in items)

    def _item(self, item: MenuItem) -> Any:
        checked = item.checked
        return self._module.MenuItem(
            backend.label(item.text, self._name),
            self._module.Menu(*self._made(item.items)) if item.items else self._chooser(item),
            default=item.default,
            enabled=item.enabled,
            checked=None if checked is None else lambda _item: checked,
        )

    def _chooser(self, item: MenuItem) -> Callable[[Any, Any], None] | None:
        if item.action is None:
            return None
        chosen = (item.action, item.model)

        def choose(_icon: Any, _item: Any) -> None:
            threading.Thread(target=self._choose, args=chosen, name="tray-action", daemon=True).start()

        return choose

    def _choose(self, action: Action, model: str) -> None:
        """Outside the loop, so that a slow action does not freeze the menu."""
        try:
            answer = self._act(action, model)
        except desktop.DesktopError as error:
            answer = str(error)
        if answer:
            self._say(answer)
            self._tell(answer)
        self._changed.set()

    def _tell(self, words: str) -> None:
        if self._icon.HAS_NOTIFICATION:
            self._icon.notify(menu.notice(words), menu.NAME)

    def _paint(self, icon: Any) -> None:
        """The painter's thread: pystray starts it with its loop."""
        try:
            if not self._await_host(icon):
                return
            icon.visible = True
            if not backend.has_menu(self._name):
                self._say(
                    "the tray icon has no menu here, a click opens the dashboard; "
                    "with PyGObject (python3-gi) and a session bus it has one"
                )
            backend.show_tooltip(icon, self._name, icon.title)
            while not self._over.is_set():
                self._changed.clear()
                state = self._get_state()
                backend.keep_shown(icon, self._name)
                self._show(icon, state)
                notices = self._notices.due(state, time.monotonic())
                if notices:
                    self._tell("\n".join(notices))
                self._changed.wait(self._period)
                self._over.wait(_LEAST_PAUSE)
        except Exception as error:  # noqa: BLE001 - as above
            self._end(f"the tray icon failed: {type(error).__name__}: {error}")

    def _await_host(self, icon: Any) -> bool:
        """False if there is nobody to show the icon, and nobody who would later."""
        for _ in range(_HOST_TRIES):
            if backend.has_host(icon, self._name):
                return True
            if backend.has_menu(self._name):  # these dock by themselves as soon as somebody is there
                self._say("no program shows tray icons in this session; the icon appears when one does")
                return True
            if self._over.wait(1.0):
                return False
        self._end("no program shows tray icons in this session")
        return False

    def _show(self, icon: Any, state: TrayState) -> None:
        before, self._state = self._state, state
        if before is None or state == before:
            return
        if (menu.colour(state), menu.glyph(state)) != (menu.colour(before), menu.glyph(before)):
            icon.icon = self._picture(state)
        if menu.tooltip(state) != menu.tooltip(before):
            backend.show_tooltip(icon, self._name, menu.tooltip(state))
        if menu.items(state) != menu.items(before):
            backend.show_menu(icon, self._name)
