// The part of CUDA's runtime header that nccl.h uses. The wheels' own header needs files of the compiler's wheels.
#pragma once
#include <stddef.h>
#define __CUDA_BF16_TYPES_EXIST__  // older releases of nccl.h name bfloat16 only then
using cudaStream_t = struct CUstream_st*;
