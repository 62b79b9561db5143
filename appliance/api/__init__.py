"""The HTTP surfaces."""
