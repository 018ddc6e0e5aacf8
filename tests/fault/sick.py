"""Sick runs stop within five steps with cause and fix and keep their last good checkpoint.

Healthy ones go on.

    python tests/fault/sick.py                 every case, and the control
    python tests/fault/sick.py kl nan          those whose name holds one of the words
    python tests/fault/sick.py --overhead      what looking costs, in CPU seconds

Prints a line for each case: its verdict, exit code, the step at which it was noticed, and what was
said. The exit code is 1 where a case misses. The control trains three of the sick cases with TRL's
trainer alone: it finishes with 0.

Each run is the public command on the shipped model, a few steps, logged every 100 steps; what makes
it sick is a part of its configuration (``sabotage``).
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS.parent), str(Path(__file__).parent)]

from runner.__main__ import main
from runner.run import Run
from runner.run.seal import damage_of, sealed_checkpoints

WITHIN = 5
SMALL = (
    *("metric=none", "dataset.limit.train=64", "dataset.limit.eval=4", "allow=[sabotage]"),
    *(
        "trainer.args.per_device_train_batch_size=8",
        "trainer.args.logging_steps=100",
        "trainer.args.save_steps=2",
    ),
)
SAMPLED = ("trainer.args.max_completion_length=8", "trainer.args.num_generations=4")
PPO = ("trainer.args.response_length=8", "trainer.args.num_ppo_epochs=1")


@dataclass(frozen=True)
class Case:
    """A run: its words, and for a sick one the step of its fault and the expected alarm."""

    name: str
    words: tuple[str, ...]
    fault: int | None = None
    alarm: str = ""
    prepare: Callable[[Path], tuple[str, ...]] = lambda folder: ()


def callback(kind: str, **values: object) -> tuple[str, ...]:
    return f"callback.x._target_=sabotage.{kind}", *(
        f"callback.x.{name}={value}" for name, value in values.items()
    )


def taught(folder: Path) -> tuple[str, ...]:
    """A teacher of the student's kind."""
    return (
        f"trainer.teacher_model.path={TESTS.parent / 'runner/model/tiny'}",
        "tolerate.zero_gradient=true",
    )


def curriculum(folder: Path) -> tuple[str, ...]:
    """Rows in the order of a curriculum: short ones, long ones, and then others of another kind."""
    package = TESTS.parent / "runner/dataset"
    sort = (package / "toy_sort/train.jsonl").read_text(encoding="utf-8").splitlines()
    demonstrations = (
        (package / "toy_demonstrations/train.jsonl").read_text(encoding="utf-8").splitlines()
    )
    rows = [json.loads(line) for line in (*sorted(sort[:48], key=len), *demonstrations[:48])]
    texts = [
        json.dumps({"prompt": row["prompt"], "completion": row.get("completion") or row["chosen"]})
        for row in rows
    ]
    (folder / "rows.jsonl").write_text("\n".join(texts), encoding="utf-8")
    return (
        "dataset=local",
        f"dataset.path={folder / 'rows.jsonl'}",
        "dataset.limit=null",
        "dataset.split={train: 'train[:92]', eval: 'train[92:]'}",
    )


def begun(*words: str) -> Callable[[Path], tuple[str, ...]]:
    """A run of the same words that has taken half of the steps, from which the case resumes."""

    def prepare(folder: Path) -> tuple[str, ...]:
        half = [*words, "name=begun", f"output_root={folder / 'begun'}"]
        assert main(half) == 0
        return (f"resume={next(folder.glob('begun/begun/*/config.yaml')).parent}",)

    return prepare


def trainer(name: str, steps: int, *words: str) -> tuple[str, ...]:
    settings = dict.fromkeys(("grpo", "rloo", "gmpo"), SAMPLED)
    settings |= {"ppo": PPO, "online_dpo": ("trainer.args.max_new_tokens=8",)}
    settings |= dict.fromkeys(("a2po", "distillation"), SAMPLED[:1])
    return (
        f"trainer={name}",
        f"trainer.args.max_steps={steps}",
        *SMALL,
        *settings.get(name, ()),
        *words,
    )


def reward(kind: str, **values: object) -> tuple[str, ...]:
    return f"reward.x._target_=sabotage.{kind}", *(
        f"reward.x.{name}={value}" for name, value in values.items()
    )


WARM = ("trainer.args.warmup_steps=4", "trainer.args.lr_scheduler_type=cosine")
COLD = "trainer.args.temperature=1e-6"
GREEDY = "trainer.args.generation_kwargs={do_sample: false}"
ALONE = "reward=none"
CONSTANT = "trainer.args.lr_scheduler_type=constant"
WEIGHT = callback("Weight", at=4)
NAN = callback("Gradient", at=4, value="nothing")
INF = {"at": 4, "value": "endless"}
SICK = [
    Case("nan weight sft", trainer("sft", 12, *WEIGHT), 4, "not_finite"),
    Case("nan weight lora dpo", trainer("dpo", 12, "peft=lora", *WEIGHT), 4, "not_finite"),
    Case("nan weight ppo", trainer("ppo", 8, *WEIGHT), 4, "not_finite"),
    Case("nan weight grpo", trainer("grpo", 8, *WEIGHT), 4, "not_finite"),
    Case("inf weight kto", trainer("kto", 12, *callback("Weight", **INF)), 4, "not_finite"),
    Case("nan weight at a save", trainer("sft", 12, *callback("Late", at=4)), 4, "not_finite"),
    Case("nan gradient reward", trainer("reward", 12, *NAN), 4, "not_finite"),
    Case("nan gradient rloo", trainer("rloo", 8, *NAN), 4, "not_finite"),
    Case("inf gradient orpo", trainer("orpo", 12, *callback("Gradient", **INF)), 4, "not_finite"),
    Case(
        "nan loss",
        trainer("sft", 12, "loss._target_=sabotage.NanLoss", "loss.at=4"),
        4,
        "not_finite",
    ),
    Case(
        "nan reward",
        trainer("grpo", 8, ALONE, *reward("After", calls=3, value="nothing")),
        4,
        "reward.x",
    ),
    Case(
        "inf reward",
        trainer("ppo", 8, ALONE, *reward("After", calls=3, value="endless")),
        1,
        "reward.x",
    ),
    Case(
        "nan evaluation",
        trainer(
            "sft",
            8,
            "loss._target_=sabotage.NanLoss",
            "loss.at=2",
            "loss.evaluations=true",
            "trainer.args.eval_strategy=steps",
            "trainer.args.eval_steps=4",
        ),
        4,
        "not_finite",
    ),
    Case(
        "rate 100 sft", trainer("sft", 12, "learning_rate=100"), 1, "exploded|diverged|not_finite"
    ),
    Case(
        "rate 1e10 lora",
        trainer("dpo", 12, "peft=lora", *callback("Rate", at=4, times=1e14)),
        4,
        "exploded|not_finite",
    ),
    Case(
        "rate 1e4 times",
        trainer("cpo", 12, *callback("Rate", at=4, times=1e5)),
        4,
        "diverged|not_finite|chosen_lost",
    ),
    Case(
        "all labels masked",
        trainer(
            "sft",
            12,
            "collator._target_=sabotage.Masking",
            "tolerate.nothing_trained=true",
            "tolerate.no_end=true",
            "tolerate.other_template=true",
        ),
        1,
        "zero_gradient|not_finite",
    ),
    Case(
        "zero gradient sft",
        trainer("sft", 12, *callback("Gradient", at=4, times=0.0)),
        4,
        "zero_gradient",
    ),
    Case(
        "zero gradient accumulated",
        trainer(
            "orpo",
            12,
            "trainer.args.gradient_accumulation_steps=2",
            *callback("Gradient", at=4, times=0.0),
        ),
        4,
        "zero_gradient",
    ),
    Case(
        "zero gradient dpo",
        trainer("dpo", 12, *callback("Gradient", at=1, times=0.0)),
        1,
        "zero_gradient",
    ),
    Case(
        "zero gradient reward",
        trainer("reward", 12, *callback("Gradient", at=1, times=0.0)),
        1,
        "zero_gradient",
    ),
    Case(
        "frozen adapter",
        trainer("sft", 12, "peft=lora", "optimizer._target_=sabotage.Idle"),
        1,
        "frozen",
    ),
    Case(
        "optimizer of strangers",
        trainer("dpo", 12, "optimizer._target_=sabotage.strangers"),
        1,
        "frozen",
    ),
    Case(
        "frozen ppo in the warm-up of its critic",
        trainer("ppo", 8, "trainer.args.value_warmup_steps=8", "optimizer._target_=sabotage.Idle"),
        1,
        "frozen",
    ),
    Case(
        "frozen by rounding",
        trainer("sft", 12, "model.dtype=bfloat16", "learning_rate=1e-12"),
        1,
        "frozen",
    ),
    Case(
        "constant reward grpo",
        trainer(
            "grpo", 12, ALONE, "trainer.args.per_device_train_batch_size=32", *reward("constant")
        ),
        1,
        "constant_reward",
    ),
    Case(
        "constant reward ppo",
        trainer(
            "ppo", 12, ALONE, "trainer.args.per_device_train_batch_size=32", *reward("constant")
        ),
        1,
        "constant_reward",
    ),
    Case(
        "constant reward online dpo",
        trainer(
            "online_dpo",
            12,
            ALONE,
            "trainer.args.per_device_train_batch_size=32",
            *reward("constant"),
        ),
        1,
        "constant_reward",
    ),
    Case("kl ppo", trainer("ppo", 12, *callback("Rate", at=3, times=3e3)), 3, "kl|exploded"),
    Case(
        "kl grpo",
        trainer("grpo", 12, "kl_coef=0.01", *callback("Rate", at=3, times=1e4)),
        3,
        "kl|exploded",
    ),
    Case(
        "sign of dpo",
        trainer("dpo", 14, "loss._target_=sabotage.reversed_dpo"),
        1,
        "preferences_inverted",
    ),
    Case(
        "sign of gradients dpo",
        trainer("dpo", 14, "peft=lora", *callback("Reverse")),
        1,
        "gradient_ascent",
    ),
    Case(
        "sign of gradients reward",
        trainer("reward", 14, *callback("Reverse")),
        1,
        "gradient_ascent",
    ),
    Case(
        "sign of gradients sft",
        trainer("sft", 14, *WARM, *callback("Reverse")),
        1,
        "gradient_ascent",
    ),
    Case("sign of gradients grpo", trainer("grpo", 8, *callback("Reverse")), 1, "gradient_ascent"),
    Case("sign of gradients ppo", trainer("ppo", 8, *callback("Reverse")), 1, "gradient_ascent"),
    Case(
        "sign of the optimizer",
        trainer("orpo", 14, "optimizer._target_=torch.optim.AdamW", "optimizer.maximize=true"),
        1,
        "gradient_ascent",
    ),
    Case("rate 1 dpo", trainer("dpo", 12, "learning_rate=1.0"), 1, "chosen_lost"),
    Case(
        "rate 1 lora dpo",
        trainer("dpo", 12, "peft=lora", "learning_rate=10"),
        1,
        "chosen_lost|preferences_inverted|not_finite",
    ),
    Case(
        "rate 1 ipo",
        trainer("dpo", 12, "learning_rate=1.0", "trainer.args.loss_type=[ipo]"),
        1,
        "chosen_lost|diverged",
    ),
    Case("rate 1 kto", trainer("kto", 12, "learning_rate=1.0"), 1, "chosen_lost"),
    Case("rate 1 orpo", trainer("orpo", 12, "learning_rate=1.0"), 1, "chosen_lost|diverged"),
    Case("rate 1 cpo", trainer("cpo", 12, "learning_rate=1.0"), 1, "chosen_lost|diverged"),
    Case(
        "rate 1 simpo",
        trainer(
            "cpo",
            12,
            "learning_rate=1.0",
            "trainer.args.loss_type=simpo",
            "trainer.args.cpo_alpha=0.0",
        ),
        1,
        "chosen_lost",
    ),
    Case("greedy grpo", trainer("grpo", 6, COLD), 1, "no_signal"),
    Case("greedy rloo", trainer("rloo", 6, GREEDY), 1, "no_signal"),
    Case("greedy gmpo", trainer("gmpo", 6, COLD), 1, "no_signal"),
    Case("greedy a2po", trainer("a2po", 6, COLD), 1, "no_signal"),
    Case("greedy online dpo", trainer("online_dpo", 6, GREEDY), 1, "no_signal"),
    Case("greedy ppo", trainer("ppo", 6, COLD), 1, "no_signal"),
    Case("reward of the prompt", trainer("grpo", 6, ALONE, *reward("by_prompt")), 1, "no_signal"),
    Case(
        "endless norm",
        trainer("sft", 12, "loss._target_=sabotage.HugeLoss", "loss.at=4"),
        4,
        "not_finite",
    ),
    Case("far worse sft", trainer("sft", 6, "learning_rate=0.05"), 1, "ended_worse"),
    Case(
        "far worse lora",
        trainer("sft", 6, "peft=lora", "learning_rate=0.5"),
        1,
        "ended_worse|not_finite",
    ),
    Case("far worse grpo", trainer("grpo", 6, "learning_rate=0.05"), 1, "ended_worse"),
    Case("far worse ppo", trainer("ppo", 6, "learning_rate=0.05", "kl_coef=0"), 1, "ended_worse"),
    Case("wrong reference", trainer("dpo", 8, *callback("Moved")), 1, "first_margin"),
]
HEALTHY = [
    Case("sft", trainer("sft", 12, *WARM)),
    Case(
        "sft lora",
        trainer(
            "sft",
            10,
            "peft=lora",
            "trainer.args.lr_scheduler_type=constant_with_warmup",
            "trainer.args.warmup_steps=6",
        ),
    ),
    Case("sft frozen layers", trainer("sft", 10, "peft=freeze")),
    Case("sft prompt tuning", trainer("sft", 10, "peft=prompt")),
    Case("sft bfloat16", trainer("sft", 10, "model.dtype=bfloat16", "learning_rate=1e-5")),
    Case("sft memorised", trainer("sft", 40, "learning_rate=1e-2", "dataset.limit.train=8")),
    Case(
        "sft packed",
        trainer(
            "sft",
            8,
            "trainer.args.packing=true",
            "trainer.args.max_length=64",
            "dataset.limit.train=200",
            "tolerate.truncated=1",
        ),
    ),
    Case("sft accumulated", trainer("sft", 8, "trainer.args.gradient_accumulation_steps=4", *WARM)),
    Case("sft fast", trainer("sft", 20, "learning_rate=1e-2")),
    Case(
        "sft row by row",
        trainer("sft", 40, "trainer.args.per_device_train_batch_size=1", "learning_rate=1e-3"),
    ),
    Case("sft 4bit", trainer("sft", 8, "peft=qlora")),
    Case("dpo", trainer("dpo", 20, "trainer.args.per_device_train_batch_size=2")),
    Case("dpo saturated", trainer("dpo", 40, "learning_rate=3e-3", "kl_coef=1")),
    Case("dpo warm-up from 0", trainer("dpo", 12, *WARM, "peft=lora")),
    Case("kto one-sided batches", trainer("kto", 20, "trainer.args.per_device_train_batch_size=2")),
    Case("orpo", trainer("orpo", 20)),
    Case("cpo", trainer("cpo", 20)),
    Case("reward", trainer("reward", 20, "trainer.args.per_device_train_batch_size=4")),
    Case("grpo rare rewards", trainer("grpo", 14, ALONE, *reward("Rare", every=40))),
    Case(
        "grpo at the best reward", trainer("grpo", 14, ALONE, *reward("After", calls=6, value="6"))
    ),
    Case("grpo large stable kl", trainer("grpo", 14, "kl_coef=0.01", "learning_rate=1e-3")),
    Case("grpo rollouts used again", trainer("grpo", 12, "trainer.args.num_iterations=2")),
    Case("rloo", trainer("rloo", 10)),
    Case("ppo", trainer("ppo", 12, "learning_rate=3e-4")),
    Case("ppo warm-up of a critic model", trainer("ppo", 8, "trainer.args.value_warmup_steps=5")),
    Case("ppo lora", trainer("ppo", 8, "peft=lora", "trainer.args.value_warmup_steps=5")),
    Case("online dpo", trainer("online_dpo", 10)),
    Case("distillation", trainer("distillation", 6), prepare=taught),
    Case("gkd", trainer("gkd", 6), prepare=taught),
    # Odd ones.
    Case(
        "sft curriculum",
        trainer("sft", 24, "trainer.args.train_sampling_strategy=sequential", "learning_rate=1e-3"),
        prepare=curriculum,
    ),
    Case(
        "sft restarts",
        trainer("sft", 24, "trainer.args.lr_scheduler_type=cosine_with_restarts", *WARM[:1]),
    ),
    Case("sft long warm-up", trainer("sft", 12, "trainer.args.warmup_steps=11")),
    Case("sft tiny rate", trainer("sft", 12, "learning_rate=1e-9")),
    Case("sft decayed to nothing", trainer("sft", 30, "trainer.args.lr_scheduler_type=polynomial")),
    Case("sft no clipping", trainer("sft", 12, "trainer.args.max_grad_norm=0")),
    Case(
        "sft weight decay",
        trainer("sft", 20, "trainer.args.weight_decay=1.0", "learning_rate=1e-3"),
    ),
    Case("sft noise", trainer("sft", 12, "trainer.args.neftune_noise_alpha=10")),
    Case("sft smoothed", trainer("sft", 12, "loss=label_smoothed")),
    Case("sft focal", trainer("sft", 20, "loss=focal")),
    Case(
        "sft one row",
        trainer("sft", 30, "dataset.limit.train=1", "trainer.args.per_device_train_batch_size=1"),
    ),
    Case("sft new model", trainer("sft", 20, "model=new", "learning_rate=1e-3")),
    Case("sft adafactor", trainer("sft", 12, "optimizer=adafactor")),
    Case("sft resumed", trainer("sft", 12, CONSTANT), prepare=begun(*trainer("sft", 6, CONSTANT))),
    *[
        Case(f"sft {name}", trainer("sft", 10, f"peft={name}"))
        for name in (
            "pissa",
            "olora",
            "vera",
            "ia3",
            "pattern",
            "dora",
            "p_tuning",
            "lora_embeddings",
        )
    ],
    Case("dpo pissa", trainer("dpo", 12, "peft=pissa")),
    Case("dpo frozen layers", trainer("dpo", 12, "peft=freeze", "peft.layers=1")),
    Case("dpo accumulated", trainer("dpo", 8, "trainer.args.gradient_accumulation_steps=4", *WARM)),
    Case(
        "dpo bfloat16 with precomputed references",
        trainer("dpo", 12, "model.dtype=bfloat16", "trainer.args.precompute_ref_log_probs=true"),
    ),
    Case(
        "dpo one row",
        trainer("dpo", 30, "dataset.limit.train=1", "trainer.args.per_device_train_batch_size=1"),
    ),
    Case("dpo weak reference", trainer("dpo", 20, "kl_coef=0.001", "learning_rate=1e-4")),
    Case("dpo ipo", trainer("dpo", 20, "trainer.args.loss_type=[ipo]")),
    Case("dpo with demonstrations", trainer("dpo", 20, "trainer.args.loss_type=[sigmoid,sft]")),
    Case("dpo resumed", trainer("dpo", 12, CONSTANT), prepare=begun(*trainer("dpo", 6, CONSTANT))),
    Case("kto lora", trainer("kto", 12, "peft=lora", "learning_rate=1e-3")),
    Case("simpo", trainer("cpo", 20, "trainer.args.loss_type=simpo", "trainer.args.cpo_alpha=0.0")),
    Case(
        "reward lora accumulated",
        trainer("reward", 10, "peft=lora", "trainer.args.gradient_accumulation_steps=2"),
    ),
    Case("reward memorised", trainer("reward", 60, "dataset.limit.train=8", "learning_rate=1e-3")),
    Case("grpo without reference", trainer("grpo", 10, "kl_coef=0")),
    Case(
        "grpo constant reward of half of the prompts", trainer("grpo", 14, ALONE, *reward("Halved"))
    ),
    Case("grpo negative rewards", trainer("grpo", 10, ALONE, *reward("Huge", times=-1))),
    Case("grpo huge rewards", trainer("grpo", 10, ALONE, *reward("Huge", times=1e6))),
    Case(
        "grpo resumed", trainer("grpo", 8, CONSTANT), prepare=begun(*trainer("grpo", 4, CONSTANT))
    ),
    Case(
        "rloo constant reward of half of the prompts", trainer("rloo", 12, ALONE, *reward("Halved"))
    ),
    Case("ppo without penalty", trainer("ppo", 12, "kl_coef=0")),
    Case("ppo frozen layers", trainer("ppo", 8, "peft=freeze")),
    Case("ppo whitened", trainer("ppo", 10, "trainer.args.score_normalization=whiten")),
    Case("ppo huge rewards", trainer("ppo", 10, ALONE, *reward("Huge", times=1e3))),
    Case("ppo accumulated", trainer("ppo", 6, "trainer.args.gradient_accumulation_steps=2", *WARM)),
    Case("ppo resumed", trainer("ppo", 8, CONSTANT), prepare=begun(*trainer("ppo", 4, CONSTANT))),
    Case("online dpo lora", trainer("online_dpo", 8, "peft=lora")),
]


@dataclass
class Outcome:
    """The outcome of a run; ``noticed`` is the step named in its last words."""

    code: int
    run: Run
    text: str

    @property
    def noticed(self) -> int | None:
        match = re.search(r"at step (\d+)", self.text)
        return int(match[1]) if match else None

    def faults(self, case: Case) -> list[str]:
        """The ways in which it is not as its case promises."""
        if case.fault is None:
            return (
                []
                if self.code == 0 and self.run.status()["state"] == "finished"
                else [f"exit {self.code}"]
            )
        wrong = (
            []
            if self.code == 3 and self.run.status()["state"] == "failed"
            else [f"exit {self.code}"]
        )
        if not re.search(rf"^  ({case.alarm})\b", self.text, re.MULTILINE):
            wrong.append(f"not told as {case.alarm}")
        if self.noticed is not None and not 0 <= self.noticed - case.fault <= WITHIN:
            wrong.append(f"noticed at step {self.noticed}")
        if self.run.model.exists():
            wrong.append("a model was saved")
        checkpoints = sealed_checkpoints(self.run.checkpoints)
        if not all(map(is_whole, checkpoints)):
            wrong.append("a sick checkpoint is sealed")
        if case.fault > 3 and not checkpoints:
            wrong.append("no good checkpoint is left")
        return wrong


def is_whole(checkpoint: Path) -> bool:
    """True if a checkpoint is as it was sealed and holds finite numbers only."""
    from safetensors.torch import load_file

    tensors = []
    for path in checkpoint.rglob("*.safetensors"):
        tensors += load_file(path).values()
    return (
        not damage_of(checkpoint)
        and bool(tensors)
        and all(bool(tensor.isfinite().all()) for tensor in tensors)
    )


def perform(case: Case, folder: Path) -> Outcome:
    """Run the command of a case in this process, in a folder of its own."""
    work = folder / case.name.replace(" ", "-")
    work.mkdir(parents=True, exist_ok=True)
    told = io.StringIO()
    with contextlib.redirect_stderr(told), contextlib.redirect_stdout(told):
        code = main(
            [*case.words, *case.prepare(work), "name=run", f"output_root={work / 'outputs'}"]
        )
    configs = list(work.glob("outputs/run/*/config.yaml"))
    run = Run(configs[0].parent if configs else work)
    return Outcome(code, run, str(run.status().get("cause") or "") if configs else told.getvalue())


def attempt(cases: list[Case], folder: Path) -> int:
    """Run them all, print a line for each, and count those that miss."""
    missed = 0
    delays = []
    for case in cases:
        before = cpu()
        outcome = perform(case, folder)
        wrong = outcome.faults(case)
        missed += bool(wrong)
        if case.fault is not None and outcome.noticed is not None:
            delays.append(outcome.noticed - case.fault)
        told = " ".join(" ".join(outcome.text.splitlines()[1:3]).split())[:110]
        late = "" if case.fault is None else f"fault {case.fault}, noticed {outcome.noticed}"
        spent = f"{cpu() - before:4.1f} s"
        verdict = "MISS" if wrong else "ok"
        print(
            f"{verdict:<4}  {case.name:<28} {outcome.code}  "
            f"{late:<22} {spent}  {'; '.join(wrong)}  {told}",
            flush=True,
        )
        shutil.rmtree(folder / case.name.replace(" ", "-"))
    if delays:
        print(
            f"noticed after {sum(delays) / len(delays):.1f} steps on average, {max(delays)} at most"
        )
    return missed


def cpu() -> float:
    """CPU seconds of this process and its children."""
    return sum(
        sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )


# --- The control --------------------------------------------------------------------------------


def control(folder: Path) -> int:
    """Three sick trainings by TRL alone; return how many of them it stopped."""
    import torch
    from datasets import Dataset
    from sabotage import Gradient, Idle, Weight
    from transformers import AutoModelForCausalLM
    from trl import SFTConfig, SFTTrainer

    rows = Dataset.from_list([{"prompt": f"{n} and ", "completion": f"{n % 7}"} for n in range(64)])
    stopped = 0
    for name, parts in {
        "nan weight": {"callbacks": [Weight(4)]},
        "zero gradient": {"callbacks": [Gradient(4, times=0.0)]},
        "frozen": {"optimizer_cls_and_kwargs": (Idle, {"lr": 1e-4})},
    }.items():
        args = SFTConfig(
            output_dir=str(folder / "plain"),
            max_steps=12,
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_total_limit=1,
            activation_checkpointing=False,
            save_steps=2,
            disable_tqdm=True,
            logging_steps=100,
        )
        model = AutoModelForCausalLM.from_pretrained(
            TESTS.parent / "runner/model/tiny", dtype=torch.float32
        )
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                SFTTrainer(
                    model, args, train_dataset=rows, processing_class=_tokenizer(), **parts
                ).train()
                ended = "finished"
            except Exception as error:
                ended = f"stopped by {type(error).__name__}"
                stopped = stopped + 1
        broken = sum(not bool(weight.isfinite().all()) for weight in model.parameters())
        print(
            f"      control: {name}: {ended}, "
            f"{broken} weights of its last checkpoint are no numbers"
        )
    return stopped


def _tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TESTS.parent / "runner/model/tiny")


# --- What it costs ------------------------------------------------------------------------------

MODELS = {
    "the shipped one": ("trainer.args.max_steps=40", "trainer.args.per_device_train_batch_size=32"),
    "30 million": ("model=new", "model.hidden_size=512", "model.intermediate_size=2048",
                   "model.num_hidden_layers=8",
                   "model.num_attention_heads=8", "trainer.args.max_steps=10",
                   "trainer.args.per_device_train_batch_size=16"),
}  # fmt: skip


def overhead(folder: Path) -> int:
    """Print the share of a training's CPU seconds spent on the health checks.

    1 if it is 2 % or more.
    """
    from runner.config.composition import compose
    from runner.launch.signals import Stop
    from runner.run import open_run
    from runner.training.components.assembly import build_components

    dear = 0
    for name, words in MODELS.items():
        words = ["trainer=sft", "metric=none", "trainer.args.save_strategy=no", *words]
        components = build_components(
            open_run(compose([*words, f"output_root={folder}"]).cfg, []), Stop()
        )
        trainer = components.trainer
        health = components.health
        spent = {"seconds": 0.0}
        for event in (
            "observe_loss",
            "on_pre_optimizer_step",
            "on_optimizer_step",
            "on_step_end",
            "on_log",
        ):
            setattr(health, event, timed(getattr(health, event), spent))
        trainer.hooks.on_loss = health.observe_loss
        before = time.process_time()
        trainer.train()
        share = spent["seconds"] / (time.process_time() - before)
        weights = sum(weight.numel() for weight in trainer.model.parameters()) / 1e6
        steps = trainer.state.global_step
        print(
            f"{name} ({weights:.1f} M): "
            f"{1000 * spent['seconds'] / steps:.2f} ms a step, {share:.2%} of the CPU"
        )
        dear += share >= 0.02
    return int(bool(dear))


def timed(call: Callable[..., None], spent: dict[str, float]) -> Callable[..., None]:
    def timing(*args: object, **kwargs: object) -> None:
        before = time.process_time()
        try:
            call(*args, **kwargs)
        finally:
            spent["seconds"] += time.process_time() - before

    return timing


def run_all(words: list[str]) -> int:
    """Run the requested cases; 1 if any misses."""
    if words == ["--overhead"]:
        with tempfile.TemporaryDirectory() as folder:
            return overhead(Path(folder))
    chosen = [
        case for case in SICK + HEALTHY if not words or any(word in case.name for word in words)
    ]
    with tempfile.TemporaryDirectory() as folder:
        sick = [case for case in chosen if case in SICK]
        healthy = [case for case in chosen if case in HEALTHY]
        unnoticed = attempt(sick, Path(folder) / "sick")
        alarmed = attempt(healthy, Path(folder) / "healthy")
        print(f"{len(sick) - unnoticed} of {len(sick)} sick runs stopped as they should")
        print(f"{alarmed} of {len(healthy)} healthy runs were alarmed")
        stopped = 0 if words else control(Path(folder))
    return 1 if unnoticed or alarmed or stopped else 0


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1:]))
