"""`python -m perseus_like.keras.compat`: says which private parts of the installed Keras have changed."""

import keras

from perseus_like.compat_probes import main

from .probes import PROBES

main(f"Keras {keras.__version__}", PROBES)
