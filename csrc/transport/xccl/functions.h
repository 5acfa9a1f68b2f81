// Declares the functions of libraries shaped like NCCL. All of them have the same names, arguments and constants.
#pragma once

#include <climits>
#include <cstddef>

namespace perseus::xccl {

using Comm = void*;
using Stream = void*;

// The id of a communicator, as large as in any library. It is passed by value in memory, so that a library with a
// smaller id reads the beginning.
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

// An operation. red_op_create_pre_mul_sum makes values from 5 on.
using Op = int;
inline constexpr Op kSum = 0, kProduct = 1, kMax = 2, kMin = 3, kFirstOwnOp = 5;

inline constexpr int kSuccess = 0;
inline constexpr int kScalarOnHost = 1;   // read before the call returns
inline constexpr int kRevokeDefault = 0;  // the only flags of comm_revoke

// The settings of a communicator, as they are since NCCL 2.18. Later versions add members: `size` and `version` state
// that those are not there.
struct CommConfig {
  static constexpr int kUndefined = INT_MIN;
  std::size_t size = sizeof(CommConfig);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21'800;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined, min_ctas = kUndefined, max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
  int padding = kUndefined;  // later versions have a member here
};

// The table of functions. Those that return int return kSuccess or an error code.
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

  // The following are null if the library does not have them.
  int (*comm_init_rank_config)(Comm*, std::size_t ranks, UniqueId, int rank, CommConfig*) = nullptr;
  int (*comm_abort)(Comm) = nullptr;
  int (*comm_revoke)(Comm, int flags) = nullptr;  // ends work and calls in progress, and frees nothing
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
