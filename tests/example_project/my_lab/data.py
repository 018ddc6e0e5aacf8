"""Steps of ``dataset.map``: row -> row, or None to leave it out. They run once, and are cached by their code."""


def needs_work(row, fewest: int = 1):
    """Rows whose digits are not in order yet, with a column that says how far they are from it."""
    digits = row["digits"].split()
    swaps = sum(
        digits[i] > digits[j] for i in range(len(digits)) for j in range(i + 1, len(digits))
    )
    return row | {"swaps": swaps} if swaps >= fewest else None
