"""The groups of a configuration, each a key of the top level with parts to choose."""

GROUPS: tuple[str, ...] = (
    "trainer",
    "model",
    "dataset",
    "environment",
    "peft",
    "quant",
    "collator",
    "reward",
    "loss",
    "weight",
    "metric",
    "optimizer",
    "callback",
    "tracker",
    "launcher",
)
# Groups that a configuration without them does not name, and whose key it does not have.
OPTIONAL = ("environment", "loss", "weight", "optimizer")
# Groups whose options are parts with names, so that several go together.
SEVERAL = ("reward", "metric", "callback")
# Those, and one whose options are composed into a single part.
LISTED = (*SEVERAL, "tracker")
