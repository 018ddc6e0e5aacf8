"""The trackers that transformers has a callback for: package, variables, what leaves the machine.

A record is all that we know of a tracker; those that we complete have a callback of ours beside it.
A tracker that is set up in another way than by ``conf/tracker`` needs one YAML in a folder of the
user's own.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class TrackerLibrary:
    """One tracker."""

    name: str  # in report_to
    library: str = ""  # as it is imported; empty for a service of the environment
    package: str = ""  # as pip installs it
    prefix: str = ""  # of its variables
    uploads: bool = True  # it sends the figures to a server by itself
    # A variable without which it cannot work, and that somebody else sets.
    needed_variable: str = ""
    # A variable of the user's environment that may lead it from this machine to a server.
    leading_variable: str = ""
    # Variables that lead it nowhere. Any other of its variables may.
    harmless_variables: tuple[str, ...] = ()


LIBRARIES = {
    tracker.name: tracker
    for tracker in (
        TrackerLibrary("azure_ml", "azureml", "azureml-sdk", "AZUREML_"),
        TrackerLibrary("clearml", "clearml", "clearml", "CLEARML_"),
        TrackerLibrary("codecarbon", "codecarbon", "codecarbon", "CODECARBON_"),
        TrackerLibrary("comet_ml", "comet_ml", "comet-ml", "COMET_"),
        TrackerLibrary(
            "dagshub",
            "dagshub",
            "dagshub",
            "DAGSHUB_",
            needed_variable="MLFLOW_TRACKING_URI",
        ),
        TrackerLibrary("dvclive", "dvclive", "dvclive", "DVCLIVE_"),
        TrackerLibrary("flyte", "flytekit", "flytekit", "FLYTE_"),
        TrackerLibrary("kubeflow", needed_variable="KUBEFLOW_TRAINER_SERVER_URL"),
        TrackerLibrary(
            "mlflow",
            "mlflow",
            "mlflow",
            "MLFLOW_",
            uploads=False,
            leading_variable="MLFLOW_TRACKING_URI",
            harmless_variables=(
                "MLFLOW_EXPERIMENT_NAME",
                "MLFLOW_FLATTEN_PARAMS",
                "MLFLOW_MAX_LOG_PARAMS",
                "MLFLOW_NESTED_RUN",
                "MLFLOW_RUN_ID",
                "MLFLOW_RUN_NAME",
                "MLFLOW_TAGS",
            ),
        ),
        TrackerLibrary("neptune", "neptune", "neptune", "NEPTUNE_"),
        TrackerLibrary("swanlab", "swanlab", "swanlab", "SWANLAB_"),
        TrackerLibrary("tensorboard", "tensorboard", "tensorboard", "TENSORBOARD_", uploads=False),
        TrackerLibrary(
            "trackio",
            "trackio",
            "trackio",
            "TRACKIO_",
            uploads=False,
            leading_variable="TRACKIO_SPACE_ID",
        ),
        TrackerLibrary(
            "wandb",
            "wandb",
            "wandb",
            "WANDB_",
            harmless_variables=(
                "WANDB_PROJECT",
                "WANDB_ENTITY",
                "WANDB_NAME",
                "WANDB_NOTES",
                "WANDB_TAGS",
                "WANDB_JOB_TYPE",
                "WANDB_RUN_GROUP",
                "WANDB_RUN_ID",
                "WANDB_RESUME",
                "WANDB_SILENT",
                "WANDB_QUIET",
                "WANDB_CONSOLE",
                "WANDB_WATCH",
                "WANDB_LOG_MODEL",
                "WANDB_DISABLED",
                "WANDB_INIT_TIMEOUT",
                "WANDB_DISABLE_CODE",
                "WANDB_DISABLE_GIT",
            ),
        ),
    )
}
TRACKERS = ("none", "all", *LIBRARIES)  # that report_to may name
# Any other variable could change what other programs do.
PREFIXES = tuple(tracker.prefix for tracker in LIBRARIES.values() if tracker.prefix)
