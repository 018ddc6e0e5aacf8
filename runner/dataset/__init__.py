"""Rows: from files or the hub (``load``), several sources at once (``mix``), in the form that a trainer takes."""

LOADER = "runner.dataset.load.load_rows"
