"""Cases of byteps.keras on TensorFlow in one job: importing TensorFlow takes longer than most of them."""

from frameworks.keras_loss_scale_cases import *  # noqa: F403
from frameworks.keras_optimizer_cases import *  # noqa: F403
