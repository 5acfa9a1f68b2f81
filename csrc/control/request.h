// What one rank asks for: everything that all ranks have to agree on before data moves.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/reduce.h"
#include "base/shape.h"

namespace perseus {

enum class Verb : std::uint8_t {
  allreduce,
  adasum,  // an allreduce with an operation that cannot be told element by element
  broadcast,
  allgather,
  alltoall,
  reduce_scatter,
  barrier,
  add_process_set,
  remove_process_set,
};

std::string_view name_of(Verb verb);

// Returns the name that the caller gave to a request. Adapters put the verb in front of it, as in "broadcast.x" and
// "grouped_allreduce.x".
std::string_view name_without_verb(std::string_view name);

struct Member {
  DType dtype = DType::float32;
  Shape shape;

  std::int64_t bytes() const { return count_of(shape) * static_cast<std::int64_t>(size_of(dtype)); }
  bool operator==(const Member&) const = default;
};

// More than one member is a grouped operation: agreed, executed and failed as one.
struct Request {
  Verb verb = Verb::allreduce;
  std::string name;  // unique among the requests in flight in a process set
  std::string call;  // in the words of the caller's framework, "reduce to rank 0"; empty: the verb's name
  std::vector<Member> members;
  // What texts call the members, a line each; empty: their numbers. After a tab: what this rank has, where it cannot be
  // told by dtype and shape.
  std::string member_names;
  ReduceOp op = ReduceOp::sum;
  Scale scale;
  std::int8_t wire = -1;  // DType that values travel in; -1: their own
  int root = 0;
  bool on_host = true;              // host memory or an accelerator's
  bool checked = false;             // alltoall: each rank says how many rows it expects of each
  std::vector<std::int64_t> ranks;  // process set verbs: the ranks or the id

  std::int64_t bytes() const;

  // "allreduce 'fc.weight'": how texts name it. Adapters put the verb in front of a name; it is not said twice.
  std::string label() const;

  // True where ranks may execute this together. The first dimension of an allgather's or alltoall's
  // members is each rank's own affair.
  bool agrees_with(const Request& other) const;
};

}  // namespace perseus
