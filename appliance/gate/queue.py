"""Who waits, in which order, and who may share a run. Pure: no clock, no loop."""

from bisect import insort
from collections.abc import Callable, Iterator

from appliance.gate.ticket import Ticket


def _rank(ticket: Ticket) -> tuple[int, int]:
    return ticket.priority, ticket.order


def _shares(ticket: Ticket) -> bool:
    return ticket.key is not None and not ticket.deaths and not ticket.retried


class WaitingQueue:
    """Tickets by priority, then by arrival. Requests put back after a crash come before all of their priority."""

    def __init__(self) -> None:
        self._tickets: list[Ticket] = []
        self._last = 0
        self._first = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._tickets)

    @property
    def head(self) -> Ticket:
        """The next one; there must be one."""
        return self._tickets[0]

    def push(self, ticket: Ticket) -> int:
        """Queue a ticket; returns its place, 1 for the head."""
        self._last += 1
        ticket.order = self._last
        if not self._tickets or _rank(self._tickets[-1]) < _rank(ticket):
            self._tickets.append(ticket)
            return len(self._tickets)
        insort(self._tickets, ticket, key=_rank)
        return self.place(ticket)

    def put_back(self, tickets: list[Ticket]) -> None:
        """Queue interrupted tickets in front, in their old order."""
        for ticket in reversed(tickets):
            self._first -= 1
            ticket.order = self._first
            insort(self._tickets, ticket, key=_rank)

    def back_in_place(self, tickets: list[Ticket]) -> None:
        """Queue tickets that were taken, but had not begun, where they stood."""
        for ticket in tickets:
            insort(self._tickets, ticket, key=_rank)

    def place(self, ticket: Ticket) -> int:
        """1 for the head; 0 if the ticket does not wait here."""
        try:
            return self._tickets.index(ticket) + 1
        except ValueError:
            return 0

    def remove(self, ticket: Ticket) -> bool:
        """Take a ticket out; False if it is not here."""
        try:
            self._tickets.remove(ticket)
        except ValueError:
            return False
        return True

    def expired(self, now: float) -> list[Ticket]:
        """Take out and return all tickets whose queue deadline has passed."""
        late = [t for t in self._tickets if t.queue_deadline <= now]
        if late:
            self._tickets = [t for t in self._tickets if t.queue_deadline > now]
        return late

    def next_deadline(self) -> float | None:
        """The earliest queue deadline of those that wait."""
        return min((t.queue_deadline for t in self._tickets), default=None)

    def rows_like_head(self) -> int:
        """The items of the head and of all behind it that could share its run; 0 if it shares with nobody."""
        head = self._tickets[0]
        if not _shares(head):
            return 0
        return sum(ticket.rows for ticket in self._tickets if ticket.key == head.key and _shares(ticket))

    def take(self, max_rows: int, fits: Callable[[list[Ticket]], bool] = lambda tickets: True) -> list[Ticket]:
        """Take the next run's tickets out: the first that fits, and while rows are left those of its key behind it.

        ``max_rows``: 0 or 1 for never merged. A ticket without a key, one that was in a crash, or one that ran out of
        memory, runs alone. ``fits``: whether tickets may start as one run now; a ticket that may not is overtaken.
        Empty if none fits. One that was in a crash is overtaken by nobody.
        """
        for at, first in enumerate(self._tickets):
            if fits([first]):
                return self._take_from(at, max_rows, fits)
            if first.deaths:
                break
        return []

    def _take_from(self, at: int, max_rows: int, fits: Callable[[list[Ticket]], bool]) -> list[Ticket]:
        first = self._tickets[at]
        if max_rows <= 1 or not _shares(first) or at == len(self._tickets) - 1:
            return [self._tickets.pop(at)]
        rows = first.rows
        batch = [first]
        for ticket in self._tickets[at + 1 :]:
            if ticket.key == first.key and _shares(ticket) and rows + ticket.rows <= max_rows:
                rows += ticket.rows
                batch.append(ticket)
        while len(batch) > 1 and not fits(batch):
            batch.pop()
        taken = set(map(id, batch))
        self._tickets = [ticket for ticket in self._tickets if id(ticket) not in taken]
        return batch
