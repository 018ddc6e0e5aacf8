"""Every trainer on every dataset whose rows fit, as typed.

One step each, with stand-ins for the real names.

    python tests/fault/pairs.py [trainer or dataset ...]

A loopback hub (``tests/hub.py``) serves small random models and made rows under the names of the
published ones, the reward models among them. ``tests/test_conf.py`` composes the same pairs.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

from hub import Hub, serve_all
from needs import ON_CPU, TINY, TRAINERS, needed
from warm import Warm

from runner.config.menu import read_options
from runner.dataset.form import fits

MODEL = "model=qwen2_5_0_5b"
TEACHER = "Qwen/Qwen2.5-0.5B-Instruct"
SHORT = "trainer.args.max_completion_length=8"
# Settings for one step on a small machine.
QUICK = (
    "trainer.args.max_steps=1",
    "trainer.args.per_device_train_batch_size=8",
    "dataset.limit.eval=8",
)
MORE = dict.fromkeys(
    ("distillation", "grpo", "rloo", "a2po", "gmpo", "gold", "iw_opd", "sdft", "sdpo"), (SHORT,)
)
MORE |= dict.fromkeys(("gkd", "online_dpo"), ("trainer.args.max_new_tokens=8",))
MORE |= {"ppo": ("trainer.args.response_length=8",)}
UNNAMED = ("environment", "hub", "local")  # that have no rows of their own


def fitting_pairs() -> list[tuple[str, str]]:
    """Each trainer with each dataset of the menu that has rows for it."""
    trainers = {name: node["form"] for name, node in TRAINERS.items()}
    rows = {
        name: node.get("dataset", {}).get("form") for name, node in read_options("dataset").items()
    }
    # a mixture, the toy
    named = {name: form or "preference" for name, form in rows.items() if name not in UNNAMED}
    pairs = []
    for trainer, form in trainers.items():
        pairs += [(trainer, name) for name, rows in named.items() if fits(rows, form)]
    return pairs


def words_of(trainer: str, dataset: str) -> list[str]:
    """The pair as typed, on a small hub model, or on the shipped one for shipped rows."""
    model = [] if dataset.startswith("toy") or dataset == "mixture" else [MODEL]
    return [
        f"trainer={trainer}",
        *model,
        f"dataset={dataset}",
        *needed(trainer, TEACHER if model else TINY),
    ]


def main(words: list[str]) -> int:
    """Train each pair that the words name, and report the failed ones."""
    failed = []
    began = time.monotonic()
    pairs = [
        pair
        for pair in fitting_pairs()
        if pair[0] in ON_CPU and (not words or set(words) & set(pair))
    ]
    with tempfile.TemporaryDirectory() as folder, Hub() as hub:
        home = Path(folder)
        serve_all(hub, home / "models")
        environment = hub.environment(home / "cache") | {
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        environment.pop("HF_HUB_OFFLINE", None)
        warm = Warm(home / "warm", environment)
        for number, (trainer, dataset) in enumerate(pairs):
            words = [
                *words_of(trainer, dataset),
                *QUICK,
                *MORE.get(trainer, ()),
                f"name=run{number}",
            ]
            start = time.monotonic()
            done = warm.run(words, home, environment)
            print(
                f"{done.returncode}  {time.monotonic() - start:5.1f} s  {' '.join(words[:4])}",
                flush=True,
            )
            if done.returncode or "finished  1 step" not in done.stdout:
                failed.append((trainer, dataset))
                print(done.stdout[-2000:], done.stderr[-3000:], sep="\n", flush=True)
        warm.close()
    print(
        f"{len(pairs) - len(failed)} of {len(pairs)} "
        f"pairs trained in {time.monotonic() - began:.0f} s"
    )
    return int(bool(failed))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    sys.exit(main(sys.argv[1:]))
