"""For tests: conformance suites for transports and backends, ours and others', plain assertions
that run under any framework or none; and faults on the connections of groups (`inject`).
"""

from ..transports.fault_plan import Fault, FaultPlan, Injection, Kind
from ..transports.faulty import inject
from .conformance import check_backend, check_transport

__all__ = [
    "Fault",
    "FaultPlan",
    "Injection",
    "Kind",
    "check_backend",
    "check_transport",
    "inject",
]
