"""Cases of byteps.keras on TensorFlow that are the same with two and with four ranks."""

from frameworks.keras_callback_cases import *  # noqa: F403
from frameworks.keras_saving_cases import *  # noqa: F403
