"""Secret sharing: enough shares give the secret back, fewer leave it open, wrong ones are noticed."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unseen.privacy.secagg.shamir import PRIME, SECRET_BYTES, join, split


@given(secret=st.binary(min_size=32, max_size=32), data=st.data())
def test_any_so_many_shares_give_the_secret(secret, data):
    shares = data.draw(st.integers(1, 12))
    threshold = data.draw(st.integers(1, shares))
    dealt = split(secret, threshold=threshold, shares=shares, random=os.urandom)
    places = data.draw(st.permutations(range(1, shares + 1)))
    assert join({place: dealt[place - 1] for place in places[:threshold]}) == secret


def test_fewer_shares_fit_every_secret():
    """For any other secret there is a missing share that would give it: the two known ones tell nothing."""
    dealt = split(bytes(31) + b"\x07", threshold=3, shares=3, random=os.urandom)
    for other in (0, 1, 12345, 2**255):
        first, second = (int.from_bytes(share, "big") for share in dealt[:2])
        missing = (other - 3 * first + 3 * second) % PRIME
        shares = {1: dealt[0], 2: dealt[1], 3: missing.to_bytes(66, "big")}
        assert int.from_bytes(join(shares), "big") == other


def test_too_few_or_foreign_shares_are_noticed():
    one = split(os.urandom(32), threshold=3, shares=5, random=os.urandom)
    other = split(os.urandom(32), threshold=3, shares=5, random=os.urandom)
    with pytest.raises(ValueError, match="do not belong"):
        join({1: one[0], 2: one[1]})
    with pytest.raises(ValueError, match="do not belong"):
        join({1: one[0], 2: one[1], 3: other[2]})


def test_impossible_requests_are_refused():
    with pytest.raises(ValueError, match="cannot be needed"):
        split(bytes(SECRET_BYTES), threshold=4, shares=3, random=os.urandom)
    with pytest.raises(ValueError, match="32 bytes"):
        split(b"short", threshold=1, shares=3, random=os.urandom)
