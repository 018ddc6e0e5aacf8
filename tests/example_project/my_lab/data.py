"""Steps of ``dataset.map``: row -> row, or None to leave it out.

They run once; the result is cached under a hash of their code.
"""

import itertools


def needs_work(row, fewest: int = 1):
    """Rows whose digits are not in order yet, with a column that says how far they are from it."""
    digits = row["digits"].split()
    swaps = sum(first > second for first, second in itertools.combinations(digits, 2))
    return row | {"swaps": swaps} if swaps >= fewest else None
