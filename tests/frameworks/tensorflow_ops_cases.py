"""Cases of operators in one job: importing TensorFlow takes longer than most of them."""

from frameworks.tensorflow_function_cases import *  # noqa: F403
from frameworks.tensorflow_tensor_cases import *  # noqa: F403  (the last one ends the job and begins another)
