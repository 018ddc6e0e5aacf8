"""From runs to processes: their plan, the processes that train them, and the launchers.

compose      overrides -> the checked runs that they mean: stages, sweeps, references
plan         jobs -> the runs that they need, each once, and the states of their folders
start_runs   composed runs, or a sweep -> started: here, in a pool, in a queue
notes        the notes on runs that are about to start
hydra_plugin a sweep that a plugin of Hydra's runs
ends         the end of a command: reports, and how many runs have finished
pool         a process for each run, several at a time; ``pool_settings`` has its keys
warming      the libraries of runs, imported once for all processes
progress     how far the runs of a pool or a queue are, as it is printed
queue        runs in the queue of a cluster, each once: those of ``slurm`` and ``ray``
local        the processes of one run on this machine, ``accelerate`` on one of several machines
by_launcher  one run, by its launcher
worker       one process: its lock, its state, its exit code; ``python -m runner.launch <folder>``
signals      the signals that ask a process to stop
processes    how processes are started, and how they ended
run_log      the log of a run
explain      an exception of a run -> the error that its user sees

README.md says what a launcher is. There is no database: a run knows by its folder whether it is
finished, so the same command again does what is left.
"""
