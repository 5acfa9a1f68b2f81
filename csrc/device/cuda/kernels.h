// Packing and unpacking of any number of tensors by one kernel each.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/reduce.h"
#include "base/shape.h"
#include "device/cuda/driver.h"
#include "device/cuda/pack_body.h"

namespace perseus::cuda {

enum class Direction { pack, unpack };

// The kernels as text for the driver's compiler; empty where they were not built.
extern const char* const kPackPtx;

// Which kernel a packing takes, and with what factors.
struct Launch {
  std::string kernel;
  Scaling scaling{1.0, 1};
  std::size_t tensor_bytes = 1, wire_bytes = 1;  // of an element as the kernel counts them
  bool as_bytes = false;                         // elements are bytes
};
Launch plan_launch(Direction direction, const Reduction& reduction);

// Where each piece lies in the buffer, and its tiles. Empty pieces are left out.
std::vector<Segment> plan_segments(const Launch& launch, std::size_t element_bytes, std::span<const Piece> pieces);
std::int64_t tiles_of(const Launch& launch, const std::vector<Segment>& segments);

// Calls come with the device current.
class Kernels {
 public:
  // Throws Error where the driver does not take them.
  Kernels(const Driver& driver, const char* ptx);
  ~Kernels();
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  void run(StreamHandle stream, Direction direction, const Reduction& reduction, std::span<const Piece> pieces,
           void* buffer);

 private:
  // Segments in device memory. The same tensors come step after step, so that tables are found again.
  struct Table {
    std::vector<Segment> segments;
    Pointer memory = 0;
    void* staging = nullptr;  // what is copied from, pinned
    EventHandle used = nullptr;
    StreamHandle stream = nullptr;  // on which it was copied and is used
  };

  const Table& table_of(StreamHandle stream, std::vector<Segment> segments);
  Table make_table(StreamHandle stream, std::vector<Segment> segments);
  void free(const Table& table) const;
  FunctionHandle function(const std::string& name);

  const Driver& driver_;
  ModuleHandle module_ = nullptr;
  std::mutex mutex_;         // guards the rest
  std::list<Table> tables_;  // the one used last first
  std::map<std::string, FunctionHandle> functions_;
};

}  // namespace perseus::cuda
