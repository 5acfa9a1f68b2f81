// Declares the part of UCX's C ABI (ucp.h) that this library uses. Each struct has a mask of the members that are set,
// and later versions only append members.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>

namespace perseus::ucx {

using Status = std::int8_t;
using Context = void*;
using Worker = void*;
using Endpoint = void*;
using Message = void*;
using WireTag = std::uint64_t;

inline constexpr Status kOk = 0, kInProgress = 1, kBusy = -15;

inline constexpr std::uint64_t kFeatureTag = 1 << 0, kFeatureWakeup = 1 << 4;

struct Params {
  static constexpr std::uint64_t kFeatures = 1 << 0, kRequestSize = 1 << 1, kRequestInit = 1 << 2,
                                 kSharedByThreads = 1 << 5;
  std::uint64_t mask = 0;
  std::uint64_t features = 0;
  std::size_t request_size = 0;
  void (*request_init)(void*) = nullptr;
  void (*request_cleanup)(void*) = nullptr;
  std::uint64_t tag_sender_mask = 0;
  int shared_by_threads = 0;
  std::size_t estimated_endpoints = 0;
  std::size_t estimated_local_processes = 0;
  const char* name = nullptr;
  std::size_t local_id = 0;
};

struct WorkerParams {
  static constexpr std::uint64_t kThreadMode = 1 << 0;
  static constexpr int kSerialized = 1;
  std::uint64_t mask = 0;
  int thread_mode = 0;
  std::uint64_t cpu_mask[16] = {};
  unsigned events = 0;
  void* user_data = nullptr;
  int event_fd = -1;
  std::uint64_t flags = 0;
  const char* name = nullptr;
  std::size_t alignment = 0;
  std::uint64_t client_id = 0;
};

struct SocketAddress {
  const sockaddr* address = nullptr;
  socklen_t length = 0;
};

struct EndpointParams {
  static constexpr std::uint64_t kAddress = 1 << 0, kErrorMode = 1 << 1, kErrorHandler = 1 << 2;
  static constexpr int kErrorModePeer = 1;
  std::uint64_t mask = 0;
  const void* address = nullptr;
  int error_mode = 0;
  void (*error_handler)(void*, Endpoint, Status) = nullptr;
  void* error_argument = nullptr;
  void* user_data = nullptr;
  unsigned flags = 0;
  SocketAddress socket = {};
  void* connection_request = nullptr;
  const char* name = nullptr;
  SocketAddress local_socket = {};
};

struct ReceivedTag {
  WireTag tag = 0;
  std::size_t bytes = 0;
};

struct RequestParam {
  static constexpr std::uint32_t kCallback = 1 << 1, kFlags = 1 << 4, kMemoryType = 1 << 6;
  static constexpr unsigned kCloseByForce = 1;
  using Sent = void (*)(void* request, Status status, void* user_data);
  using Received = void (*)(void* request, Status status, const ReceivedTag* tag, void* user_data);
  std::uint32_t mask = 0;
  std::uint32_t flags = 0;
  void* request = nullptr;
  union {
    Sent sent;
    Received received;
  } callback = {nullptr};
  std::uint64_t datatype = 0;
  void* user_data = nullptr;
  void* reply_buffer = nullptr;
  int memory_type = 0;  // 0: the host's
  void* received_tag = nullptr;
  void* memory = nullptr;
};

}  // namespace perseus::ucx
