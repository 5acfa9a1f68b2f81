# Sourced by scripts for Intel's oneCCL. perseus_like needs nothing of it; accelerate up to 1.12 takes the backend ccl only where
# this variable is set.
export CCL_WORKER_COUNT="${CCL_WORKER_COUNT:-1}"
