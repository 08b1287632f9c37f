"""A Ray of this machine, whose workers find the test's models."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def local_ray(folder: Path, *, num_cpus: int) -> Iterator[None]:
    """Ray's workers import what is in `folder`. Serve is stopped, too."""
    import ray
    from ray import serve

    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{before}"
    try:
        ray.init(
            address="local",
            num_cpus=num_cpus,
            include_dashboard=False,
            object_store_memory=100 * 2**20,
        )
        try:
            yield
        finally:
            serve.shutdown()
            ray.shutdown()
    finally:
        os.environ["PYTHONPATH"] = before
