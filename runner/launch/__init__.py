"""From runs to processes: their plan, the processes that train them, and the launchers that say where.

axis      the overrides of a sweep -> the words of each key, and their values
stages    overrides -> the runs that they mean: an experiment in several stages, and references to other runs
grid      those of a sweep -> the runs of each of its jobs, which are composed once where only numbers differ
plan      jobs -> the runs that they need, each once, and how far they are
pool      a process for each run, several at a time
start     overrides -> runs that are checked and started: one here, several in a pool, or by a plugin of Hydra's
local     the processes of one run on this machine, ``accelerate`` on one of several; README.md: what a launcher is
queue     runs in the queue of a cluster, each once: those of ``slurm`` and ``ray``
worker    one process: its lock, its log, its state and its exit code; ``python -m runner.launch <folder>`` starts it

There is no database: a run knows by its folder whether it is finished, so the same command again does what is left.
"""
