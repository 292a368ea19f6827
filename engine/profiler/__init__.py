"""Where a step's time goes: timed methods put in the place of the engine's own while profiling is on.

It knows no model: it is handed a list of sites (sites.py), and what it makes of them is messages for whoever asks.
docs/profiler.md says what the numbers mean.
"""
