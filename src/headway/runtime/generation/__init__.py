"""A language model's engine in a process of its own.

`words` are what the two processes say to each other, `child` is the engine's side of the line,
`process` the front's: it resumes sequences when an engine is lost.
"""
