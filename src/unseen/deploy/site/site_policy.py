"""The site's own rules: `policy.toml` in its home, read for every message and checked before any work.

Without the file the defaults hold, which are the same as those that `unseen join` writes. A file that cannot
be read, or has a key or type that is not known, stops the site: it never falls back to something else.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unseen.errors import UnseenError
from unseen.evaluation.selection import VALIDATION_DOMAIN
from unseen.printable import quote

if TYPE_CHECKING:
    from unseen.config import RunConfig
    from unseen.methods import Method
    from unseen.privacy import Protection
    from unseen.training import LocalTrainingConfig

POLICY = "policy.toml"
SPLITS = ("train", "validation", VALIDATION_DOMAIN, "test", "target")
ANY: tuple[str, ...] = ()


class PolicyRefusalError(UnseenError):
    """A request that the site's policy does not allow; the reason goes to the coordinator and the log."""


@dataclass(frozen=True)
class NoisePolicy:
    """Rules for jobs with differential privacy.

    min_noise    the smallest noise multiplier
    max_clip     the largest clipping norm
    max_epsilon  the largest epsilon of one job
    """

    min_noise: float = 0.3
    max_clip: float = 1000.0
    max_epsilon: float = 20.0


@dataclass(frozen=True)
class BudgetPolicy:
    """The largest epsilon that all runs together may spend at this site, at `delta`; inf: no limit."""

    epsilon: float = math.inf
    delta: float = 1e-5


@dataclass(frozen=True)
class JudgePolicy:
    """Rules for jobs that only evaluate (`unseen judge`).

    allow           whether they may run
    onnx            whether ONNX files may run, which onnxruntime executes as they are
    target_columns  columns of a table that a job may take for the target: it learns their texts, and how
                    often a model of its choice predicts each; here an empty list allows none
    group_columns   columns of a table whose texts may name groups; here an empty list allows none
    """

    allow: bool = False
    onnx: bool = False
    target_columns: tuple[str, ...] = ("target",)
    group_columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class SitePolicy:
    """What a site allows; an empty list allows everything of its kind, except for `group_patterns`.

    methods      names of the methods that may run
    values       kinds of values that may leave, as `unseen list methods NAME` shows them
    samples      whether single samples may leave: the samples themselves, their labels, values of each
    protections  of these, a job must use at least one
    evaluate     splits on which the model may be evaluated
    min_group    the smallest group: of a class's samples in the census, of an evaluated split, of a client's
                 training samples, of the samples behind one update, of the rows behind a sum of a table
    max_rounds   the largest number of rounds of a job
    confirm      whether a person at the site must approve every job

    group_patterns  regular expressions that jobs may apply to file names; here an empty list allows none,
                    since a hostile expression can keep a site busy for ever
    """

    methods: tuple[str, ...] = ANY
    values: tuple[str, ...] = ANY
    samples: bool = False
    protections: tuple[str, ...] = ANY
    evaluate: tuple[str, ...] = SPLITS[1:]
    min_group: int = 5
    max_rounds: int = 1000
    confirm: bool = False
    group_patterns: tuple[str, ...] = ()
    noise: NoisePolicy = field(default_factory=NoisePolicy)
    privacy: BudgetPolicy = field(default_factory=BudgetPolicy)
    judge: JudgePolicy = field(default_factory=JudgePolicy)

    def check_job(self, config: RunConfig) -> None:
        """Refuse a job whose method, values, protection or number of rounds is not allowed."""
        from unseen.methods.closed_form.starting_head import make_starting_head
        from unseen.runner.prepare import check_names

        method, protection = check_names(config)
        if self.methods and config.method not in self.methods:
            raise _refusal(f"method {config.method!r}", "methods", self.methods)
        if config.rounds > self.max_rounds:
            raise _refusal(f"{config.rounds} rounds", "max_rounds", self.max_rounds)
        if config.group_pattern and config.group_pattern not in self.group_patterns:
            raise PolicyRefusalError(
                f"refused by the site's policy: the group pattern {quote(config.group_pattern)}, which it "
                f"must list first ({POLICY}: group_patterns)"
            )
        self._check_values(method, protection)
        if (head := make_starting_head(config.head, method)) is not None:
            self.check_kinds(head.traits.sends)
        self._check_protections(config.protect, protection)

    def _check_values(self, method: Method[Any], protection: Protection[Any]) -> None:
        if method.topology == "pooled":
            raise PolicyRefusalError(
                f"refused by the site: method {method.name!r} pools all data, which never leaves"
            )
        single = [kind for kind in method.of_single_samples if kind in method.sends]
        if single and not self.samples:
            raise PolicyRefusalError(
                f"refused by the site's policy: method {method.name!r} sends {' and '.join(single)}, and "
                f"nothing of single samples may leave ({POLICY}: samples = false)"
            )
        self.check_kinds((*method.sends, *protection.sends))

    def check_kinds(self, kinds: Sequence[str]) -> None:
        """Refuse a job that would have values of other kinds leave."""
        refused = [kind for kind in kinds if self.values and kind not in self.values]
        if refused:
            raise _refusal(f"sending {refused[0]!r}", "values", self.values)

    def _check_protections(self, named: str, protection: Protection[Any]) -> None:
        if self.protections and not set(self.protections) & set(protection_names(named)):
            raise _refusal(f"protection {named!r}", "protections", self.protections)
        for settings in noise_settings(protection):
            if settings.noise_seed != "secret":
                raise PolicyRefusalError(
                    "refused by the site: noise_seed=run is noise that the coordinator can compute; "
                    "only noise from the site's own secret is added here"
                )
            if settings.noise is not None and settings.noise < self.noise.min_noise:
                raise _refusal(f"noise {settings.noise:g}", "[noise] min_noise", self.noise.min_noise)
            if settings.clip > self.noise.max_clip:
                raise _refusal(f"clip {settings.clip:g}", "[noise] max_clip", self.noise.max_clip)
            if settings.epsilon is not None:
                self.check_epsilon(settings.epsilon)

    def check_noise(
        self, protection: Protection[Any], plan: LocalTrainingConfig, *, samples: int, rounds: int
    ) -> None:
        """Refuse a job whose noise would not keep a client's samples within the largest epsilon.

        It is computed at the site's own delta if the job's is larger, which would make epsilon look smaller.
        """
        deltas = [settings.tolerated for settings in noise_settings(protection)]
        epsilon = protection.planned_epsilon(
            samples=samples, plan=plan, rounds=rounds, delta=min([self.privacy.delta, *deltas])
        )
        if epsilon is not None:
            self.check_epsilon(epsilon)

    def check_epsilon(self, epsilon: float) -> None:
        """Refuse a job that would spend more than one job may."""
        if not epsilon <= self.noise.max_epsilon:
            raise _refusal(f"epsilon {epsilon:.3g}", "[noise] max_epsilon", self.noise.max_epsilon)

    def check_training(self, *, samples: int, seen: int) -> None:
        """Refuse to train a client that has, or would use, too few samples.

        samples  its training samples
        seen     how many of them one update rests on
        """
        if samples < self.min_group:
            raise _refusal("a client with fewer training samples", "min_group", self.min_group)
        if seen < self.min_group:
            raise _refusal(f"an update from {seen} samples", "min_group", self.min_group)

    def check_evaluation(self, sizes: Mapping[str, int]) -> None:
        """Refuse to evaluate on splits that are not allowed or too small.

        sizes  number of samples by split
        """
        for split, size in sizes.items():
            if split not in self.evaluate:
                raise _refusal(f"evaluation on the split {quote(split)}", "evaluate", self.evaluate)
            if 0 < size < self.min_group:
                raise _refusal(
                    f"evaluation on a split {split!r} with fewer samples", "min_group", self.min_group
                )


def _refusal(what: str, key: str, allowed: object) -> PolicyRefusalError:
    listed = ", ".join(allowed) if isinstance(allowed, tuple) else allowed
    return PolicyRefusalError(f"refused by the site's policy: {what} ({POLICY}: {key} = {listed})")


def protection_names(named: str) -> tuple[str, ...]:
    """Split the name of a combination of protections."""
    return tuple(part.strip() for part in named.split(","))


def noise_settings(protection: Protection[Any]) -> list[Any]:
    """Collect the settings of differential privacy in a protection or in the parts of a combination."""
    from unseen.privacy.dp.dp_settings import DPSettings

    parts: Sequence[Protection[Any]] = getattr(protection, "parts", ()) or (protection,)
    return [part.settings for part in parts if isinstance(part.settings, DPSettings)]


# reading and writing


def read_policy(home: Path) -> SitePolicy:
    """Read the policy of a site's home; the defaults if there is no file."""
    path = home / POLICY
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return SitePolicy()
    except OSError as error:
        raise UnseenError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UnseenError(f"{path} is not valid TOML ({error}); correct it, or move it away") from error
    tables = {"noise": NoisePolicy, "privacy": BudgetPolicy, "judge": JudgePolicy}
    found: dict[str, Any] = {
        name: _read_table(kind, values.pop(name, {}), place=f"{path}: [{name}]")
        for name, kind in tables.items()
    }
    policy: SitePolicy = _read_table(SitePolicy, values, place=str(path), known=found)
    unknown = [split for split in policy.evaluate if split not in SPLITS]
    if unknown:
        raise UnseenError(f"{path}: evaluate names no split {unknown[0]!r}; known: {', '.join(SPLITS)}")
    return policy


def _read_table(
    kind: type[Any], values: object, *, place: str, known: Mapping[str, Any] | None = None
) -> Any:
    """Build a dataclass from a table whose keys and types must be those of its fields."""
    if not isinstance(values, dict):
        raise UnseenError(f"{place} must be a table, not {quote(values)}")
    defaults = kind()
    names = [item.name for item in fields(kind) if item.name not in (known or {})]
    for key in values:
        if key not in names:
            raise UnseenError(f"{place} has an unknown key {quote(key)}; known: {', '.join(names)}")
    read = {
        key: _read_value(getattr(defaults, key), value, f"{place}: {key}") for key, value in values.items()
    }
    return kind(**read, **(known or {}))


def _read_value(default: object, value: object, place: str) -> object:
    """Check a value against the type of its default."""
    if isinstance(default, tuple):
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise UnseenError(f'{place} must be a list of names such as ["fedavg"], not {quote(value)}')
    if isinstance(default, bool) or isinstance(value, bool):
        if isinstance(default, bool) and isinstance(value, bool):
            return value
        raise UnseenError(f"{place} must be {_kind_of(default)}, not {quote(value)}")
    if isinstance(default, int) and isinstance(value, int) and value >= 1:
        return value
    if isinstance(default, float) and isinstance(value, int | float) and value > 0:
        return float(value)
    raise UnseenError(f"{place} must be {_kind_of(default)}, not {quote(value)}")


def _kind_of(default: object) -> str:
    if isinstance(default, bool):
        return "true or false"
    return "a whole number from 1" if isinstance(default, int) else "a number above 0"


TEMPLATE = f"""\
# What this site allows. It is read for every message: a change holds from the next one on. What is not
# allowed is refused, with the reason, to the coordinator and in this site's log. An empty list allows all.

# Methods that may run here, such as ["fedavg", "fedprox"].
methods = []

# Kinds of values that may leave, as `unseen list methods NAME` shows them, such as
# ["model weights", "number of samples"]. A refusal names the kind.
values = []

# Whether anything of single samples may leave: samples, labels, spectra of images.
samples = false

# Protections of which a job must use at least one, such as ["secure-sum", "dp-samples"].
protections = []

# Splits on which the model may be evaluated; "train" is not among them.
evaluate = ["validation", "{VALIDATION_DOMAIN}", "test", "target"]

# The smallest group. Classes with fewer samples take no part: they are neither counted nor trained on.
# Smaller splits are not evaluated, and no update rests on fewer samples. In tables, a text that fewer rows
# have is neither named nor counted, and a column with fewer values is not summed.
min_group = 5

# The largest number of rounds of one job.
max_rounds = 1000

# Whether every job waits until a person here runs `unseen approve RUN`.
confirm = false

# Regular expressions that a job may apply to file names (`--group-pattern`), such as ['^(p[0-9]+)_']; none
# unless listed here, since a hostile one can keep this site busy for ever.
group_patterns = []

# For jobs with differential privacy. Noise that the coordinator could compute is always refused.
[noise]
min_noise = 0.3
max_clip = 1000.0
max_epsilon = 20.0

# What all jobs together may spend at this site; no limit without `epsilon`.
[privacy]
# epsilon = 8.0
delta = 1e-5

# Jobs that only evaluate a finished model on all samples here (`unseen judge`) and send metrics. They need
# "target" in `evaluate` above. An ONNX file is run as it comes, by onnxruntime. Of a table, `target_columns`
# are those that a model may be judged on; `group_columns` those whose texts may name groups for tables of
# subgroups, such as ["sex"]. None but those that are listed.
[judge]
allow = false
onnx = false
target_columns = ["target"]
group_columns = []
"""


def write_policy(home: Path) -> Path:
    """Write the default policy, unless the home has one."""
    from unseen.fileio import write_text

    path = home / POLICY
    if not path.exists():
        write_text(path, TEMPLATE)
    return path
