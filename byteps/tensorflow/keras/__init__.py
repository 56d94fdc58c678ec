"""`byteps.keras` under the name that scripts of tf.keras import."""

import byteps.tensorflow.keras.callbacks  # noqa: F401  (so that it is an attribute)
from byteps.keras import *  # noqa: F403
from byteps.keras import __all__ as __all__
