"""Overrides -> the checked runs that they mean; nothing is started here.

sweep_axes         the overrides of a sweep -> the values of each key, and what they combine to
stages             the overrides of a job -> its runs, one or one for each stage
staged_experiment  an experiment that lists stages, with what was typed for each
references         ``${run:...}`` -> the folder of a model that another run leaves
grid               a sweep -> the runs of its jobs, composed once where only numbers differ
"""
