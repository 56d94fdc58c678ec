"""Those cases of byteps.keras on TensorFlow that four ranks do no differently than two."""

from frameworks.keras_callback_cases import *  # noqa: F403
from frameworks.keras_saving_cases import *  # noqa: F403
