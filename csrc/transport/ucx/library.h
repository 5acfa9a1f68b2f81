// Finds and opens UCX at run time, and holds its functions.
#pragma once

#include <string>

#include "transport/library_search.h"
#include "transport/ucx/abi.h"

namespace perseus::ucx {

// X(result, member, name, parameters)
#define PERSEUS_UCX_FUNCTIONS(X)                                                                                   \
  X(void, get_version, "ucp_get_version", (unsigned*, unsigned*, unsigned*))                                       \
  X(Status, config_read, "ucp_config_read", (const char*, const char*, void**))                                    \
  X(Status, config_modify, "ucp_config_modify", (void*, const char*, const char*))                                 \
  X(void, config_release, "ucp_config_release", (void*))                                                           \
  X(Status, init, "ucp_init_version", (unsigned, unsigned, const Params*, const void*, Context*))                  \
  X(void, cleanup, "ucp_cleanup", (Context))                                                                       \
  X(Status, worker_create, "ucp_worker_create", (Context, const WorkerParams*, Worker*))                           \
  X(void, worker_destroy, "ucp_worker_destroy", (Worker))                                                          \
  X(Status, worker_get_address, "ucp_worker_get_address", (Worker, void**, std::size_t*))                          \
  X(void, worker_release_address, "ucp_worker_release_address", (Worker, void*))                                   \
  X(Status, worker_get_efd, "ucp_worker_get_efd", (Worker, int*))                                                  \
  X(Status, worker_arm, "ucp_worker_arm", (Worker))                                                                \
  X(unsigned, worker_progress, "ucp_worker_progress", (Worker))                                                    \
  X(Status, ep_create, "ucp_ep_create", (Worker, const EndpointParams*, Endpoint*))                                \
  X(void*, ep_close, "ucp_ep_close_nbx", (Endpoint, const RequestParam*))                                          \
  X(void*, tag_send, "ucp_tag_send_nbx", (Endpoint, const void*, std::size_t, WireTag, const RequestParam*))       \
  X(void*, tag_recv, "ucp_tag_recv_nbx", (Worker, void*, std::size_t, WireTag, WireTag mask, const RequestParam*)) \
  X(Message, tag_probe, "ucp_tag_probe_nb", (Worker, WireTag, WireTag mask, int remove, ReceivedTag*))             \
  X(void*, tag_msg_recv, "ucp_tag_msg_recv_nbx", (Worker, void*, std::size_t, Message, const RequestParam*))       \
  X(Status, request_check_status, "ucp_request_check_status", (void*))                                             \
  X(void, request_cancel, "ucp_request_cancel", (Worker, void*))                                                   \
  X(void, request_free, "ucp_request_free", (void*))                                                               \
  X(const char*, status_string, "ucs_status_string", (Status))

struct Functions {
#define PERSEUS_MEMBER(result, member, name, parameters) result(*member) parameters = nullptr;
  PERSEUS_UCX_FUNCTIONS(PERSEUS_MEMBER)
#undef PERSEUS_MEMBER
};

// An opened UCX, for the life of the process.
struct Library {
  std::string path;
  unsigned major = 0, minor = 0, release = 0;
  Functions call;

  std::string version() const {
    return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release);
  }
  // Throws Error(transport) with UCX's own text if `status` is an error.
  void check(Status status, const std::string& function) const;
};

// Opens UCX once; later calls return the same object. Throws Error(unavailable) that says what to install.
const Library& open(const LibraryPaths& paths);

}  // namespace perseus::ucx
