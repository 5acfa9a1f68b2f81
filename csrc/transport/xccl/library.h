// One opened library, and how it differs from its sisters.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "transport/xccl/functions.h"

namespace perseus::xccl {

struct Traits {
  // A collective returns when its data is there, and cannot be ended before. Otherwise it is queued on a stream.
  bool blocking = false;
  // Has send, recv and groups. Otherwise it has all_to_all.
  bool point_to_point = true;
  // Adds 16-bit floats in 16 bits. Where it may not, the ranks exchange them through it and add in float32.
  bool adds_16_bits = true;
  // What comm_get_async_error says of work that is under way.
  int in_progress = 7;
  // Bytes of one call at most.
  std::int64_t most_bytes = std::numeric_limits<std::int64_t>::max();
};

struct Library {
  std::string name;     // "NCCL"
  std::string version;  // "2.32.3"
  std::string prefix;   // of its functions, for texts: "nccl"
  std::string advice;   // where ranks cannot connect; may be empty
  Functions call;
  Traits traits;

  // "NCCL 2.32.3"
  std::string title() const { return name + " " + version; }

  // Throws Error(transport) with the function's name and the library's own words where `code` is a failure.
  void check(int code, const char* function, Comm comm = nullptr) const;
};

// Fills the table from what dlopen gave; `prefix` begins the names. Throws Error(unavailable) naming the first function
// that has to be there and is not.
Functions find_functions(void* opened, const std::string& prefix, const std::string& path);

}  // namespace perseus::xccl
