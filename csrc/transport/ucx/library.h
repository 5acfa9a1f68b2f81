// Finds and opens UCX at run time, and holds its functions.
#pragma once

#include <string>

#include "transport/library_search.h"
#include "transport/ucx/abi.h"

namespace perseus::ucx {

struct Functions {
  void (*get_version)(unsigned*, unsigned*, unsigned*) = nullptr;
  Status (*config_read)(const char*, const char*, void**) = nullptr;
  Status (*config_modify)(void*, const char*, const char*) = nullptr;
  void (*config_release)(void*) = nullptr;
  Status (*init)(unsigned, unsigned, const Params*, const void*, Context*) = nullptr;
  void (*cleanup)(Context) = nullptr;
  Status (*worker_create)(Context, const WorkerParams*, Worker*) = nullptr;
  void (*worker_destroy)(Worker) = nullptr;
  Status (*worker_get_address)(Worker, void**, std::size_t*) = nullptr;
  void (*worker_release_address)(Worker, void*) = nullptr;
  Status (*worker_get_efd)(Worker, int*) = nullptr;
  Status (*worker_arm)(Worker) = nullptr;
  unsigned (*worker_progress)(Worker) = nullptr;
  Status (*ep_create)(Worker, const EndpointParams*, Endpoint*) = nullptr;
  void* (*ep_close)(Endpoint, const RequestParam*) = nullptr;
  void* (*tag_send)(Endpoint, const void*, std::size_t, WireTag, const RequestParam*) = nullptr;
  void* (*tag_recv)(Worker, void*, std::size_t, WireTag, WireTag mask, const RequestParam*) = nullptr;
  Message (*tag_probe)(Worker, WireTag, WireTag mask, int remove, ReceivedTag*) = nullptr;
  void* (*tag_msg_recv)(Worker, void*, std::size_t, Message, const RequestParam*) = nullptr;
  Status (*request_check_status)(void*) = nullptr;
  void (*request_cancel)(Worker, void*) = nullptr;
  void (*request_free)(void*) = nullptr;
  const char* (*status_string)(Status) = nullptr;
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
