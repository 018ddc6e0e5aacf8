"""A declarative experiment runner for post-training language models.

``__main__`` reads the command line, ``config`` composes it, ``validate`` checks it, ``run`` lays its folder, ``launch``
starts its processes, ``command`` holds the verbs and ``training`` builds and trains from the parts: ``dataset``,
``model``, ``reward``, ``metric`` and their like. Nothing is imported here before it is asked for.

From Python, a training is the command of the same words, and raises the errors of ``runner.errors``::

    import runner
    run = runner.train("trainer=dpo", "learning_rate=1e-6")
    run.metrics, run.scores, run.folder, run.model(), run.tokenizer()
    runner.compose("trainer=dpo")         # the configuration, checked and resolved
    runner.runs("outputs/dpo-tiny-toy")   # what was trained, the newest last

Where a change goes. What else it touches, if anything, is named by the first of its files, or by a test that fails::

    one more trainer of TRL          conf/trainer/<name>.yaml; if it samples, runner/schema/upstream.py
    a field that TRL has renamed     runner/schema/upstream.py, and the lines that tests/test_upstream.py lists
    a metric, a reward               runner/metric/__init__.py, runner/reward/rule.py; conf/<group>/<name>.yaml
    a form of rows                   runner/dataset/form.py
    a launcher                       runner/launch/README.md says how; tests/example_project/my_lab/launcher.py is one
    a check before the start         runner/validate/parts.py of keys, runner/validate/start.py of files and machine
    when a training is sick          runner/run/alarms.py; what alarms are fed: runner/training/health.py
    what names a run, its top keys   runner/run/key.py, runner/validate/context.py, conf/config.yaml
    what a checkpoint seals          runner/run/seal.py; when: runner/training/checkpoint.py
    PPO, also over shards            runner/ppo/algorithm.py, runner/ppo/actor_critic.py
    a report: facts, curves, look    runner/report/facts.py; runner/report/plot.py; runner/report/page.py, its template/
    a tool to import from            runner/importers/__init__.py, a table in runner/config/dialects/
    another version of Python        pyproject.toml, if it is the least one; what may break is argparse below Hydra
                                     (config/__init__.call_hydra) and forks (launch/worker, model/jinja); .ci/run tells
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner.command._python import TrainedRun, compose, runs, train

__all__ = ["TrainedRun", "compose", "runs", "train"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from runner.command import _python

    return getattr(_python, name)


def __dir__() -> list[str]:
    return sorted([*(name for name in globals() if name.startswith("__")), *__all__])
