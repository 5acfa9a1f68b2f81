// The functions of a library that is shaped like NCCL. Names, order of arguments and numbers are the same in all of
// them.
#pragma once

#include <cstddef>

namespace perseus::xccl {

using Comm = void*;
using Stream = void*;

// As wide as any library has it. It is passed by value and in memory, so that a library with a smaller one reads its
// beginning.
struct UniqueId {
  static constexpr std::size_t kBytes = 4096;
  char bytes[kBytes];
};

enum class DataType : int {
  int8 = 0,
  uint8 = 1,
  int32 = 2,
  int64 = 4,
  float16 = 6,
  float32 = 7,
  float64 = 8,
  bfloat16 = 9,
};

// Values from 5 on are made by red_op_create_pre_mul_sum.
using Op = int;
inline constexpr Op kSum = 0, kProduct = 1, kMax = 2, kMin = 3, kFirstOwnOp = 5;

inline constexpr int kSuccess = 0;
inline constexpr int kScalarOnHost = 1;  // read before the call returns

// All that return a number return kSuccess or a code of their own.
struct Functions {
  int (*get_version)(int*) = nullptr;
  int (*get_unique_id)(UniqueId*) = nullptr;
  int (*comm_init_rank)(Comm*, std::size_t ranks, UniqueId, int rank) = nullptr;
  int (*comm_destroy)(Comm) = nullptr;
  const char* (*get_error_string)(int) = nullptr;
  const char* (*get_last_error)(Comm) = nullptr;

  int (*all_reduce)(const void*, void*, std::size_t, DataType, Op, Comm, Stream) = nullptr;
  int (*broadcast)(const void*, void*, std::size_t, DataType, int root, Comm, Stream) = nullptr;
  int (*reduce)(const void*, void*, std::size_t, DataType, Op, int root, Comm, Stream) = nullptr;
  int (*all_gather)(const void*, void*, std::size_t, DataType, Comm, Stream) = nullptr;
  int (*reduce_scatter)(const void*, void*, std::size_t, DataType, Op, Comm, Stream) = nullptr;

  // Null where a library has none.
  int (*comm_abort)(Comm) = nullptr;
  int (*comm_get_async_error)(Comm, int*) = nullptr;
  int (*send)(const void*, std::size_t, DataType, int peer, Comm, Stream) = nullptr;
  int (*recv)(void*, std::size_t, DataType, int peer, Comm, Stream) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*all_to_all)(const void*, void*, std::size_t, DataType, Comm, Stream) = nullptr;
  int (*red_op_create_pre_mul_sum)(Op*, void* scalar, DataType, int residence, Comm) = nullptr;
  int (*red_op_destroy)(Op, Comm) = nullptr;
  int (*comm_register)(Comm, void*, std::size_t, void** handle) = nullptr;
  int (*comm_deregister)(Comm, void* handle) = nullptr;
};

}  // namespace perseus::xccl
