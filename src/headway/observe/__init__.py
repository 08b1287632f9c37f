"""Metrics, traces and logs, made from the runtime's events. Observes only; never acts."""
