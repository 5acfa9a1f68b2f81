# Sourced by scripts for Intel's oneCCL. perseus_like finds its libraries by itself: there is nothing to set.
:
