"""Admission: which request runs when. Policy is pure; time and probes are arguments."""
