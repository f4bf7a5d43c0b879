"""Findings in plain words, for a reader who is responsible for the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from unseen.audit.attack import AttackResult
from unseen.audit.audit import Audit, ProtectionAudit
from unseen.audit.membership import Membership
from unseen.audit.reconstruction_score import CANDIDATES, CLOSER

WARNING = (
    "This page shows training images of the run, the originals and their reconstructions. Store it only "
    "where those images may be stored."
)


def attacks_of_kind(audited: ProtectionAudit, kind: str) -> list[AttackResult]:
    """Return the attacks of one kind."""
    return [found for found in audited.attacks if found.view.kind == kind]


class Count(NamedTuple):
    """Number of rebuilt images, of all images, and of images that chance would have found."""

    found: int
    total: int
    chance: int

    @property
    def telling(self) -> bool:
        """Whether more were rebuilt than by chance."""
        return self.found > self.chance

    def __str__(self) -> str:
        """Return the count for a sentence."""
        return f"{self.found} of {self.total}" + (f" (by chance {self.chance})" if self.chance else "")

    @property
    def aside(self) -> str:
        """Return the count for parentheses."""
        return f"{self.found} of {self.total}" + (f", by chance {self.chance}" if self.chance else "")


def count_rebuilt(attacks: Sequence[AttackResult]) -> Count:
    """Count rebuilt images over some attacks."""
    return Count(
        sum(attack.recognised for attack in attacks),
        sum(len(attack.reconstructions) for attack in attacks),
        sum(attack.by_chance for attack in attacks),
    )


def headline(audit: Audit) -> str:
    """Summarize in one sentence what the audit found for the run's own protection."""
    own = next((each for each in audit.audited if each.name == audit.config.protect), None)
    if own is None:
        return membership_finding(audit.membership)
    count = count_rebuilt(attacks_of_kind(own, "message"))
    how = "without protection" if own.name == "none" else f"with {own.name}"
    if count.telling:
        each = "one image" if audit.plan.images == 1 else f"{audit.plan.images} images"
        return f"Sent {how}, as in this run, updates from {each} reveal them: {count} were rebuilt"
    said = f"Sent {how}, as in this run, no client's own update revealed an image ({count.aside})"
    merged = count_rebuilt(attacks_of_kind(own, "merged"))
    return f"{said}, but the sum of so few did ({merged.aside})" if merged.telling else said


def protection_findings(audited: ProtectionAudit, *, images: int, in_round: int) -> list[str]:
    """Write one sentence on single messages and one on the merged model of the round."""
    said = []
    messages, merged = attacks_of_kind(audited, "message"), attacks_of_kind(audited, "merged")
    if messages:
        said.append(_message_words(messages))
    if merged:
        many = f"{in_round} clients with {images} image{'s' if images > 1 else ''} each"
        said.append(_merged_words(merged, many))
    return said


def _message_words(attacks: Sequence[AttackResult]) -> str:
    count = count_rebuilt(attacks)
    if count.telling:
        return (
            "Whoever runs the server can rebuild training images from one client's message: "
            f"{count} were rebuilt so that each identifies its original."
        )
    if attacks[0].view.readable:
        return f"From one client's message, as the server reads it, no image was rebuilt ({count.aside})."
    return (
        "Whoever runs the server cannot read one client's message. Read as numbers anyway, it revealed "
        f"no image ({count.aside})."
    )


def _merged_words(attacks: Sequence[AttackResult], many: str) -> str:
    count = count_rebuilt(attacks)
    if not count.telling:
        return f"From the merged model of the round ({many}) no image was rebuilt ({count.aside})."
    return (
        "Whoever sees the merged model of the round, the server and every client, can rebuild images, though "
        f"not tell whose they are ({count.aside}): a sum over {many} does not hide them all."
    )


def membership_finding(membership: Membership | None) -> str:
    """Describe whether the final model reveals which samples it was trained on."""
    if membership is None:
        return "No membership test: the sources kept no sample out of training"
    auc = membership.auc
    if auc.low <= 0.5:
        return (
            "From its losses, the final model does not reveal which samples it was trained on: the attack "
            f"was no better than guessing (AUC {auc.value:.3f}, 95 % interval {auc.low:.3f} to "
            f"{auc.high:.3f})"
        )
    degree = "slightly" if auc.value < 0.55 else "somewhat" if auc.value < 0.65 else "clearly"
    return (
        f"The final model {degree} reveals which samples it was trained on: a member looks more like one "
        f"than a sample that was kept out in {100 * auc.value:.0f} of 100 pairs (AUC {auc.value:.3f}, 95 % "
        f"interval {auc.low:.3f} to {auc.high:.3f}; guessing is 0.5)"
    )


def assumptions(audit: Audit) -> list[str]:
    """List what the attack was given, and what not."""
    plan, config = audit.plan, audit.config
    low, high = audit.samples
    size = str(low) if low == high else f"{low} to {high}"
    moment = "initial" if plan.at == "start" else "final"
    each = "one image" if plan.images == 1 else f"{plan.images} images"
    return [
        f"Every client of the round ({audit.in_round}) started from the run's {moment} weights, took one "
        f"plain step (learning rate {config.lr:g}) on {each} of its own training data, and sent its update "
        "through the real protection.",
        f"This is the worst case. In the run itself a client trains {config.local_epochs} epoch(s) per "
        f"round; clients have {size} training images. More images and steps hide a single image better; "
        "--images shows in part how much better.",
        "The attacker knows the network, the weights that were sent out, the learning rate and the number of "
        "images. It knows no image and no label; labels are inferred from the update.",
        f"An image counts as rebuilt if the reconstruction identifies its original among up to {CANDIDATES} "
        f"images of the same client, and its SSIM is at least {CLOSER:g} above that of the average image. "
        "The same count for images that are not in the update shows what is chance.",
        "That this attack failed does not prove that every attack would. What is proven, and under which "
        "conditions, is in the statement of each protection.",
    ]
