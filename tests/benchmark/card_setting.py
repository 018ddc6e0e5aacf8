"""What each part of ``card.py`` is given, and the row of the table that it yields."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from card_sides import ARCHITECTURES, SMALL, WARM_STEPS, words_of, write_model, write_rows

SFT = "sft_qwen_tldr"
DPO = "dpo_qwen_descriptiveness"
GRPO = "grpo_qwen_tldr"
PPO = "ppo_pythia_tldr"


@dataclass(frozen=True)
class Setting:
    """Where and how the parts run."""

    scratch: Path
    tiny: bool
    steps: int
    vllm_python: str  # the interpreter of an environment with vLLM

    def model(self, name: str) -> Path:
        """The folder of a model, which is written when it is first asked for."""
        folder = self.scratch / name
        if not (folder / "tokenizer_config.json").exists():  # written last
            values = ARCHITECTURES[name] | (SMALL if self.tiny else {})
            write_model(folder, values, scores=name == "reward")
        return folder

    def words(self, part: str, experiment: str) -> dict[str, object]:
        """The words of a training of an experiment on made rows."""
        rows = self.scratch / f"{experiment}.jsonl"
        write_rows(rows, experiment, 96 if self.tiny else 500)
        model = self.model(experiment.split("_")[1])
        output_root = self.scratch / "made" / part
        steps = self.steps
        if experiment in (GRPO, PPO):  # which sample in each
            steps = max(WARM_STEPS + 2, steps // 2)
        words = words_of(experiment, model, rows, output_root, steps)
        if experiment == PPO:
            words |= {"reward": "tldr_model", "reward.model.path": self.model("reward")}
        return words

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a side with vLLM."""
        return {"VLLM_CPU_KVCACHE_SPACE": "1"} if self.tiny else {}


@dataclass
class Row:
    """A line of the table; None is what was not measured."""

    side: str
    tokens_per_second: float | None = None
    milliseconds: float | None = None  # of a step, in the median
    cpu_milliseconds: float | None = None  # of the process in that step
    peak_gb: float | None = None
    note: str = ""
    failed: bool = False
