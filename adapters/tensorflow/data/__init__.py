"""Refuses Horovod's compute service for tf.data: horovod.tensorflow.data.compute_service and compute_worker."""

raise ImportError(
    "perseus_like.tensorflow.data: there is no compute service for tf.data. Use TensorFlow's own service: start "
    "a tf.data.experimental.service.DispatchServer on rank 0, send its target to all ranks by hvd.broadcast_object(), "
    "start a WorkerServer where data is to be prepared, and apply tf.data.experimental.service.distribute() to the data"
)
