"""Explains this machine: facts are gathered in bounded time, findings are pure functions of them."""
