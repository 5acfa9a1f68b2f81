#include "device/cuda/cuda_kernels.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "base/error.h"
#include "device/device.h"

namespace perseus::cuda {

namespace {

constexpr std::size_t kKeptTables = 64;     // from this number on, tables are used again
constexpr std::size_t kLeastSegments = 64;  // capacity of the smallest table

bool same_segment(const Segment& a, const Segment& b) {
  return a.data == b.data && a.count == b.count && a.offset == b.offset && a.first_tile == b.first_tile;
}

// Returns the elements of a tile, whose size is in bytes of the wider type; see tile_elements().
std::int64_t tile_elements_of(const Launch& launch) {
  return kTileBytes / static_cast<std::int64_t>(std::max(launch.tensor_bytes, launch.wire_bytes));
}

}  // namespace

Launch plan_launch(Direction direction, const Reduction& reduction) {
  Launch launch;
  const auto& scale = reduction.scale;
  const bool packs = direction == Direction::pack;
  const bool scaled =
      reduction.dtype != DType::boolean && (packs ? scale.pre != 1.0 : scale.post != 1.0 || scale.divisor != 1);
  const std::string verb = packs ? "perseus_pack_" : "perseus_unpack_";
  if (!scaled && reduction.dtype == reduction.wire_dtype) {
    const auto word = std::min<std::size_t>(size_of(reduction.dtype), 4);
    launch.kernel = verb + "word" + std::to_string(word) + "_word" + std::to_string(word);
    launch.tensor_bytes = launch.wire_bytes = word;
    launch.copies = true;
    return launch;
  }
  launch.kernel = verb + std::string(name_of(reduction.dtype)) + "_" + std::string(name_of(reduction.wire_dtype));
  launch.tensor_bytes = size_of(reduction.dtype);
  launch.wire_bytes = size_of(reduction.wire_dtype);
  if (packs) {
    launch.scaling.factor = scale.pre;
  } else if (is_floating(reduction.dtype)) {
    launch.scaling.factor = scale.post / static_cast<double>(scale.divisor);
  } else {
    launch.scaling = {scale.post, scale.divisor};
  }
  return launch;
}

std::vector<Segment> plan_segments(const Launch& launch, std::size_t element_bytes, std::span<const Piece> pieces) {
  const auto per_element = static_cast<std::int64_t>(launch.copies ? element_bytes / launch.tensor_bytes : 1);
  const auto tile = tile_elements_of(launch);
  std::vector<Segment> segments;
  segments.reserve(pieces.size());
  std::int64_t offset = 0, tiles = 0;
  for (const auto& piece : pieces) {
    if (piece.count == 0) continue;
    const auto count = piece.count * per_element;
    segments.push_back({piece.data, count, offset, tiles});
    offset = aligned_count(offset + count, launch.wire_bytes);
    tiles += (count + tile - 1) / tile;
  }
  return segments;
}

std::int64_t tiles_of(const Launch& launch, const std::vector<Segment>& segments) {
  if (segments.empty()) return 0;
  const auto tile = tile_elements_of(launch);
  return segments.back().first_tile + (segments.back().count + tile - 1) / tile;
}

Kernels::Kernels(const Driver& driver, const char* ptx) : driver_(driver) {
  driver_.check("cuModuleLoadDataEx", driver_.module_load(&module_, ptx, 0, nullptr, nullptr));
}

// Ignores failures, because the driver may be gone at the end of a process.
Kernels::~Kernels() {
  for (const auto& table : tables_) free(table);
  driver_.module_unload(module_);
}

void Kernels::run(StreamHandle stream, Direction direction, const Reduction& reduction, std::span<const Piece> pieces,
                  void* buffer) {
  const auto launch = plan_launch(direction, reduction);
  auto segments = plan_segments(launch, size_of(reduction.dtype), pieces);
  const auto tiles = tiles_of(launch, segments);
  if (tiles == 0) return;
  const std::scoped_lock lock(mutex_);
  const auto& table = table_of(stream, std::move(segments));
  auto memory = table.memory;
  auto count = static_cast<int>(table.segments.size());
  auto scaling = launch.scaling;
  void* arguments[] = {&memory, &count, static_cast<void*>(&buffer), &scaling};
  driver_.check("cuLaunchKernel", driver_.launch(function(launch.kernel), static_cast<unsigned>(tiles), 1, 1, kThreads,
                                                 1, 1, 0, stream, arguments, nullptr));
  driver_.check("cuEventRecord", driver_.event_record(table.used, stream));
}

const Kernels::Table& Kernels::table_of(StreamHandle stream, std::vector<Segment> segments) {
  const auto found = std::find_if(tables_.begin(), tables_.end(), [&](const Table& table) {
    return table.stream == stream &&
           std::equal(table.segments.begin(), table.segments.end(), segments.begin(), segments.end(), same_segment);
  });
  if (found != tables_.end()) {
    tables_.splice(tables_.begin(), tables_, found);
    return tables_.front();
  }
  if (const auto unused = unused_table(segments.size()); unused != tables_.end()) {
    tables_.splice(tables_.begin(), tables_, unused);
  } else {
    tables_.push_front(make_table(segments.size()));
  }
  fill(tables_.front(), stream, std::move(segments));
  return tables_.front();
}

// Returns the table that was not used for the longest time, if its stream is done with it. Neither waits nor frees
// memory, because either would wait for other streams: two process sets would block each other.
std::list<Kernels::Table>::iterator Kernels::unused_table(std::size_t segments) {
  if (tables_.size() < kKeptTables) return tables_.end();
  const auto found = std::find_if(tables_.rbegin(), tables_.rend(), [&](const Table& table) {
    return table.capacity >= segments && driver_.event_query(table.used) == kSuccess;
  });
  return found == tables_.rend() ? tables_.end() : std::prev(found.base());
}

Kernels::Table Kernels::make_table(std::size_t segments) const {
  Table table;
  table.capacity = std::bit_ceil(std::max(segments, kLeastSegments));
  const auto bytes = table.capacity * sizeof(Segment);
  try {
    driver_.check("cuEventCreate", driver_.event_create(&table.used, kNoTiming));
    driver_.check("cuMemAlloc", driver_.allocate(&table.memory, bytes));
    driver_.check("cuMemHostAlloc", driver_.allocate_host(&table.staging, bytes, 0));
  } catch (const Error&) {
    free(table);
    throw;
  }
  return table;
}

void Kernels::fill(Table& table, StreamHandle stream, std::vector<Segment> segments) const {
  const auto bytes = segments.size() * sizeof(Segment);
  std::memcpy(table.staging, segments.data(), bytes);
  table.segments.clear();  // no request finds the table if the copy fails
  driver_.check("cuMemcpyAsync", driver_.copy(table.memory, reinterpret_cast<Pointer>(table.staging), bytes, stream));
  driver_.check("cuEventRecord", driver_.event_record(table.used, stream));
  table.stream = stream;
  table.segments = std::move(segments);
}

void Kernels::free(const Table& table) const {
  if (table.used != nullptr) {
    driver_.event_synchronize(table.used);
    driver_.event_destroy(table.used);
  }
  if (table.memory != 0) driver_.free(table.memory);
  if (table.staging != nullptr) driver_.free_host(table.staging);
}

FunctionHandle Kernels::function(const std::string& name) {
  auto& known = functions_[name];
  if (known == nullptr) {
    driver_.check("cuModuleGetFunction", driver_.module_function(&known, module_, name.c_str()));
  }
  return known;
}

}  // namespace perseus::cuda
