"""The one home of everything that differs per operating system."""
