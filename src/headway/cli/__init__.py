"""The `headway` command. The only place that wires the parts together."""
