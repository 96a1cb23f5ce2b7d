"""A mean and how sure it is, where what comes from one game hangs together."""

import numpy as np


def mean_and_error(values: np.ndarray, games: np.ndarray) -> tuple[float, float]:
    """Mean of values [k], and its standard error when only the games they come from [k] are independent.

    Neighbouring frames err alike, so counting them as independent would make any difference look sure.
    Games are taken as clusters of unequal size and the mean as the ratio of two totals, whose error comes
    from how far each game's total is from what the mean says of it. nan where there is nothing to tell.
    """
    _, game = np.unique(games, return_inverse=True)
    total, count = np.bincount(game, values), np.bincount(game)
    if not len(count):
        return float("nan"), float("nan")
    mean = total.sum() / count.sum()
    if len(count) == 1:
        return float(mean), float("nan")
    spread = np.square(total - mean * count).sum() * len(count) / (len(count) - 1)
    return float(mean), float(np.sqrt(spread) / count.sum())
