// Packs and unpacks any number of tensors by one kernel each.
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
#include "device/cuda/cuda_driver.h"
#include "device/cuda/pack_body.h"

namespace perseus::cuda {

enum class Direction { pack, unpack };

// The kernels as PTX for the driver's compiler: pack.ptx.
extern const char* const kPackPtx;

// The kernel for a packing, and its factors.
struct Launch {
  std::string kernel;
  Scaling scaling{1.0, 1};
  std::size_t tensor_bytes = 1, wire_bytes = 1;  // bytes of an element as the kernel counts them
  bool copies = false;                           // neither scales nor converts: elements are words of up to 4 bytes
};
Launch plan_launch(Direction direction, const Reduction& reduction);

// Returns the place of each piece in the buffer, and its tiles. Empty pieces are left out.
std::vector<Segment> plan_segments(const Launch& launch, std::size_t element_bytes, std::span<const Piece> pieces);
std::int64_t tiles_of(const Launch& launch, const std::vector<Segment>& segments);

// The loaded kernels of one device. The device must be current in all calls.
class Kernels {
 public:
  // Throws Error if the driver cannot load them.
  Kernels(const Driver& driver, const char* ptx);
  ~Kernels();
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  void run(StreamHandle stream, Direction direction, const Reduction& reduction, std::span<const Piece> pieces,
           void* buffer);

 private:
  // A list of segments in device memory. Tables are kept, because the same tensors come in every training step. The
  // memory of a table that no stream uses any more takes in another list, so that nothing is allocated or freed.
  struct Table {
    std::vector<Segment> segments;
    std::size_t capacity = 0;  // segments that fit into the memory
    Pointer memory = 0;
    void* staging = nullptr;  // the source of the copy, in pinned memory
    EventHandle used = nullptr;
    StreamHandle stream = nullptr;  // the stream of the copy and of the kernels that use it
  };

  const Table& table_of(StreamHandle stream, std::vector<Segment> segments);
  std::list<Table>::iterator unused_table(std::size_t segments);
  Table make_table(std::size_t segments) const;
  void fill(Table& table, StreamHandle stream, std::vector<Segment> segments) const;
  void free(const Table& table) const;
  FunctionHandle function(const std::string& name);

  const Driver& driver_;
  ModuleHandle module_ = nullptr;
  std::mutex mutex_;         // guards the rest
  std::list<Table> tables_;  // from the most to the least recently used
  std::map<std::string, FunctionHandle> functions_;
};

}  // namespace perseus::cuda
