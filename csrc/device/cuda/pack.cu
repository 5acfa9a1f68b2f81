// The kernels' entry points. pack_body.h has their implementation. One block processes one tile.
#include "device/cuda/pack_body.h"

namespace perseus::cuda {

#define PERSEUS_KERNELS(tensor, wire, Tensor, Wire)                                                               \
  extern "C" __global__ void __launch_bounds__(kThreads)                                                          \
      perseus_pack_##tensor##_##wire(const Segment* segments, int count, void* buffer, Scaling scaling) {         \
    pack_tile<Tensor, Wire>(segments, count, buffer, scaling, {blockIdx.x, static_cast<int>(threadIdx.x)});       \
  }                                                                                                               \
  extern "C" __global__ void __launch_bounds__(kThreads)                                                          \
      perseus_unpack_##tensor##_##wire(const Segment* segments, int count, const void* buffer, Scaling scaling) { \
    unpack_tile<Tensor, Wire>(segments, count, buffer, scaling, {blockIdx.x, static_cast<int>(threadIdx.x)});     \
  }

PERSEUS_PACKINGS(PERSEUS_KERNELS)

}  // namespace perseus::cuda
