"""The parts of ``card.py``: what each of them runs, and the rows of the table that it yields.

A part yields a row as soon as it has one, so that what a time limit cuts off is known up to there.
Left out on purpose: time limits, results that are kept, and the table, which are ``card.py``'s.
"""

from __future__ import annotations

import functools
import itertools
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any
from urllib.error import URLError

import torch
from card_repeat import repeat
from card_setting import DPO, GRPO, PPO, SFT, Row, Setting
from card_sides import (
    WARM_STEPS,
    Side,
    is_importable,
    our_side,
    plain_side,
    stop,
)
from ppo_sides import Models, Training, installed, run_apart, trl_python, write_apart, write_models

ON_BF16 = {"model.dtype": "bfloat16"}
NO_ADAPTER = {"peft": "none", "learning_rate": "1e-6"}
SAME_ROWS = {"trainer.args.train_sampling_strategy": "random"}
FLASH = "flash_attention_2"
SHORT = {"trainer.args.max_completion_length": 48}
# A card holds the training and vLLM.
BESIDE_TRAINING = {
    "trainer.args.vllm_gpu_memory_utilization": 0.3,
    "trainer.args.vllm_max_model_length": 1024,
}
NO_NEW_WEIGHTS = "weight_loader"  # what vLLM's build for CPUs says to new weights
SERVER_SECONDS = 120
FSDP2 = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
}


def row_of(side: str, figures: Mapping[str, Any], note: str = "") -> Row:
    """The row of a side, from what its callback has left."""
    steps = figures["steps"][WARM_STEPS:]
    seconds = [step["seconds"] for step in steps]
    cpu_seconds = [step["cpu_seconds"] for step in steps]
    tokens = sum(step["tokens"] for step in steps)
    return Row(
        side,
        tokens_per_second=tokens / sum(seconds),
        milliseconds=1000 * median(seconds),
        cpu_milliseconds=1000 * median(cpu_seconds),
        peak_gb=figures["peak_gb"] or None,
        note=note,
    )


def failed_row(side: Side) -> Row:
    """The row of a side that failed, with the cause."""
    if NO_NEW_WEIGHTS in side.log.read_text(errors="replace"):
        return Row(side.name, note="vLLM's build for CPUs takes no new weights as TRL hands them")
    return Row(side.name, note=f"failed: {side.cause()[:200]}", failed=True)


# --- The runner beside TRL ----------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """A training by the runner and by TRL's own trainer."""

    experiment: str
    words: Mapping[str, object] = field(default_factory=dict)
    is_fast: bool = False  # ours with speed=max, TRL's with all that makes it fast
    needs: str | None = None  # a package beside those of the runner
    further: Mapping[str, object] = field(default_factory=dict)  # arguments of TRL's side alone


def compare(name: str, comparison: Comparison, setting: Setting) -> Iterator[Row]:
    """Both sides step by step in turns; with a vLLM in each, one after the other."""
    package = comparison.needs
    python = setting.vllm_python if package == "vllm" else sys.executable
    if package and not is_importable(package, python):
        yield Row("both", note=f"needs {package}")
        return
    words = setting.words(name, comparison.experiment) | comparison.words
    if comparison.is_fast and comparison.experiment == SFT and is_importable("flash_attn"):
        words["model.attention"] = FLASH
    our_words = words
    args = dict(comparison.further)
    if comparison.is_fast:
        our_words = words | {"speed": "max"}
        args = fast_arguments(comparison.experiment) | args
    our_result = setting.scratch / f"{name}-ours.json"
    trl_result = setting.scratch / f"{name}-trl.json"
    if package == "vllm":
        ours = our_side(our_words, our_result, python=python, variables=setting.variables)
        trl = plain_side(words, trl_result, args, python=python, variables=setting.variables)
        sides = run_in_order([ours, trl])
    else:
        our_end, trl_end = socket.socketpair()
        ours = our_side(our_words, our_result, baton=our_end)
        trl = plain_side(words, trl_result, args, baton=trl_end)
        sides = run_in_turns(ours, our_end, trl, trl_end)
    notes = {"ours": "speed=max" if comparison.is_fast else "", "TRL": "the same arguments"}
    if args:
        notes["TRL"] = ", ".join(f"{key}={value}" for key, value in args.items())
    for side, figures in sides:
        if figures is None:
            yield failed_row(side)
        else:
            yield row_of(side.name, figures, notes[side.name])


def fast_arguments(experiment: str) -> dict[str, object]:
    """The arguments that make TRL's trainer fast on this machine."""
    args: dict[str, object] = {"dataloader_num_workers": 2}
    if torch.cuda.is_available():
        args |= {"bf16": True, "tf32": True}
        if is_importable("liger_kernel"):
            args["use_liger_kernel"] = True
    if experiment == SFT:
        if is_importable("flash_attn"):
            args["packing"] = True  # of whole rows, without padding
        else:
            args["train_sampling_strategy"] = "group_by_length"
    return args


def run_in_turns(
    ours: Side, our_end: socket.socket, trl: Side, trl_end: socket.socket
) -> Iterator[tuple[Side, dict[str, Any] | None]]:
    """Both sides at once, of which one trains a step while the other waits."""
    ours.start([our_end])
    trl.start([trl_end])
    # Only the sides hold them now, so that the end of one shows on the other.
    our_end.close()
    trl_end.close()
    yield ours, ours.wait()
    yield trl, trl.wait()


def run_in_order(sides: list[Side]) -> Iterator[tuple[Side, dict[str, Any] | None]]:
    """One side after the other."""
    for side in sides:
        side.start()
        yield side, side.wait()


# --- PPO ----------------------------------------------------------------------------------------

# The logits of an eighth of the words rise and fall together, as those of related words do in a
# trained model, and the reward is the share of those words in a completion.
WORDS = 50304
PYTHIA_1B = Models(
    vocabulary=WORDS,
    hidden=2048,
    layers=16,
    heads=8,
    prompt_lengths=(64, 256),
    prompts=2048,
    lean=0.5,
    scored=False,
)
UPDATES = Training(
    side="ours",
    models="",
    updates=3,
    batch=64,
    micro_batch=16,
    response_length=64,
    kl_coef=0.02,
    targets=WORDS // 8,
    device="cuda",
)
LORA = replace(UPDATES, learning_rate=1e-4, lora_rank=16, critic="adapter")
SETUPS = {
    "full": replace(UPDATES, learning_rate=1e-5),
    "lora": LORA,
    "lora_bf16": replace(LORA, policy_dtype="bfloat16"),
    "4bit": replace(LORA, four_bit=True, policy_dtype="bfloat16"),
}
PHASES = ("rollout", "score", "update")  # seconds of each in one update of ours


def ppo_beside_trl(setup: str, setting: Setting) -> Iterator[Row]:
    """PPO with the architecture of Pythia 1B, ours and then that of TRL 1.12, the last with one.

    Our critic is a model of its own, then an adapter; TRL's is a model of its own in float32. Both
    have bf16, which is all that ``speed=max`` gives PPO on a card; TRL's gets it through the
    environment, as ``accelerate launch`` would set it.
    """
    if setup == "4bit" and not installed("bitsandbytes"):
        yield Row("both", note="needs bitsandbytes")
        return
    models = PYTHIA_1B
    training = replace(SETUPS[setup], models=str(setting.scratch / "ppo"))
    if setting.tiny:
        models = replace(models, vocabulary=640, hidden=64, layers=2, heads=2, prompts=64)
        training = replace(training, device="cpu", batch=8, micro_batch=8, updates=3, targets=80)
        training = replace(training, response_length=8)
    folder = Path(training.models)
    if not (folder / "prompts.json").exists():  # written last
        shutil.rmtree(folder, ignore_errors=True)
        write_apart(write_models, folder, models)
    for side in ("ours", "trl"):
        if side == "trl" and not has_old_trl(setting):
            yield Row("TRL 1.12", note="needs an environment with TRL 1.12, which none is here")
            return
        result = run_apart(replace(training, side=side))
        ends = result.update_ends
        tokens = training.batch * training.response_length
        rate = tokens * (len(ends) - 1) / (ends[-1] - ends[0])
        gaps = [after - before for before, after in itertools.pairwise(ends)]
        phases = []
        for name in PHASES:
            seconds = [line[f"time/{name}"] for line in result.log[1:] if f"time/{name}" in line]
            if seconds:
                phases.append(f"{name} {median(seconds):.2f} s")
        rewards = [line["objective/scores"] for line in result.log]
        note = f"reward {rewards[0]:.3f} to {rewards[-1]:.3f}"
        yield Row(
            "ours" if side == "ours" else "TRL 1.12",
            tokens_per_second=rate,
            milliseconds=1000 * median(gaps),
            peak_gb=None if setting.tiny else result.peak_bytes / 1e9,
            note=", ".join([note, *phases]),
        )


def has_old_trl(setting: Setting) -> bool:
    """True where there is an environment with TRL 1.12, or one can be made."""
    if setting.tiny:  # it would take longer than all the rest
        return False
    try:
        trl_python()
    except (subprocess.CalledProcessError, OSError):
        return False
    return True


# --- vLLM ---------------------------------------------------------------------------------------


def ppo_on_vllm(setting: Setting) -> Iterator[Row]:
    """PPO that samples by itself, from a vLLM of its process, and from a server of vLLM.

    The server gets new weights as files, so that one card suffices for both.
    """
    python = setting.vllm_python
    if not is_importable("vllm", python):
        yield Row("ours", note="needs vllm")
        return
    words = setting.words("ppo_vllm", PPO) | ON_BF16
    on_vllm = {"trainer.args.rollout_engine": "vllm", **BESIDE_TRAINING}
    if setting.tiny:
        words |= {"model.dtype": "float32", "trainer.args.response_length": 8}
    yield from run_alone("own sampler", words, setting)
    yield from run_alone("vLLM, colocated", words | on_vllm, setting)
    with vllm_server(setting, setting.model("pythia")) as address:
        if address is None:
            yield Row("vLLM, a server", note="failed: the server did not start", failed=True)
            return
        at_server = {
            "trainer.args.vllm_mode": "server",
            "trainer.args.vllm_server_base_url": address,
            "trainer.args.vllm_weight_transfer": "folder",
        }
        yield from run_alone("vLLM, a server", words | on_vllm | at_server, setting)


def run_alone(name: str, words: Mapping[str, object], setting: Setting) -> Iterator[Row]:
    """A training of ours without another side."""
    result = setting.scratch / f"{name.replace(' ', '-').replace(',', '')}.json"
    side = our_side(words, result, python=setting.vllm_python, variables=setting.variables)
    side.name = name
    side.start()
    figures = side.wait()
    yield failed_row(side) if figures is None else row_of(name, figures)


@contextmanager
def vllm_server(setting: Setting, model: Path, card: int | None = None) -> Iterator[str | None]:
    """The address of a server of vLLM that takes new weights; None where it does not start.

    On a ``card`` of its own it gets them over NCCL.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [setting.vllm_python, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(model), "--port", str(port), "--max-model-len", "1024"]
    command += ["--logprobs-mode", "processed_logprobs", "--gpu-memory-utilization", "0.3"]
    command += ["--worker-extension-cls", "runner.generate.vllm_worker.Reloadable"]
    if setting.tiny:
        command += ["--dtype", "float32", "--enforce-eager", "--no-enable-chunked-prefill"]
    variables = {"VLLM_SERVER_DEV_MODE": "1", **setting.variables}
    if card is not None:
        command += ["--weight-transfer-config", '{"backend": "nccl"}']
        variables["CUDA_VISIBLE_DEVICES"] = str(card)
    server = Side("server", command, setting.scratch / "server.json", variables)
    server.start()
    address = f"http://127.0.0.1:{port}"
    try:
        yield address if answers(address, server) else None
    finally:
        stop(server)


def answers(address: str, server: Side) -> bool:
    """True as soon as a server answers; False where it ends before, or takes too long."""
    deadline = time.monotonic() + SERVER_SECONDS
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline and server.process.poll() is None:
        with suppress(URLError, OSError):
            opener.open(f"{address}/health", timeout=5)
            return True
        time.sleep(1)
    print(server.log.read_text(errors="replace")[-3000:], file=sys.stderr)
    return False


def grpo_on_server(setting: Setting) -> Iterator[Row]:
    """GRPO of both sides on a server of vLLM, which takes a card beside that of the training."""
    python = setting.vllm_python
    if not is_importable("vllm", python):
        yield Row("both", note="needs vllm")
        return
    if torch.cuda.device_count() < 2:
        note = "needs two cards: TRL moves weights to a server over NCCL, from card to card alone"
        yield Row("both", note=note)
        return
    for name, build in (("ours", our_side), ("TRL", plain_side)):
        words = setting.words(f"grpo_server_{name}", GRPO) | ON_BF16 | SHORT
        with vllm_server(setting, setting.model("qwen"), card=1) as address:
            words |= {
                "trainer.args.use_vllm": "true",
                "trainer.args.vllm_mode": "server",
                "trainer.args.vllm_server_base_url": address,
            }
            result = setting.scratch / f"grpo-server-{name}.json"
            side = build(words, result, python=python, variables={"CUDA_VISIBLE_DEVICES": "0"})
            side.start()
            figures = side.wait()
            yield failed_row(side) if figures is None else row_of(name, figures)


# --- FSDP2 --------------------------------------------------------------------------------------


def fsdp2(setting: Setting) -> Iterator[Row]:
    """Training of all weights by one process, as it is and with its model sharded by FSDP2.

    The runner refuses ``strategy=fsdp2`` for a single process, which gains nothing by it. So here
    accelerate is told by the environment, as ``accelerate launch`` does it.
    """
    words = setting.words("fsdp2", SFT) | NO_ADAPTER | SAME_ROWS
    whole = our_side(words, setting.scratch / "whole.json")
    variables = FSDP2 | ({"RUNNER_TEST_FSDP_ON_CPU": "1"} if setting.tiny else {})
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    words |= {"output_root": setting.scratch / "made" / "sharded"}
    sharded = our_side(
        words, setting.scratch / "sharded.json", launcher=launcher, variables=variables
    )
    whole.name = "whole"
    sharded.name = "sharded"
    losses = []
    for side, figures in run_in_order([whole, sharded]):
        if figures is None:
            yield failed_row(side)
            continue
        losses.append([step["loss"] for step in figures["steps"]])
        note = ""
        if side is sharded and not figures["is_sharded"]:
            note = "failed: the model is not sharded"
        elif len(losses) == 2:
            gaps = [abs(one - other) for one, other in zip(*losses, strict=True)]
            note = f"losses differ by at most {max(gaps):.1e}"
        yield replace(row_of(side.name, figures, note), failed=note.startswith("failed"))


# --- All of them --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A part of the script, and the most seconds that it may take on an H100."""

    run: Callable[[Setting], Iterator[Row]]
    seconds: int
    by_default: bool = False


def _comparison(name: str, seconds: int, *, by_default: bool = False, **fields: Any) -> Part:
    run = functools.partial(compare, name, Comparison(**fields))
    return Part(run, seconds, by_default)


PARTS = {
    "sft_max": _comparison(
        "sft_max", 40, by_default=True, experiment=SFT, words=ON_BF16, is_fast=True
    ),
    "dpo_max": _comparison(
        "dpo_max", 35, by_default=True, experiment=DPO, words=ON_BF16, is_fast=True
    ),
    "grpo_max": _comparison(
        "grpo_max", 45, by_default=True, experiment=GRPO, words=ON_BF16 | SHORT, is_fast=True
    ),
    "ppo": Part(functools.partial(ppo_beside_trl, "lora"), 75, by_default=True),
    "grpo_vllm": _comparison(
        "grpo_vllm",
        80,
        by_default=True,
        experiment=GRPO,
        words=ON_BF16
        | SHORT
        | BESIDE_TRAINING
        | {"trainer.args.use_vllm": "true", "trainer.args.vllm_mode": "colocate"},
        is_fast=True,
        needs="vllm",
    ),
    "grpo_server": Part(grpo_on_server, 5, by_default=True),
    "ppo_vllm": Part(ppo_on_vllm, 130, by_default=True),
    "fsdp2": Part(fsdp2, 40, by_default=True),
    "repeat": Part(repeat, 30, by_default=True),
    # the same arguments, rows and order on both sides
    "sft": _comparison("sft", 40, experiment=SFT, words=ON_BF16 | SAME_ROWS),
    "dpo": _comparison("dpo", 40, experiment=DPO, words=ON_BF16),
    "grpo": _comparison("grpo", 50, experiment=GRPO, words=ON_BF16 | SHORT),
    "sft_full": _comparison("sft_full", 40, experiment=SFT, words=NO_ADAPTER | SAME_ROWS),
    "dpo_full": _comparison("dpo_full", 50, experiment=DPO, words=NO_ADAPTER),
    "sft_4bit": _comparison(
        "sft_4bit",
        50,
        experiment=SFT,
        words=ON_BF16 | SAME_ROWS | {"quant": "4bit"},
        needs="bitsandbytes",
    ),
    "sft_liger": _comparison(
        "sft_liger",
        60,
        experiment=SFT,
        words=ON_BF16 | SAME_ROWS | {"trainer.args.use_liger_kernel": "true"},
        needs="liger_kernel",
    ),
    "sft_compile": _comparison(
        "sft_compile",
        180,
        experiment=SFT,
        words=ON_BF16,
        is_fast=True,
        further={"torch_compile": True},
    ),
    "ppo_full": Part(functools.partial(ppo_beside_trl, "full"), 120),
    "ppo_lora_bf16": Part(functools.partial(ppo_beside_trl, "lora_bf16"), 70),
    "ppo_4bit": Part(functools.partial(ppo_beside_trl, "4bit"), 70),
}
