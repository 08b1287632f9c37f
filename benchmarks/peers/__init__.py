"""Headway's chat model on the CPU beside what a user would pick instead: `benchmarks chat-peers`.

Every party is a process of its own, in its own environment, that is given the same prompts and
lengths and says one line of JSON for each load. A peer's module imports nothing of Headway.
"""
