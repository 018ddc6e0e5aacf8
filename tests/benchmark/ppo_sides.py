"""One PPO training on one of two sides, ours or TRL 1.12.0's, in a process of its own.

What the ``ppo_*`` scripts beside this file share: the environment with TRL 1.12.0 (the last release
with a PPO trainer), the small models that both sides load from one folder, and the process in which
one training is measured. Left out on purpose: what is compared and how it is shown, which is each
script's own; and any training that both sides share a process for, because memory that one has
freed would be free for the other.

run: python tests/benchmark/ppo_sides.py TRAINING.json RESULT.json [SOCKET]   (the scripts do it)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import multiprocessing
import os
import random
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path.home() / ".cache" / "runner-benchmark"
TRL = "1.12.0"
BESIDE_TRL = ("torch", "transformers", "peft", "accelerate", "datasets", "bitsandbytes")

PAD = 0
STOP = 1
FIRST_WORD = 2
STEADY = 10.0  # the size of the constant direction of a final norm, relative to that of a text


@dataclass(frozen=True)
class Training:
    """Everything that the process of one training needs to know.

    The sides differ in ``side`` and ``critic`` alone.
    """

    side: str  # "ours" or "trl"
    models: str  # a folder filled by write_models or by a script
    updates: int
    batch: int  # rollout rows per update
    response_length: int
    micro_batch: int = 8
    learning_rate: float = 3e-6
    kl_coef: float = 0.05
    max_grad_norm: float = 1.0
    stops: bool = False
    lora_rank: int | None = None
    policy_dtype: str = "float32"
    four_bit: bool = False
    critic: str = "model"  # ours only: TRL's critic is a model of its own, always
    # the reward is the share of this many first words; None: the reward model scores
    targets: int | None = None
    seed: int = 0
    epochs: int = 4  # of an update
    device: str = "cpu"


@dataclass(frozen=True)
class Result:
    """The cost of one training and the lines that it logged."""

    cpu_seconds: float
    # above the memory before the models were loaded, without the code of libraries
    peak_bytes: int
    update_ends: list[float]  # wall clock, seconds
    log: list[dict[str, float]]  # one entry per update


# ---- the other environment ---------------------------------------------------------------------


def trl_python() -> Path:
    """The interpreter of an environment with TRL 1.12.0.

    The libraries beside TRL have the versions that are installed here, so only the trainer differs.
    """
    beside = (f"{name}=={installed(name)}" for name in BESIDE_TRL if installed(name))
    return python_with(f"trl-{TRL}", [f"trl=={TRL}", *beside])


def python_with(name: str, wanted: Sequence[str], without: Sequence[str] = ()) -> Path:
    """The interpreter of an environment with these packages, made at first use and kept under
    ``~/.cache``.

    Those ``without`` which it is to be are taken out again. Raises CalledProcessError where it
    cannot be installed.
    """
    home = (
        CACHE / f"{name}-{hashlib.sha256(' '.join([*wanted, *without]).encode()).hexdigest()[:8]}"
    )
    python = home / "bin" / "python"
    complete = home / "complete"
    if not complete.exists():
        print(f"making {home} with {', '.join(wanted)}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *wanted], check=True)
        if without:
            subprocess.run(
                [str(python), "-m", "pip", "uninstall", "--quiet", "--yes", *without], check=True
            )
        complete.touch()
    return python


def installed(package: str) -> str | None:
    """The version without its local part (``+cpu``), None where the package is missing."""
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return None


# ---- models and prompts ------------------------------------------------------------------------


@dataclass(frozen=True)
class Models:
    """The architecture (GPT-NeoX), the prompts, and how soon the policy stops."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    prompt_lengths: tuple[int, int]
    prompts: int
    # tokens until the policy stops, on average; None: it never does
    mean_response: int | None = None
    # how strongly the logits of the first eighth of the words read one direction of their own
    lean: float = 0.0
    scored: bool = True  # whether there is a reward model


def write_models(folder: Path, models: Models) -> None:
    """Fill the folder with policy, critic, reward model, tokenizer and prompts.

    All weights are random and seeded.
    """
    import torch
    from transformers import GPTNeoXForCausalLM, GPTNeoXForSequenceClassification

    torch.manual_seed(0)
    if torch.cuda.is_available():  # draws a billion numbers at once
        torch.set_default_device("cuda")
    policy = GPTNeoXForCausalLM(neox_config(models))
    lean_to_stop(policy, models.mean_response)
    lean_together(policy, models.vocabulary // 8, models.lean)
    save(folder / "policy", policy)
    del policy  # a large one leaves room for the next
    for name in ("critic", "reward") if models.scored else ("critic",):
        save(folder / name, GPTNeoXForSequenceClassification(neox_config(models)))
    write_prompts(folder, random_prompts(models))


def neox_config(models: Models) -> Any:
    from transformers import GPTNeoXConfig

    return GPTNeoXConfig(
        vocab_size=models.vocabulary,
        hidden_size=models.hidden,
        intermediate_size=4 * models.hidden,
        num_hidden_layers=models.layers,
        num_attention_heads=models.heads,
        pad_token_id=PAD,
        bos_token_id=None,
        eos_token_id=STOP,
        num_labels=1,
    )


def lean_to_stop(policy: PreTrainedModel, mean_response: int | None) -> None:
    """Make the stop token about equally likely everywhere, so that lengths are geometric with this
    mean, or never.

    A direction of the final norm that no text moves much is read by the stop token's row alone.
    """
    import torch

    vocabulary, hidden = policy.get_output_embeddings().weight.shape
    logit = math.log(vocabulary / (mean_response - 1)) if mean_response else -30.0
    direction = torch.nn.functional.normalize(torch.randn(hidden), dim=0)
    with torch.no_grad():
        policy.base_model.final_layer_norm.bias += STEADY * direction
        policy.get_output_embeddings().weight[STOP] = logit / STEADY * direction


def lean_together(policy: PreTrainedModel, words: int, strength: float) -> None:
    """Let the logits of the first words rise and fall together, as those of related words do in a
    trained model.
    """
    import torch

    head = policy.get_output_embeddings().weight
    direction = torch.nn.functional.normalize(torch.randn(head.shape[1]), dim=0)
    with torch.no_grad():
        head[FIRST_WORD : FIRST_WORD + words] += strength * direction


def build_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """One token per word, ``t2 t3 ...``, so that ids and text correspond."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": PAD, "<eos>": STOP} | {
        f"t{number}": number for number in range(FIRST_WORD, vocabulary)
    }
    tokenizer = Tokenizer(WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )


def random_prompts(models: Models) -> list[list[int]]:
    draw = random.Random(0)
    lengths = [draw.randint(*models.prompt_lengths) for _ in range(models.prompts)]
    return [
        [draw.randrange(FIRST_WORD, models.vocabulary) for _ in range(length)] for length in lengths
    ]


def save(folder: Path, model: PreTrainedModel) -> None:
    """Write a model and, beside it, its tokenizer, without progress bars."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    model.save_pretrained(folder)
    build_tokenizer(model.config.vocab_size).save_pretrained(folder)


def write_prompts(folder: Path, prompts: list[list[int]]) -> None:
    (folder / "prompts.json").write_text(json.dumps(prompts))


# ---- one training, seen from the script --------------------------------------------------------


def write_apart(writer: Callable[..., None], folder: Path, *args: Any) -> None:
    """Fill a folder in a process of its own, because a process starts with the peak memory of its
    parent.
    """
    folder.mkdir(parents=True)
    process = multiprocessing.get_context("spawn").Process(target=writer, args=(folder, *args))
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(f"writing the models ended with {process.exitcode}")


def run_apart(training: Training, baton: socket.socket | None = None) -> Result:
    """Train in a process of its own, in the environment of its side.

    With a baton, in turns with the other side.
    """
    python = trl_python() if training.side == "trl" else sys.executable
    threads = {"OMP_NUM_THREADS": "1"} if training.device == "cpu" else {}
    settings = os.environ | threads | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    settings |= (
        {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"} if training.side == "ours" else {}
    )
    if training.side == "trl":
        settings |= {"PYTHONPATH": "", "TRL_EXPERIMENTAL_SILENCE": "1"}
        if training.device == "cuda":  # its own bf16=True has no effect
            settings["ACCELERATE_MIXED_PRECISION"] = "bf16"
    with tempfile.TemporaryDirectory() as folder:
        task, result, log = (
            Path(folder) / name for name in ("training.json", "result.json", "log.txt")
        )
        task.write_text(json.dumps(asdict(training)))
        held = [] if baton is None else [baton.fileno()]
        command = [str(python), __file__, str(task), str(result), *map(str, held)]
        with log.open("w") as output:
            process = subprocess.Popen(
                command, cwd=folder, env=settings, stdout=output, stderr=output, pass_fds=held
            )
        if baton is not None:
            baton.close()  # only the child holds it now, so that its end shows on the other side
        if code := process.wait():
            sys.exit(f"{training}\nended with {code}:\n{log.read_text()[-4000:]}")
        return Result(**json.loads(result.read_text()))


def run_both(training: Training, repeats: int) -> dict[str, list[Result]]:
    """Train on both sides at once, in turns, update by update; each repeat has another seed.

    A machine that is slow for a minute is slow for both.
    """
    results: dict[str, list[Result]] = {"ours": [], "trl": []}
    trl_python()  # made once, before the two threads want it
    for repeat in range(repeats):
        asked = [replace(training, side=side, seed=training.seed + repeat) for side in results]
        with ThreadPoolExecutor() as pool:
            for done, result in zip(
                results.values(), pool.map(run_apart, asked, socket.socketpair()), strict=True
            ):
                done.append(result)
    return results


# ---- one training, seen from its process -------------------------------------------------------


def measure(training: Training, baton: socket.socket | None = None) -> Result:
    """Build the trainer, train, and return the cost."""
    import torch
    from transformers import set_seed

    if training.device == "cpu":
        torch.set_num_threads(1)
    set_seed(training.seed)  # TRL's trainer seeds only a part of what it draws from
    build = {"ours": prepare_ours, "trl": prepare_trl}[training.side](training)
    ends = build_clock(baton)
    before = resident_bytes()
    code = code_bytes()
    trainer = build(callbacks=[ends])
    if baton is not None and training.side == "trl":  # ours begins
        baton.recv(1)
    started = time.process_time()
    trainer.train()
    seconds = time.process_time() - started
    peak = (
        torch.cuda.max_memory_allocated()
        if training.device == "cuda"
        else peak_resident_bytes() - before
    )
    if training.device == "cpu":
        # both sides read the same libraries, and the system can drop those pages
        peak -= code_bytes() - code
    log = [entry for entry in trainer.state.log_history if "objective/scores" in entry]
    numbers = [
        {key: value for key, value in entry.items() if isinstance(value, int | float)}
        for entry in log
    ]
    return Result(seconds, peak, ends.times, numbers)


def resident_bytes() -> int:
    import psutil

    return psutil.Process().memory_info().rss


def code_bytes() -> int:
    """Resident file pages, which hold the code of libraries; 0 if the system does not tell."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssFile"))


def peak_resident_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def build_clock(baton: socket.socket | None) -> Any:
    """A callback that notes when each update ended, and then lets the other side have its turn."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.times: list[float] = []

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.times.append(time.perf_counter())
            if baton is not None:
                with contextlib.suppress(ConnectionError):  # the other side has ended
                    baton.sendall(b".")
                    baton.recv(1)

    return Clock()


def prepare_ours(training: Training, trainer_class: type | None = None) -> Callable[..., Any]:
    """Import our trainer now (imports are not measured); the returned function builds it.

    The class may be another one than PPOTrainer, on the same arguments.
    """
    from datasets import Dataset

    from runner.ppo import PPOConfig, PPOTrainer

    peft_config = lora(training)

    def build(**parts: Any) -> Any:
        prompts = json.loads((Path(training.models) / "prompts.json").read_text())
        rows = Dataset.from_dict(
            {"prompt": [" ".join(f"t{token}" for token in prompt) for prompt in prompts]}
        )
        return (trainer_class or PPOTrainer)(
            model=load_policy(training),
            reward_funcs=build_share(training.targets)
            if training.targets
            else load_scorer(training, "reward"),
            args=PPOConfig(critic=training.critic, **arguments(training)),
            train_dataset=rows,
            processing_class=load_tokenizer(training),
            value_model=load_scorer(training, "critic") if training.critic == "model" else None,
            peft_config=peft_config,
            **parts,
        )

    return build


def prepare_trl(training: Training) -> Callable[..., Any]:
    """Import TRL's trainer now (imports are not measured); the returned function builds it."""
    from datasets import Dataset
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    peft_config = lora(training)

    def build(**parts: Any) -> Any:
        prompts = json.loads((Path(training.models) / "prompts.json").read_text())
        share = (
            build_share_module(training.targets, training.response_length)
            if training.targets
            else None
        )
        return PPOTrainer(
            model=load_policy(training),
            ref_model=None,
            reward_model=share or load_scorer(training, "reward"),
            args=PPOConfig(gradient_checkpointing=False, **arguments(training)),
            train_dataset=Dataset.from_dict({"input_ids": prompts}),
            processing_class=load_tokenizer(training),
            value_model=load_scorer(training, "critic"),
            peft_config=peft_config,
            **parts,
        )

    return build


def arguments(training: Training) -> dict[str, Any]:
    """The arguments that both sides take."""
    return {
        "output_dir": "output",
        "per_device_train_batch_size": training.micro_batch,
        "gradient_accumulation_steps": training.batch // training.micro_batch,
        "num_mini_batches": 1,
        "num_ppo_epochs": training.epochs,
        "total_episodes": training.batch * training.updates,
        "local_rollout_forward_batch_size": training.batch,
        "response_length": training.response_length,
        "stop_token": "eos" if training.stops else None,
        "missing_eos_penalty": 1.0 if training.stops else None,
        "temperature": 1.0,
        "kl_coef": training.kl_coef,
        "learning_rate": training.learning_rate,
        "max_grad_norm": training.max_grad_norm,
        "seed": training.seed,
        "use_cpu": training.device == "cpu",
        "bf16": training.device == "cuda",
        "logging_steps": 1,
        "num_sample_generations": 0,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def load_tokenizer(training: Training) -> PreTrainedTokenizerFast:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(Path(training.models) / "policy")


def load_policy(training: Training) -> PreTrainedModel:
    import torch
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    options: dict[str, Any] = {"dtype": getattr(torch, training.policy_dtype)}
    if training.four_bit:
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        )
    return AutoModelForCausalLM.from_pretrained(Path(training.models) / "policy", **options)


def load_scorer(training: Training, name: str) -> PreTrainedModel:
    """The reward model or the critic: one number per text."""
    from transformers import AutoModelForSequenceClassification

    return AutoModelForSequenceClassification.from_pretrained(Path(training.models) / name)


def lora(training: Training) -> Any:
    if training.lora_rank is None:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=training.lora_rank,
        lora_alpha=2 * training.lora_rank,
        target_modules=["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
        task_type="CAUSAL_LM",
    )


def build_share(targets: int) -> Callable[..., list[float]]:
    """The reward as a function: the share of target words in a completion."""

    def share(completion_ids: list[list[int]], **columns: Any) -> list[float]:
        wanted = range(FIRST_WORD, FIRST_WORD + targets)
        return [sum(token in wanted for token in ids) / len(ids) for ids in completion_ids]

    return share


def build_share_module(targets: int, response_length: int) -> torch.nn.Module:
    """The same reward in TRL's form.

    A "transformer" under ``base_model_prefix``, and ``score`` of its last states.

    The states are the ids themselves; the score of a place is the share of targets among the
    ``response_length`` tokens that end there, and TRL reads it at the last one.
    """
    import torch

    class Ids(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor, **kwargs: Any) -> Any:
            from transformers.modeling_outputs import BaseModelOutput

            return BaseModelOutput(hidden_states=(input_ids.unsqueeze(-1),))

    class Share(torch.nn.Module):
        base_model_prefix = "ids"

        def __init__(self) -> None:
            super().__init__()
            self.ids = Ids()

        def score(self, states: torch.Tensor) -> torch.Tensor:
            hit = (states >= FIRST_WORD) & (states < FIRST_WORD + targets)
            so_far = hit.float().cumsum(1)
            before = torch.nn.functional.pad(so_far, (0, 0, response_length, 0))[
                :, : so_far.shape[1]
            ]
            return (so_far - before) / response_length

    return Share()


if __name__ == "__main__":
    task, result, *held = sys.argv[1:]
    asked = Training(**json.loads(Path(task).read_text()))
    baton = socket.socket(fileno=int(held[0])) if held else None
    Path(result).write_text(json.dumps(asdict(measure(asked, baton))))
