"""Where batches run: in the event loop, in threads, in processes of their own."""

import os

HAS_PROCESSES = hasattr(os, "pidfd_open") and hasattr(os, "memfd_create")
