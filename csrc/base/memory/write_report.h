// Names the tensor in read-only memory that a program has tried to write, before the signal ends the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace perseus {

// A part of read-only memory, with the name of the tensor in it.
struct NamedRange {
  std::uintptr_t begin = 0;
  std::size_t bytes = 0;
  std::string name;
};

// Read-only memory of a process. The report of a write is `before`, the name of the smallest range around the address
// (`name` if there is none), and `after`.
struct ReadOnlyMemory {
  NamedRange whole;
  std::vector<NamedRange> tensors;
  std::string before, after;
};

// Writes a line to standard error when a write to the memory raises SIGSEGV. The handler that was installed before,
// such as that of Python's faulthandler, or the default action, then ends the process. The report lasts until the
// returned object is released, which must be before the memory is unmapped. Returns null if 1024 reports exist already.
// Thread-safe.
std::shared_ptr<void> report_writes(ReadOnlyMemory memory);

}  // namespace perseus
