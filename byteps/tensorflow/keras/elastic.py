"""`byteps.keras.elastic` under the name that scripts of tf.keras import."""

from byteps.keras.elastic import *  # noqa: F403
