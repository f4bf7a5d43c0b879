"""Estimators for tables in the manner of scikit-learn: `fit(X, y, domains=...)`, then predict anywhere.

Rows of every domain train as a client of their own, with any method of Unseen. No domain is held out: to
judge the model on unseen domains, leave them out with scikit-learn, as in
`cross_val_score(estimator, X, y, groups=domains, cv=LeaveOneGroupOut(), params={"domains": domains})`.

What is drawn at random (weights, order of the samples, validation part) follows from `random_state` and the
names of the domains, never from a global generator: the same rows in the same order give the same model. In
another order they give another one, of the same kind. Predictions of a row do not depend on other rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from unseen.config import RunConfig
from unseen.data import Column, DataSet
from unseen.data.tables.encoding import TableEncoding
from unseen.data.tables.table_reader import finite
from unseen.evaluation.selection import LastRound, SourceValidation
from unseen.runner.run import run
from unseen.serving import SavedModel

Raw = npt.NDArray[np.float32]
_ONE_SOURCE, _NOTHING = "all rows", "nothing held out"


class _DomainGeneralization(BaseEstimator):  # type: ignore[misc]
    """What both estimators share; their parameters are options of `unseen train` under the same names.

    method        name of a method, see `unseen list methods`
    settings      its settings
    model         mlp if not given
    rounds        each trains every domain for `local_epochs` epochs
    lr, batch_size  of the clients; smaller domains make smaller batches
    validation    part of every domain that only selects the round; 0 trains on all rows and keeps the last
    random_state  seed of everything that is drawn
    options       further options of a run by name, such as {"momentum": 0.5}
    """

    def __init__(
        self,
        method: str = "fedavg",
        *,
        settings: Mapping[str, Any] | None = None,
        model: str | None = None,
        rounds: int = 10,
        local_epochs: int = 5,
        lr: float = 0.05,
        batch_size: int = 32,
        validation: float = 0.0,
        random_state: Any = 0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.method = method
        self.settings = settings
        self.model = model
        self.rounds = rounds
        self.local_epochs = local_epochs
        self.lr = lr
        self.batch_size = batch_size
        self.validation = validation
        self.random_state = random_state
        self.options = options

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _train(self, raw: Raw, columns: tuple[Column, ...], targets: Any, domains: Any, **about: Any) -> Self:
        """Train on raw rows; the model is kept in memory, and no folder is left."""
        if domains is None:
            domains = np.full(len(raw), _ONE_SOURCE)
        domains = column_or_1d(domains).astype(str)
        check_consistent_length(raw, domains)
        if len(raw) < 2:
            raise ValueError(f"n_samples = {len(raw)}: training needs two rows or more")
        names, domain_of = np.unique(domains, return_inverse=True)
        unused = _NOTHING
        while unused in names:
            unused += "_"
        # A run evaluates on a held-out domain; here that is a copy of one row, which nothing is learned from.
        data = DataSet(
            name="rows",
            inputs=np.concatenate([raw, raw[:1]]),
            targets=np.concatenate([targets, targets[:1]]),
            domain_of=np.append(domain_of, len(names)).astype(np.int64),
            domains=(*names.tolist(), unused),
            columns=columns,
            **about,
        )
        kept = int(np.bincount(domain_of).min() * (1 - self.validation))
        config = RunConfig.from_mapping(
            {
                "data": data.name,
                "hold_out": unused,
                "method": self.method,
                "settings": dict(self.settings or {}),
                "model": self.model,
                "rounds": self.rounds,
                "local_epochs": self.local_epochs,
                "lr": self.lr,
                "batch_size": max(min(self.batch_size, kept), 1),
                "validation": self.validation,
                "test": 0.0,
                "selection": SourceValidation.name if self.validation else LastRound.name,
                "evaluate_every": 1 if self.validation else self.rounds,
                "seed": self._seed(),
                "device": "cpu",
                "workers": 1,
                "threads": 1,
                **(self.options or {}),
            }
        )
        threads = torch.get_num_threads()
        try:
            with TemporaryDirectory(prefix="unseen-") as folder:
                trained = run(config, out=Path(folder) / "run", data=data, report=False).model
        finally:
            torch.set_num_threads(threads)
        self.model_ = replace(trained, network=trained.network.double())
        self.domains_ = names
        return self

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _outputs(self, X: Any) -> npt.NDArray[np.float64]:  # noqa: N803
        """Run rows through the network in float64, so that a row's result does not depend on the others."""
        check_is_fitted(self)
        saved: SavedModel = self.model_
        encoding = TableEncoding.from_dict(saved.card.encoding or {})
        raw = _read_known(self, X, encoding.columns)
        found: npt.NDArray[np.float64] = saved.outputs(torch.from_numpy(encoding.apply(raw)).double()).numpy()
        return found


class DomainGeneralizationClassifier(ClassifierMixin, _DomainGeneralization):  # type: ignore[misc]
    """Classifier of table rows, trained on several domains to work on others.

    Fitted: `classes_`, `domains_`, `n_features_in_`, `feature_names_in_` (of data frames), and `model_`,
    what `unseen.load_model` returns. Parameters are those of `_DomainGeneralization`.
    """

    def fit(self, X: Any, y: Any, domains: Any = None) -> Self:  # noqa: N803
        """Train; `domains` names each row's domain. Without it all rows are of one domain.

        Data frames may have columns of texts, which become categories. Missing values are filled.
        """
        raw, columns, y = _read_rows(self, X, y)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("y has one class only; a classifier needs two or more")
        return self._train(
            raw,
            columns,
            numbers.astype(np.int64),
            domains,
            task="classification",
            classes=tuple(f"{number}: {name}" for number, name in enumerate(self.classes_)),
        )

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:  # noqa: N803
        """Return one probability per row and class, in the order of `classes_`."""
        outputs = self._outputs(X)
        raised = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        chances: npt.NDArray[np.float64] = raised / raised.sum(axis=1, keepdims=True)
        return chances

    def predict(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """Return the likeliest class of each row."""
        likeliest = self._outputs(X).argmax(axis=1)
        found: npt.NDArray[Any] = self.classes_[likeliest]
        return found


class DomainGeneralizationRegressor(RegressorMixin, _DomainGeneralization):  # type: ignore[misc]
    """Regressor of table rows, trained on several domains to work on others.

    Fitted attributes and parameters are those of the classifier, without `classes_`.
    """

    def fit(self, X: Any, y: Any, domains: Any = None) -> Self:  # noqa: N803
        """Train; `domains` names each row's domain. Without it all rows are of one domain."""
        raw, columns, y = _read_rows(self, X, y, y_numeric=True)
        return self._train(raw, columns, np.asarray(y, dtype=np.float32), domains, task="regression")

    def predict(self, X: Any) -> npt.NDArray[np.float64]:  # noqa: N803
        """Return one value per row, in the unit of `y`."""
        return self._outputs(X)[:, 0]


def _read_rows(
    estimator: Any,
    X: Any,  # noqa: N803
    y: Any,
    **checks: Any,
) -> tuple[Raw, tuple[Column, ...], Any]:
    """Check rows and targets as scikit-learn does; texts in data frames become numbers of levels."""
    if not _has_texts(X):
        rows, y = validate_data(estimator, X, y, dtype=np.float64, ensure_all_finite="allow-nan", **checks)
        names = getattr(estimator, "feature_names_in_", [f"x{i}" for i in range(rows.shape[1])])
        return finite(rows)[0], tuple(Column(str(name)) for name in names), y
    validate_data(estimator, X, skip_check_array=True)
    check_consistent_length(X, y)
    y = column_or_1d(y, warn=True)
    columns, values = list[Column](), list[Raw]()
    for name in X.columns:
        numbers = _as_numbers(X[name])
        texts = {str(value) for value in X[name] if not _is_missing(value)} if numbers is None else None
        levels = None if texts is None else tuple(sorted(texts))
        columns.append(Column(str(name), levels))
        values.append(_level_numbers(X[name], levels) if numbers is None else finite(numbers)[0])
    return np.column_stack(values), tuple(columns), y


def _read_known(estimator: Any, X: Any, columns: tuple[Column, ...]) -> Raw:  # noqa: N803
    """Check rows for prediction: the columns of the training, levels numbered as there."""
    if all(column.levels is None for column in columns) and not _has_texts(X):
        rows = validate_data(estimator, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=False)
        return finite(rows)[0]
    validate_data(estimator, X, skip_check_array=True, reset=False)
    values = list[Raw]()
    for column in columns:
        if column.levels is not None:
            values.append(_level_numbers(X[column.name], column.levels))
            continue
        numbers = _as_numbers(X[column.name])
        if numbers is None:
            raise ValueError(f"column {column.name!r} has texts; the model was trained on numbers there")
        values.append(finite(numbers)[0])
    return np.column_stack(values)


def _has_texts(X: Any) -> bool:  # noqa: N803
    """Check whether this is a data frame with a column that is not of numbers."""
    is_frame = hasattr(X, "columns") and hasattr(X, "dtypes")
    return is_frame and any(_as_numbers(X[name]) is None for name in X.columns)


def _as_numbers(column: Any) -> npt.NDArray[np.float64] | None:
    """Read a column of a pandas or polars frame as numbers; None if it has texts."""
    array = np.asarray(column)
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    values = [np.nan if _is_missing(value) else value for value in array.tolist()]
    if any(isinstance(value, str) for value in values):
        return None
    return np.asarray(values, dtype=np.float64)


def _level_numbers(column: Any, levels: tuple[str, ...] | None) -> Raw:
    """Number texts by their levels; missing and unknown ones are NaN."""
    known = {name: number for number, name in enumerate(levels or ())}
    found = [np.nan if _is_missing(value) else known.get(str(value), np.nan) for value in column]
    return np.array(found, dtype=np.float32)


def _is_missing(value: Any) -> bool:
    """Check for None, NaN, and the missing value of pandas, which cannot be compared."""
    return (
        value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and math.isnan(value))
    )
