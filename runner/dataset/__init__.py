"""Rows: from files or the hub (``load``), several sources at once (``mix``), in any trainer's form.

A dataset knows no model and no trainer; it is told the form that the trainer eats.
"""
