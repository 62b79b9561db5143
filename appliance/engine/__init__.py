"""The engine process and the host side that starts, feeds and restarts it."""
