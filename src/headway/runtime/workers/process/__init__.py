"""A model in a process of its own.

`channel` carries values between two processes; `child` is the model's side of it, `handle` the
batcher's; `worker` runs batches there, and starts another process when one is lost.
"""
