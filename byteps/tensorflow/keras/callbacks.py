"""`byteps.keras.callbacks` under the name that scripts of tf.keras import."""

from byteps.keras.callbacks import *  # noqa: F403
