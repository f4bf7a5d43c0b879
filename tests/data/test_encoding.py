import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from unseen.data import Column, DataSet
from unseen.data.tables.column_statistics import client_statistics, merge_statistics
from unseen.data.tables.encoding import TableEncoding, encode, fit_encoding
from unseen.errors import UnseenError, UsageError

NAN = np.nan


def table(inputs, columns, *, targets=None, domains=None) -> DataSet:
    """A raw table; a regression if it has targets, of one domain unless told otherwise."""
    raw = np.array(inputs, dtype=np.float32)
    domain_of = np.zeros(len(raw), dtype=np.int64) if domains is None else np.array(domains)
    return DataSet(
        name="toy",
        task="classification" if targets is None else "regression",
        inputs=raw,
        targets=np.arange(len(raw)) % 2 if targets is None else np.array(targets, dtype=np.float32),
        domain_of=domain_of,
        domains=tuple(f"d{i}" for i in range(domain_of.max() + 1)),
        classes=("u", "v") if targets is None else (),
        columns=columns,
    )


def fit(data, *clients, **options):
    return fit_encoding(data, [np.array(rows) for rows in clients or [range(len(data))]], **options)


numbers = st.floats(-1000, 1000, width=32) | st.just(NAN)
raw_tables = npst.array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=12).flatmap(
    lambda shape: npst.arrays(np.float32, shape, elements=numbers)
)


@settings(max_examples=60)
@given(raw_tables, st.integers(1, 4), st.floats(-1e4, 1e4, width=32))
def test_encoding_equals_pooled_numpy(raw, clients, level):
    raw = (raw + np.float32(level)).astype(np.float32)
    raw[0] = 1.0
    data = table(raw, tuple(Column(f"x{i}") for i in range(raw.shape[1])), targets=np.arange(len(raw)))
    encoding = fit(data, *np.array_split(np.random.default_rng(0).permutation(len(raw)), clients))
    pooled = raw.astype(np.float64)
    mean, std = np.nanmean(pooled, axis=0), np.nanstd(pooled, axis=0)
    std = np.where(std > 0, std, 1)
    flagged = np.isnan(pooled).any(axis=0)
    expected = []
    for i in range(raw.shape[1]):
        expected.append(np.nan_to_num((pooled[:, i] - mean[i]) / std[i]))
        if flagged[i]:
            expected.append(np.isnan(pooled[:, i]))
    np.testing.assert_allclose(encoding.apply(raw), np.column_stack(expected), rtol=1e-5, atol=1e-6)
    assert encoding.target_mean == pytest.approx(data.targets.mean())
    assert encoding.target_std == pytest.approx(data.targets.std())


@given(raw_tables, st.integers(1, 5))
def test_merged_statistics_are_those_of_the_pooled_rows(raw, clients):
    raw = np.column_stack([raw, np.arange(len(raw)) % 3])
    columns = (*(Column(f"x{i}") for i in range(raw.shape[1] - 1)), Column("c", ("p", "q", "r")))
    data = table(raw, columns, targets=raw[:, -1])
    parts = [client_statistics(data, rows) for rows in np.array_split(np.arange(len(raw)), clients)]
    merged, pooled = merge_statistics(parts), client_statistics(data, np.arange(len(raw)))
    assert merged.keys() == pooled.keys()
    for key in pooled:
        np.testing.assert_allclose(merged[key], pooled[key], rtol=1e-9, atol=1e-6)
    assert pooled["levels:c"].sum() == len(raw)


def mixed_table(held_out) -> DataSet:
    """Two source domains and the given rows of a third."""
    sources = [[1, 0, 5], [2, 1, NAN], [3, NAN, 7], [6, 0, 9]]
    columns = (Column("x"), Column("colour", ("blue", "green", "red")), Column("y"))
    domains = [0, 0, 1, 1] + [2] * len(held_out)
    return table(
        sources + held_out, columns, targets=[1.0, 3.0, 5.0, 7.0] + [100.0] * len(held_out), domains=domains
    )


@pytest.mark.parametrize("statistics", ["federated", "local"])
def test_the_held_out_domain_changes_nothing_for_the_sources(statistics):
    one, other = mixed_table([[4, 1, 5]]), mixed_table([[-1e30, 2, NAN], [NAN, NAN, 1e30], [0, 2, 0]])
    fitted = [fit(data, [0, 1], [2, 3], statistics=statistics) for data in (one, other)]
    assert fitted[0] == fitted[1]
    encoded = [encode(data, encoding) for data, encoding in zip((one, other), fitted, strict=True)]
    assert (encoded[0].inputs[:4] == encoded[1].inputs[:4]).all()
    assert (encoded[0].targets[:4] == encoded[1].targets[:4]).all()
    assert np.isfinite(encoded[1].inputs).all()


def test_federated_encoding_by_hand():
    data = mixed_table([[3, 2, NAN]])
    encoding = fit(data, [0, 1], [2, 3])
    assert encoding.feature_names == ("x", "colour=blue", "colour=green", "colour=other", "y", "y is missing")
    x, y = np.std([1, 2, 3, 6]), np.std([5, 7, 9])
    expected = [
        [-2 / x, 1, 0, 0, -2 / y, 0],
        [-1 / x, 0, 1, 0, 0, 1],
        [0, 0, 0, 1, 0, 0],
        [3 / x, 1, 0, 0, 2 / y, 0],
        [0, 0, 0, 1, 0, 1],
    ]
    encoded = encode(data, encoding)
    np.testing.assert_allclose(encoded.inputs, expected, rtol=1e-6)
    assert encoding.target_mean == 4.0
    np.testing.assert_allclose(encoded.targets, (data.targets - 4) / np.sqrt(5), rtol=1e-6)
    assert encoded.columns == ()
    assert encoded.input_shape == (6,)
    assert encoded.fingerprint == data.fingerprint
    assert "clients' sums" in encoded.notes[-1]


def test_local_encoding_scales_every_domain_by_itself():
    data = mixed_table([[10, 0, NAN], [30, 1, NAN]])
    encoding = fit(data, [0, 1], [2, 3], statistics="local")
    encoded = encode(data, encoding)
    names = encoding.feature_names
    np.testing.assert_allclose(encoded.inputs[:, names.index("x")], [-1, 1, -1, 1, -1, 1], rtol=1e-6)
    np.testing.assert_allclose(encoded.inputs[:, names.index("y")], [0, 0, -1, 1, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(encoded.targets[:4], (data.targets[:4] - 4) / np.sqrt(5), rtol=1e-6)
    assert "own inputs" in encoded.notes[-1]


def test_rows_outside_the_clients_have_no_say():
    data = table([[1.0], [3.0], [1000.0], [NAN]], (Column("x"),))
    encoding = fit(data, [0], [1])
    assert encoding.means == (2.0,)
    assert encoding.stds == (1.0,)
    assert encoding.flagged == (False,)
    assert encoding.apply(data.inputs)[:, 0].tolist() == [-1, 1, 998, 0]


def test_constant_columns_become_zero():
    data = table([[0.1, 0], [0.1, 0], [0.1, 0]], (Column("x"), Column("zero")))
    encoding = fit(data, [0], [1, 2])
    assert encoding.stds == (1.0, 1.0)
    assert np.abs(encoding.apply(data.inputs)).max() < 1e-7


def test_small_differences_of_large_values_survive():
    values = np.float32(2**24) + np.arange(4, dtype=np.float32) * 2
    data = table(np.repeat(values, 500)[:, None], (Column("x"),))
    encoding = fit(data, *np.array_split(np.arange(2000), 7))
    assert encoding.stds[0] == pytest.approx(np.repeat(values, 500).astype(np.float64).std(), rel=1e-12)


def test_columns_without_a_source_value_become_no_feature():
    data = table([[1, NAN, NAN], [2, NAN, NAN], [3, 4, 0]], (Column("x"), Column("y"), Column("c", ("p",))))
    encoding = fit(data, [0], [1])
    assert encoding.feature_names == ("x",)
    assert encoding.apply(data.inputs).shape == (3, 1)
    with pytest.raises(UnseenError, match="no value in any column"):
        fit(table([[NAN], [NAN]], (Column("x"),)))


def test_broken_values_stay_finite():
    data = table([[1e-30], [2e-30]], (Column("x"),))
    encoded = fit(data).apply(np.array([[1e30], [-1e30], [np.inf], [NAN]], dtype=np.float32))
    assert encoded[:, 0].tolist() == [1e6, -1e6, 0, 0]


@pytest.mark.parametrize("statistics", ["federated", "local"])
def test_round_trip_through_json(statistics):
    encoding = fit(mixed_table([[1, 1, 1]]), [0, 1], [2, 3], statistics=statistics)
    assert TableEncoding.from_dict(json.loads(json.dumps(encoding.to_dict()))) == encoding
    assert TableEncoding.from_dict(encoding.to_dict()) == encoding


def test_another_table_is_matched_by_names():
    encoding = fit(mixed_table([[1, 2, 1]]), [0, 1], [2, 3])
    columns = (Column("more"), Column("y"), Column("colour", ("green", "pink")), Column("x"))
    other = table([[0, 7, 0, 3], [0, 7, 1, 3], [0, 7, NAN, 3]], columns, targets=[4, 4, 4])
    encoded = encode(other, encoding).inputs
    np.testing.assert_allclose(
        encoded, [[0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0]], atol=1e-7
    )
    with pytest.raises(UsageError, match="'colour'"):
        encode(replace(other, columns=(*columns[:2], Column("color"), columns[3])), encoding)
    with pytest.raises(UnseenError, match="'colour' holds numbers; the encoding expects text"):
        encode(replace(other, columns=(*columns[:2], Column("colour"), columns[3])), encoding)


def test_wrong_use_is_refused():
    data = mixed_table([[1, 1, 1]])
    with pytest.raises(UsageError, match="Did you mean 'local'"):
        fit(data, statistics="locl")
    with pytest.raises(ValueError, match="not a raw table"):
        fit(encode(data, fit(data)))
    with pytest.raises(ValueError, match=r"expected \(rows, 3\)"):
        fit(data).apply(np.zeros((2, 2)))
