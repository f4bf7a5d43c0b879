"""Objectives of centralized domain generalization, for clients that hold samples of several domains."""

from unseen.methods.domain_objectives.feature_objectives import CORAL, MMD
from unseen.methods.domain_objectives.fish import Fish
from unseen.methods.domain_objectives.risk_objectives import IRM, GroupDRODomains, VRExDomains

__all__ = ["CORAL", "IRM", "MMD", "Fish", "GroupDRODomains", "VRExDomains"]
