// Describes one opened library and how it differs from others shaped like NCCL.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "bootstrap/topology.h"
#include "transport/library_search.h"
#include "transport/xccl/functions.h"

namespace perseus::xccl {

struct Traits {
  // A collective blocks until it is done and cannot be aborted. Otherwise it is queued on a stream.
  bool blocking = false;
  // A call that waits for peers returns in_progress, and the library executes it on a thread of its own, for which an
  // abort waits. It needs comm_init_rank_config and comm_get_async_error.
  bool background_calls = false;
  // The library has send, recv and groups. Otherwise it has all_to_all.
  bool point_to_point = true;
  // The library adds 16-bit floats in 16 bits. Unless that is allowed, the ranks exchange them and add in float32.
  bool adds_16_bits = true;
  // Aborts between group_start and group_end are executed at the same time.
  bool groups_aborts = false;
  // The code for work in progress.
  int in_progress = 7;
  // The most bytes of one call.
  std::int64_t most_bytes = std::numeric_limits<std::int64_t>::max();
};

struct Library {
  std::string name;     // such as "NCCL"
  std::string version;  // such as "2.32.3"
  std::string prefix;   // of its functions, for texts, such as "nccl"
  std::string advice;   // added to the error if ranks cannot connect; may be empty
  Functions call;
  Traits traits;

  // Returns name and version, such as "NCCL 2.32.3".
  std::string title() const { return name + " " + version; }

  // Throws Error(transport) with the function's name and the library's own text if `code` is a failure.
  void check(int code, const char* function, Comm comm = nullptr) const;
};

// Opens NCCL, for the memory of NVIDIA's GPUs. Throws Error(unavailable) that says what to install. Opening the library
// needs no GPU; a communicator does.
std::shared_ptr<const Library> open_nccl(const LibraryPaths& paths);

// Opens Intel's oneCCL 2022 or later, for host memory. Sets oneCCL's own environment variables unless the user has set
// them: the plugin for host memory, the local ranks, and the network layer, which is Intel MPI if `has_intel_mpi`, else
// libfabric. Throws Error(unavailable).
std::shared_ptr<const Library> open_oneccl(const LibraryPaths& paths, const Topology& topology, bool has_intel_mpi);

// Returns the version of a library from a handle of dlopen(). Throws Error(unavailable) if it is another library.
int version_of(void* opened, const std::string& prefix, const std::string& path);

// Fills the table from a handle of dlopen(). The names begin with `prefix`. Throws Error(unavailable) that names the
// first required function that is missing.
Functions find_functions(void* opened, const std::string& prefix, const std::string& path);

}  // namespace perseus::xccl
