"""Decisions. Pure: time is an argument, and nothing here reads a clock, a socket or a log.

The values that everything shares are in `items.py` and `policy.py`; the rooms decide.
"""
