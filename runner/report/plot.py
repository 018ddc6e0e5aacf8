"""Curves of a run as PNG files."""

from __future__ import annotations

from pathlib import Path

from runner.report.read import curve, names, read_metrics

# Which metrics share a picture: the picture's name, and what the metric's last word may be.
PICTURES = {
    "loss": ("loss", "loss/policy_avg", "loss/value_avg"),
    "kl": ("kl", "objective/kl"),
    "entropy": ("entropy", "policy/entropy_avg"),
    "reward": (
        *("reward", "rewards/margins", "rewards/chosen", "rewards/rejected", "margin"),
        *("objective/scores", "objective/rlhf_reward"),
    ),
    "critic": ("val/explained_variance",),
    "accuracy": ("mean_token_accuracy", "accuracy", "rewards/accuracies"),
    "length": ("completions/mean_length",),
    "learning_rate": ("learning_rate",),
    "grad_norm": ("grad_norm",),
}


def write_plots(metrics: Path, folder: Path, title: str = "") -> list[Path]:
    """Draw one PNG for each kind of metric that the run logged, training and held-out curves together."""
    lines = read_metrics(metrics)
    logged = names(lines)
    written = []
    for picture, wanted in PICTURES.items():
        drawn = [name for name in logged if _belongs(name, wanted) and len(curve(lines, name)[0]) > 0]
        if drawn:
            folder.mkdir(exist_ok=True)
            _draw(
                folder / f"{picture}.png",
                {name: curve(lines, name) for name in drawn},
                picture,
                title,
            )
            written.append(folder / f"{picture}.png")
    return written


def _belongs(name: str, wanted: tuple[str, ...]) -> bool:
    """Whether a metric is one of these, under its own name or that of a held-out set.

    >>> _belongs("eval_sentiment_rewards/margins", ("rewards/margins",))
    True
    >>> _belongs("eval_loss", ("loss",)), _belongs("train_loss", ("loss",))
    (True, False)
    """
    return name in wanted or (name.startswith("eval_") and any(name.endswith(f"_{end}") for end in wanted))


def _draw(path: Path, curves: dict[str, tuple[list[int], list[float]]], label: str, title: str) -> None:
    """One picture; a held-out curve is dashed, in the colour of the training curve of the same metric."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    colours: dict[str, str] = {}
    for name, (steps, values) in sorted(curves.items()):
        colour = colours.setdefault(name.removeprefix("eval_"), f"C{len(colours)}")
        style = "--" if name.startswith("eval_") else "-"
        marker = "o" if len(steps) < 30 else ""
        axes.plot(steps, values, style, label=name, color=colour, marker=marker, markersize=3)
    axes.set(xlabel="step", ylabel=label.replace("_", " "), title=title)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False)
    FigureCanvasAgg(figure).print_png(path)
