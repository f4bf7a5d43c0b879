"""Attacks on a finished run, to measure what its updates and its model reveal."""

from unseen.audit.audit import AuditPlan, audit_run

__all__ = ["AuditPlan", "audit_run"]
