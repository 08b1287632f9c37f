"""Where our messages are registered: not in protobuf's global pool, which holds one `inference`
package only. So a process that serves can also use Triton's client, which has its own."""

from google.protobuf import descriptor_pool

_POOL = descriptor_pool.DescriptorPool()


def Default() -> descriptor_pool.DescriptorPool:  # the generated code calls it so
    return _POOL
