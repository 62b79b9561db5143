"""What ends a bench."""


class BenchError(Exception):
    """It cannot be measured, or not written; the message says why in words. ``exit_code``: 2 for a wrong command."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code
