"""Headway on Ray: `deployment` for Ray Serve. Needs `headway[ray]`."""

from headway.ray.serving import deployment

__all__ = ["deployment"]
