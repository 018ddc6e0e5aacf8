"""From runs to processes.

axis      the overrides of a sweep -> those of each of its jobs
stages    overrides -> the runs that they mean: an experiment in several stages, and references to other runs
plan      jobs -> the runs that they need, each once
pool      a process for each run, several at a time; ``progress`` shows how far they are
start     overrides -> runs that are checked and started: one here, several in a pool, or by a plugin
plugin    the same by one of Hydra's own sweepers and launchers
local     the processes of one run on this machine: an option of ``conf/launcher/``
worker    one process: its lock, its log, its state and its exit code; ``python -m runner.launch <folder>`` starts it

There is no database: a run knows by its folder whether it is finished, so the same command again does what is left.
What a run is, and how it trains, is not here.
"""
