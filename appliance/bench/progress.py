"""The progress display."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn


class Bar:
    """One line: what is done now, and how much of it is over."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)

    def describe(self, words: str) -> None:
        self._progress.reset(self._task, description=words, total=None)

    def stages(self, prefix: str) -> Callable[[int, int, float], None]:
        """What ``measure`` tells goes to a bar of its own."""
        self._progress.reset(self._task, total=1.0)

        def tell(number: int, clients: int, share: float) -> None:
            words = f"{prefix}round {number}, {clients} client{'s' if clients > 1 else ''}"
            self._progress.update(self._task, description=words, completed=share)

        return tell


@contextlib.contextmanager
def shown(console: Console) -> Iterator[Bar]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield Bar(progress)
