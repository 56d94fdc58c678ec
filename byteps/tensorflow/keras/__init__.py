"""`byteps.keras` under the name that scripts of tf.keras import."""

import byteps.tensorflow.keras.callbacks  # (so that it is an attribute)
import byteps.tensorflow.keras.elastic  # noqa: F401
from byteps.keras import *  # noqa: F403
from byteps.keras import __all__ as __all__
