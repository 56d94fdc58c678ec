"""Cases of byteps.keras on TensorFlow in one job, since its import takes long."""

from frameworks.keras_loss_scale_cases import *  # noqa: F403
from frameworks.keras_optimizer_cases import *  # noqa: F403
