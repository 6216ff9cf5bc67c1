"""Seeded simulation of the replicated log: real core, guard, journal and pump in virtual time.

`python -m tests.sim --seed N` replays one run exactly.
"""
