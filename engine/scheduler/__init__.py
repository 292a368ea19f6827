"""Scheduler and page manager: plain Python, no torch."""
