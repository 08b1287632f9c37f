"""The laboratory: workloads, a simulator and an oracle around the production scheduler."""
