"""``appliance selftest``: does this program, as it was installed, work on this machine? One line a check."""
