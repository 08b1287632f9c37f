"""What a batch takes, and what follows from it: which sizes are worth running."""

from headway.core.costs.costs import Costs
from headway.core.costs.probing import next_probe, probe_order, probe_rows
from headway.core.costs.sizes import size_class
from headway.core.costs.table import CostTable

__all__ = ["CostTable", "Costs", "next_probe", "probe_order", "probe_rows", "size_class"]
