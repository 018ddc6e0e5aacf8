"""The operation of a forward pass that gives a gradient of NaN, for ``debug=anomaly``."""

import torch
from transformers import TrainerCallback


class Anomaly(TrainerCallback):
    """Has torch name the operation of the forward pass whose gradient is NaN."""

    def on_train_begin(self, *_: object, **given: object) -> None:
        torch.autograd.set_detect_anomaly(True)

    def on_train_end(self, *_: object, **given: object) -> None:
        torch.autograd.set_detect_anomaly(False)
