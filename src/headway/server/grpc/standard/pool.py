"""The descriptor pool for our messages. protobuf's global pool holds only one `inference` package,
so with a pool of its own, a process that serves can also use Triton's client."""

from google.protobuf import descriptor_pool

_POOL = descriptor_pool.DescriptorPool()


def Default() -> descriptor_pool.DescriptorPool:  # the generated code calls it so
    return _POOL
