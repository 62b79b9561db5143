"""Which model versions are served now: load, warm-up, swap, unload, watching the folders."""
