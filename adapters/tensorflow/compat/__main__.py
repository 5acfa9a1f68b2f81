"""`python -m perseus_like.tensorflow.compat`: says which private parts of the installed TensorFlow have changed."""

import tensorflow as tf

from perseus_like.compat_probes import main

from .probes import PROBES

main(f"TensorFlow {tf.__version__}", PROBES)
