"""Attacks on a finished run, to see what its updates and its model give away."""

from unseen.audit.audit import AuditPlan, audit_run

__all__ = ["AuditPlan", "audit_run"]
