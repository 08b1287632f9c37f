"""Headway on Ray: `deployment` for Ray Serve, `Predict` for Ray Data. Needs `headway[ray]`."""

from headway.ray.data import Predict
from headway.ray.serving import deployment

__all__ = ["Predict", "deployment"]
