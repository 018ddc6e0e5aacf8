"""Rows from files or the hub (``load``), also of several sources (``mix``), in a trainer's form."""

LOADER = "runner.dataset.load.load_rows"
