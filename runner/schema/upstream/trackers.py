"""The trackers that transformers has a callback for, one record each.

A record is all that our code knows of a tracker: what it needs, what leaves this machine, where it
writes. Every check, refusal and deletion that concerns trackers is derived from the records, so
that a further one needs no code. How a tracker is set up stands in ``conf/tracker``, or in a YAML
in a folder of the user's own.

No record lists all variables of its tracker. A file by somebody else may set those that are listed
here as harmless, or to a value that keeps everything on this machine and in the run; any other
variable must be typed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

MODES = ("online", "offline", "disabled")  # the values of our key ``tracker.mode``
QUIET_MODES = MODES[1:]  # with these, nothing leaves this machine


@dataclass(frozen=True)
class TrackerLibrary:
    """One tracker."""

    name: str  # in report_to
    library: str = ""  # as it is imported; empty for a service of the environment
    package: str = ""  # as pip installs it
    prefix: str = ""  # of its variables
    substitute: str = ""  # a library that serves in place of its own
    needed_variable: str = ""  # without it nothing works, and somebody else sets it
    key_variable: str = ""  # holds the secret that logs in
    login_files: tuple[str, ...] = ()  # one of them holds it after a login
    login_command: str = ""  # makes such a file

    # Our keys, and the variables that pass them on
    project_variable: str = ""  # of tracker.project
    default_project: str = "runner"
    project_field: bool = False  # the trainer's config takes tracker.project
    entity_variable: str = ""  # of tracker.entity
    modes: Mapping[str, str] = field(default_factory=dict)  # its words for tracker.mode

    takes_history: bool = True  # figures of a run that is over, too

    # What leaves this machine
    uploads: bool = True  # it sends the figures to a server by itself
    mode_variable: str = ""  # decides whether it does
    quiet_modes: tuple[str, ...] = ()  # values of that variable with which nothing is sent
    sending_modes: tuple[str, ...] = ()  # its other valid values
    usual_modes: str = ""  # the values that a fault recommends, in words
    address_variables: tuple[str, ...] = ()  # of the servers that it sends to
    store_variable: str = ""  # the address of a server, or a database or folder of this machine
    space_variable: str = ""  # the space of the hub where it publishes the figures

    # What happens on this machine
    code_variables: tuple[str, ...] = ()  # each names a program that it runs
    folder_variables: tuple[str, ...] = ()  # each names a folder that it writes
    harmless_variables: tuple[str, ...] = ()  # may have any value
    run_folder: str = ""  # the name of the folder that it writes inside a run folder
    makes_links: bool = False  # in that folder, which is therefore not searched for links

    @property
    def may_send(self) -> bool:
        """True where the figures may leave this machine, by default or by a variable."""
        return self.uploads or bool(self.store_variable or self.space_variable)

    def variables_for(
        self, project: str | None, entity: str | None, mode: str | None
    ) -> dict[str, str]:
        """The variables that pass on those of our keys that it takes."""
        values = {
            self.project_variable: project or self.default_project,
            self.entity_variable: entity,
            self.mode_variable: self.modes.get(mode or ""),
        }
        return {name: value for name, value in values.items() if name and value}

    def takes(self, key: str) -> bool:
        """True for one of our keys that it takes: project, entity or mode."""
        if key == "project":
            return bool(self.project_variable) or self.project_field
        return bool(self.entity_variable if key == "entity" else self.modes)

    def sends_in(self, mode: object) -> bool:
        """True where the tracker sends the figures in this mode; None is its default."""
        return mode not in self.quiet_modes


_TRACKERS = (
    TrackerLibrary("azure_ml", "azureml", "azureml-core", "AZUREML_", takes_history=False),
    TrackerLibrary(
        "clearml",
        "clearml",
        "clearml",
        "CLEARML_",
        key_variable="CLEARML_API_SECRET_KEY",
        login_files=("$CLEARML_CONFIG_FILE", "~/clearml.conf"),
        login_command="clearml-init",
        project_variable="CLEARML_PROJECT",
        modes={"online": "0", "offline": "1"},
        mode_variable="CLEARML_OFFLINE_MODE",
        quiet_modes=("1", "true", "yes", "on"),
        sending_modes=("0", "false", "no", "off", ""),
        usual_modes="1 or 0",
        address_variables=("CLEARML_API_HOST", "CLEARML_WEB_HOST", "CLEARML_FILES_HOST"),
        folder_variables=("CLEARML_CACHE_DIR",),
        harmless_variables=("CLEARML_PROJECT", "CLEARML_TASK", "CLEARML_LOG_MODEL"),
        run_folder="clearml",
    ),
    TrackerLibrary(
        "codecarbon",
        "codecarbon",
        "codecarbon",
        "CODECARBON_",
        takes_history=False,
        project_variable="CODECARBON_PROJECT_NAME",
        harmless_variables=(
            "CODECARBON_PROJECT_NAME",
            "CODECARBON_LOG_LEVEL",
            "CODECARBON_MEASURE_POWER_SECS",
            "CODECARBON_TRACKING_MODE",
        ),
    ),
    TrackerLibrary(
        "comet_ml",
        "comet_ml",
        "comet-ml",
        "COMET_",
        key_variable="COMET_API_KEY",
        login_files=("$COMET_CONFIG", "~/.comet.config", ".comet.config"),
        login_command="comet login",
        project_variable="COMET_PROJECT_NAME",
        entity_variable="COMET_WORKSPACE",
        modes={"online": "true", "offline": "false"},
        mode_variable="COMET_START_ONLINE",
        quiet_modes=("false", "0", "no"),
        sending_modes=("true", "1", "yes", ""),
        usual_modes="true or false",
        address_variables=("COMET_URL_OVERRIDE",),
        folder_variables=("COMET_OFFLINE_DIRECTORY",),
        harmless_variables=(
            "COMET_PROJECT_NAME",
            "COMET_WORKSPACE",
            "COMET_LOGGING_CONSOLE",
            "COMET_AUTO_LOG_CO2",
            "COMET_DISABLE_AUTO_LOGGING",
            "COMET_DISPLAY_SUMMARY_LEVEL",
        ),
        run_folder="comet",
    ),
    TrackerLibrary(
        "dagshub",
        "dagshub",
        "dagshub",
        "DAGSHUB_",
        needed_variable="MLFLOW_TRACKING_URI",
        key_variable="DAGSHUB_USER_TOKEN",
        login_files=("~/.cache/dagshub/tokens", "~/Library/Caches/dagshub/tokens"),
        login_command="dagshub login",
        project_variable="MLFLOW_EXPERIMENT_NAME",
        default_project="{name}",
    ),
    TrackerLibrary(
        "dvclive",
        "dvclive",
        "dvclive",
        "DVCLIVE_",
        uploads=False,
        harmless_variables=("DVCLIVE_LOGLEVEL",),
        run_folder="dvclive",
    ),
    TrackerLibrary(
        "flyte",
        "flytekit",
        "flytekit",
        "FLYTE_",
        needed_variable="FLYTE_INTERNAL_EXECUTION_ID",  # of a task
        takes_history=False,
    ),
    TrackerLibrary("kubeflow", needed_variable="KUBEFLOW_TRAINER_SERVER_URL", takes_history=False),
    TrackerLibrary(
        "mlflow",
        "mlflow",
        "mlflow",
        "MLFLOW_",
        project_variable="MLFLOW_EXPERIMENT_NAME",
        default_project="{name}",
        uploads=False,
        store_variable="MLFLOW_TRACKING_URI",
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
    TrackerLibrary(
        "neptune",
        "neptune",
        "neptune",
        "NEPTUNE_",
        key_variable="NEPTUNE_API_TOKEN",
        project_variable="NEPTUNE_PROJECT",
        default_project="",
        modes={"online": "async", "disabled": "debug"},
        mode_variable="NEPTUNE_MODE",
        quiet_modes=("debug",),
        sending_modes=("async", "sync", ""),
        usual_modes="async, sync or debug",
        harmless_variables=("NEPTUNE_PROJECT",),
    ),
    TrackerLibrary(
        "swanlab",
        "swanlab",
        "swanlab",
        "SWANLAB_",
        key_variable="SWANLAB_API_KEY",
        login_files=("~/.swanlab/.netrc",),
        login_command="swanlab login",
        project_variable="SWANLAB_PROJ_NAME",  # versions from 0.8 on cannot read SWANLAB_PROJECT
        entity_variable="SWANLAB_WORKSPACE",
        modes={"online": "cloud", "offline": "offline", "disabled": "disabled"},
        mode_variable="SWANLAB_MODE",
        quiet_modes=("offline", "local", "disabled"),
        sending_modes=("cloud", "online"),
        usual_modes="cloud, offline or disabled",
        address_variables=("SWANLAB_API_HOST", "SWANLAB_WEB_HOST"),
        folder_variables=("SWANLAB_LOG_DIR",),
        harmless_variables=(
            "SWANLAB_PROJECT",
            "SWANLAB_PROJ_NAME",
            "SWANLAB_WORKSPACE",
            "SWANLAB_EXP_NAME",
            "SWANLAB_DESCRIPTION",
            "SWANLAB_TAGS",
            "SWANLAB_GROUP",
            "SWANLAB_JOB_TYPE",
            "SWANLAB_RUN_ID",
            "SWANLAB_RESUME",
            "SWANLAB_LOG_LEVEL",
            "SWANLAB_DISABLE_GIT",
        ),
        run_folder="swanlab",
        makes_links=True,
    ),
    TrackerLibrary(
        "tensorboard",
        "tensorboard",
        "tensorboard",
        "TENSORBOARD_",
        substitute="tensorboardX",
        uploads=False,
        folder_variables=("TENSORBOARD_LOGGING_DIR",),
        run_folder="tensorboard",
    ),
    TrackerLibrary(
        "trackio",
        "trackio",
        "trackio",
        "TRACKIO_",
        project_field=True,
        uploads=False,
        space_variable="TRACKIO_SPACE_ID",
        folder_variables=("TRACKIO_DIR",),
    ),
    TrackerLibrary(
        "wandb",
        "wandb",
        "wandb",
        "WANDB_",
        key_variable="WANDB_API_KEY",
        login_files=("$NETRC", "~/.netrc", "~/_netrc"),
        login_command="wandb login",
        project_variable="WANDB_PROJECT",
        entity_variable="WANDB_ENTITY",
        modes={mode: mode for mode in MODES},
        mode_variable="WANDB_MODE",
        quiet_modes=("offline", "disabled", "dryrun"),
        sending_modes=("online", "shared", "run", ""),
        usual_modes="online, offline or disabled",
        address_variables=("WANDB_BASE_URL",),
        code_variables=("WANDB__EXECUTABLE",),
        folder_variables=("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_CONFIG_DIR"),
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
        run_folder="wandb",
        makes_links=True,
    ),
)
TRACKERS = {tracker.name: tracker for tracker in _TRACKERS}
REPORT_TO = ("none", "all", *TRACKERS)  # the values that report_to may have
