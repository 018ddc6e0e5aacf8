"""Facts of a configuration by which an alarm tells one cause of a sickness from another."""

from collections.abc import Iterator, Mapping

from peft import PeftConfig
from transformers import TrainingArguments

from runner.config.experiment import Experiment
from runner.config.menu import read_options
from runner.run import Run
from runner.run.alarms import Facts
from runner.schema.literal import number
from runner.schema.text import Node

# A temperature, or a share of the probability, below which a model hardly ever samples a second
# answer to a prompt.
GREEDY = 0.1
GROUPS_WITH_RATES = ("trainer", "model", "experiment")  # whose options set a learning rate
ALIKE = "the completions of a prompt are all alike"


def find_facts(
    run: Run, args: TrainingArguments, peft: PeftConfig | None, *, online: bool
) -> Facts:
    """The facts of a run; an ``online`` one learns from what it samples."""
    return Facts(
        usual_rate=usual_rate(run, args, peft),
        max_grad_norm=args.max_grad_norm or 0.0,
        has_kl_coef=run.experiment.kl_coef is not None,
        steps_within=hasattr(args, "num_ppo_epochs"),
        has_environment=run.experiment.environment is not None,
        greedy=sampling_advice(args) if online else "",
        reward_weights=tuple(getattr(args, "reward_weights", None) or ()),
        changed=tuple(_suspect_parts(run.experiment)),
    )


def _suspect_parts(experiment: Experiment) -> Iterator[str]:
    """Advice on each part of a configuration that can make a loss infinite."""
    if experiment.weights:
        yield "smaller weights (weight=)"
    if experiment.loss:
        yield "another loss="
    changed = experiment.model.node.get("config")
    if changed:
        keys = ", ".join(f"model.config.{key}=" for key in changed)
        yield f"no {keys}"


def usual_rate(run: Run, args: TrainingArguments, peft: PeftConfig | None) -> float | None:
    """The highest learning rate that the options of a run bring, with the factor of its adapter.

    None where there is no such rate or factor, or where the optimizer has a scale of its own.
    """
    configured = run.experiment.optimizer
    optimizer = configured.target if configured else str(args.optim)
    tuner = run.experiment.peft
    factor = (tuner and tuner.learning_rate_factor) or 1.0
    if "adam" not in optimizer.lower() or (peft is not None and factor == 1.0):
        return None
    rates = list[float]()
    choices: Mapping[str, str] = run.manifest().get("choices") or {}
    for group, option in choices.items():
        if group in GROUPS_WITH_RATES:
            settings = read_options(group).get(option) or {}
            if settings.get("learning_rate") is not None:
                rate = float(settings["learning_rate"])
                rates.append(rate * factor if group == "trainer" else rate)
    return max(rates, default=None)


def sampling_advice(args: TrainingArguments) -> str:
    """Advice where the completions of a prompt are sampled all alike; empty where they are not."""
    generation: Node = getattr(args, "generation_kwargs", None) or {}

    def setting(name: str, default: float | None = None) -> tuple[str, float | None]:
        """The key that decides a setting of the sampler, and its value."""
        if name in generation:
            return f"trainer.args.generation_kwargs.{name}", generation[name]
        return f"trainer.args.{name}", getattr(args, name, default)

    if generation.get("do_sample") is False:
        fix = "trainer.args.generation_kwargs.do_sample=true"
        return f"{fix}, because greedy completions of a prompt are all alike"
    key, temperature = setting("temperature", 1.0)
    if temperature is not None and temperature < GREEDY:
        return f"{key}=1, because at {number(temperature)} {ALIKE}"
    key, top_k = setting("top_k")
    if top_k == 1:
        return f"{key}=0, because at {top_k} {ALIKE}"
    key, top_p = setting("top_p")
    if top_p is not None and top_p < GREEDY:
        return f"{key}=1, because at {top_p} {ALIKE}"
    return ""
