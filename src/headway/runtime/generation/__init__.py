"""A language model's engine in a process of its own.

`messages` are what the two processes send each other, `child` is the engine's side, `process`
the front's: it resumes sequences when an engine is lost.
"""
