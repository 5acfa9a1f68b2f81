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

// REQUIRED(result, member, name, parameters), and OPTIONAL(…) for functions that a library may lack, which are null
// then. `name` follows the prefix of the library. Functions that return int return kSuccess or an error code.
// comm_revoke ends work and calls in progress, and frees nothing.
#define PERSEUS_XCCL_FUNCTIONS(REQUIRED, OPTIONAL)                                                                     \
  REQUIRED(int, get_version, "GetVersion", (int*))                                                                     \
  REQUIRED(int, get_unique_id, "GetUniqueId", (UniqueId*))                                                             \
  REQUIRED(int, comm_init_rank, "CommInitRank", (Comm*, std::size_t ranks, UniqueId, int rank))                        \
  REQUIRED(int, comm_destroy, "CommDestroy", (Comm))                                                                   \
  REQUIRED(const char*, get_error_string, "GetErrorString", (int))                                                     \
  REQUIRED(const char*, get_last_error, "GetLastError", (Comm))                                                        \
  REQUIRED(int, all_reduce, "AllReduce", (const void*, void*, std::size_t, DataType, Op, Comm, Stream))                \
  REQUIRED(int, broadcast, "Broadcast", (const void*, void*, std::size_t, DataType, int root, Comm, Stream))           \
  REQUIRED(int, reduce, "Reduce", (const void*, void*, std::size_t, DataType, Op, int root, Comm, Stream))             \
  REQUIRED(int, all_gather, "AllGather", (const void*, void*, std::size_t, DataType, Comm, Stream))                    \
  REQUIRED(int, reduce_scatter, "ReduceScatter", (const void*, void*, std::size_t, DataType, Op, Comm, Stream))        \
  OPTIONAL(int, comm_init_rank_config, "CommInitRankConfig",                                                           \
           (Comm*, std::size_t ranks, UniqueId, int rank, CommConfig*))                                                \
  OPTIONAL(int, comm_abort, "CommAbort", (Comm))                                                                       \
  OPTIONAL(int, comm_revoke, "CommRevoke", (Comm, int flags))                                                          \
  OPTIONAL(int, comm_get_async_error, "CommGetAsyncError", (Comm, int*))                                               \
  OPTIONAL(int, send, "Send", (const void*, std::size_t, DataType, int peer, Comm, Stream))                            \
  OPTIONAL(int, recv, "Recv", (void*, std::size_t, DataType, int peer, Comm, Stream))                                  \
  OPTIONAL(int, group_start, "GroupStart", ())                                                                         \
  OPTIONAL(int, group_end, "GroupEnd", ())                                                                             \
  OPTIONAL(int, all_to_all, "AllToAll", (const void*, void*, std::size_t, DataType, Comm, Stream))                     \
  OPTIONAL(int, red_op_create_pre_mul_sum, "RedOpCreatePreMulSum", (Op*, void* scalar, DataType, int residence, Comm)) \
  OPTIONAL(int, red_op_destroy, "RedOpDestroy", (Op, Comm))                                                            \
  OPTIONAL(int, comm_register, "CommRegister", (Comm, void*, std::size_t, void** handle))                              \
  OPTIONAL(int, comm_deregister, "CommDeregister", (Comm, void* handle))

struct Functions {
#define PERSEUS_MEMBER(result, member, name, parameters) result(*member) parameters = nullptr;
  PERSEUS_XCCL_FUNCTIONS(PERSEUS_MEMBER, PERSEUS_MEMBER)
#undef PERSEUS_MEMBER
};

}  // namespace perseus::xccl
