"""From runs to processes: their plan, the processes that train them, and the launchers that say where.

axis      the overrides of a sweep -> those of each of its jobs
stages    overrides -> the runs that they mean: an experiment in several stages, and references to other runs
plan      jobs -> the runs that they need, each once, and how far they are
pool      a process for each run, several at a time
start     overrides -> runs that are checked and started: one here, several in a pool, or by a plugin of Hydra's
local     the processes of one run on this machine: the one launcher so far
worker    one process: its lock, its log, its state and its exit code; ``python -m runner.launch <folder>`` starts it

There is no database: a run knows by its folder whether it is finished, so the same command again does what is left.
What a run is, and how it trains, is not here.

**A launcher** is a file ``conf/launcher/<name>.yaml`` and a module here with one function of its name. No other file
knows which there are; ``validate.start`` asks for GPUs here where ``local`` is chosen::

    _target_: runner.launch.<name>.<name>         def <name>(folder, *, debug=False, num_processes=1, ...) -> int

A whole one is ``tests/example_project/my_lab/launcher.py``.

It is given the folder of a run that is frozen, checked and not finished, whether tracebacks are wished for, and the
keys of its YAML but for three, which every such YAML has for the ``pool``: this calls the launcher for ``jobs`` runs at
a time, each in a process of its own; asks it by SIGTERM to end after ``timeout_seconds``, and kills it and what it has
started if it does not; and lets it see the run's share of ``devices``, ``[]`` where it needs none of this machine.

It has the run trained by ``num_processes`` processes. Each is ``python -m runner.launch <folder> --trust``, or calls
``worker.work(folder, debug=debug)``; of several, each has RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as
torchrun sets them, and only rank 0 writes the state. On another machine they start without CUDA_VISIBLE_DEVICES and
OMP_NUM_THREADS, which are the pool's for this one; the run folder and its lock must be seen from there. It waits for
their end, and hands on the signals of ``worker.stop_signals``, at which they save their step: a job of a scheduler is
to be cancelled then, since what kills the launcher does not reach it. Where they have ended with one more adjustment
than before (``run.adjustments``: smaller batches, back to before a sickness), it starts them again. Without WORLD_SIZE
and RANK a process of several would launch the run once more. Called again for a run that still waits or trains
elsewhere, it waits for that; ``timeout_seconds`` counts the time in a queue. It reads no configuration, knows no
trainer and does not decide whether a run should start.

The state is in ``status.json``. Until its processes begin, a launcher may write ``run.set_status("queued", ...)`` with
what it needs to find its job again; then the first process writes it. A run that is left queued stays so, and the same
command calls the launcher again. Of an end that none of them could record, such as a node that is gone, the launcher
tells state and cause by ``worker.conclude``. It returns the exit code of the end, as ``errors`` lists them: the
worker's, ``code_of`` a signal, or that of an EnvironmentFault; or it raises such an error before anything has begun.
"""
