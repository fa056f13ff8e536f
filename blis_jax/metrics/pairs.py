"""Counting pairs without looking at each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Int


def count_pairs_above(
    earlier: Int[np.ndarray, "member"],
    later: Int[np.ndarray, "member"],
    group: Int[np.ndarray, "member"],
) -> int:
    """Counts i < j of one group with earlier[i] > later[j]; members of a group lie together.

    Merge counting over all groups at once: every pair is split by exactly one pair of sibling
    blocks of 1, 2, 4, … members, where one binary search counts it.
    """
    size = len(group)
    if size < 2:
        return 0
    starts = np.flatnonzero(np.diff(group, prepend=group[0] - 1))
    lengths = np.diff(starts, append=size)
    position = np.arange(size) - np.repeat(starts, lengths)
    group_number = np.repeat(np.arange(len(starts)), lengths)
    ranks = np.unique(np.concatenate([earlier, later]), return_inverse=True)[1].astype(np.int64)
    rank_earlier, rank_later = ranks[:size], ranks[size:]
    num_ranks = int(ranks.max()) + 1
    count = 0
    for level in range(int(lengths.max() - 1).bit_length()):
        half = position >> level
        is_left = half & 1 == 0
        family = (group_number * size + (half >> 1)) * num_ranks
        left = np.sort((family + rank_earlier)[is_left])
        later_family = family[~is_left]
        above = np.searchsorted(left, later_family + rank_later[~is_left], side="right")
        count += int((np.searchsorted(left, later_family + num_ranks) - above).sum())
    return count
