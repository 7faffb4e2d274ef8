"""The independent recount of a run's account, and the repair of its journal.

In: a run's folder. Out: counts and findings; a journal without what cannot be used. It shares no
code with the coordinator or the account that it checks.
"""

from storage.audit.findings import Finding
from storage.audit.repair import RepairReport, repair
from storage.audit.run_audit import AuditReport, audit_run

__all__ = ["AuditReport", "Finding", "RepairReport", "audit_run", "repair"]
