"""Rows: from files or the hub (``load``), several sources at once (``mix``), in any trainer's form.

A dataset knows no model and no trainer; it is given the form that the trainer takes.
"""

LOADER = "runner.dataset.load.load_rows"
