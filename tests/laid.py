"""Run folders laid by hand for reports, in any state and without training, and the words of a
sweep's jobs.
"""

import itertools
import json
import math
from pathlib import Path

from runner.launch.compose import sweep_axes
from runner.run import write_config

COMMAND = ["python", "-m", "runner"]


def lay_run(
    folder: Path,
    *,
    state: str = "finished",
    after: dict | None = None,
    lines: list | None = None,
    words=(),
    **cfg,
) -> Path:
    """Lay a run folder with these scores, logged lines, command-line words and top-level keys.

    Return it.
    """
    folder.mkdir(parents=True)
    cfg_of_run = {"name": folder.parent.name, "seed": 0, "metric": None} | cfg
    write_config(folder, cfg_of_run)
    write(
        folder / "status.json",
        {"state": state, "step": 4, "max_steps": 8, "updated": "2026-01-02T03:04:05+00:00"},
    )
    write(folder / "manifest.json", {"command": [*COMMAND, *words], "python": "3.11.7"})
    if after is not None:
        write(folder / "scores.json", {"before": dict.fromkeys(after, 0.0), "after": after})
    if lines:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def lay_sweep(group: Path, scores: dict, logged: bool = False, **cfg) -> Path:
    """Lay a group of finished runs, ``{(kl_coef, learning_rate, seed).

    Eval_exact}``, with curves if ``logged``.
    """
    for (kl, rate, seed), score in scores.items():
        args = {"beta": kl, "learning_rate": rate}
        lay_run(
            group / f"kl-{kl}+lr-{rate}+seed-{seed}",
            after={"eval_loss": 1 - score, "eval_exact": score},
            lines=[
                {"step": n, "loss": 1 / n, "reward": score * n, "kl": kl * n}
                for n in range(1, 6)
                if logged
            ],
            words=[
                "trainer=dpo",
                f"kl_coef={kl}",
                f"learning_rate={rate}",
                f"seed={seed}",
                f"name={group.name}",
            ],
            kl_coef=kl,
            learning_rate=rate,
            seed=seed,
            trainer={"_target_": "trl.DPOTrainer", "args": args},
            **({"metric": {"exact": {"_target_": "x"}}} | cfg),
        )
    return group


def set_status(folder: Path, **changes) -> None:
    """Change some keys of a status."""
    path = folder / "status.json"
    write(path, json.loads(path.read_text()) | changes)


def write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def wave(steps: int) -> list[dict]:
    """A long curve."""
    return [
        {"step": step, "loss": math.sin(step / 50), "reward": step / steps, "kl": step / 9}
        for step in range(steps)
    ]


def jobs_of(words) -> list[list[str]]:
    """The words of each job of a sweep."""
    jobs = []
    for options in itertools.product(*sweep_axes.options(words).values()):
        jobs.append([word for word, _ in options])
    return jobs
