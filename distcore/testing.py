"""For tests of programs on `tcp`: faults on the connections of groups (`inject`)."""

from .transports.fault_plan import Fault, FaultPlan, Injection, Kind
from .transports.faulty import inject

__all__ = ["Fault", "FaultPlan", "Injection", "Kind", "inject"]
