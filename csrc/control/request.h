// Describes one call: everything on which all ranks have to agree before data moves.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/reduce.h"
#include "base/shape.h"
#include "base/tables.h"

namespace perseus {

enum class Verb : std::uint8_t { PERSEUS_REQUEST_VERBS(PERSEUS_ENUMERATOR) };

// The shapes of a verb's results: those of its tensors, whose memory they may then take, or with other numbers of rows.
enum class Results : std::uint8_t { same_shapes, other_rows, none };

std::string_view name_of(Verb verb);
Results results_of(Verb verb);

// Returns true if the verb has an operation and factors.
bool reduces(Verb verb);

// Returns the name that the caller gave to a request. Adapters put the verb in front of it, as in "broadcast.x" and
// "grouped_allreduce.x".
std::string_view name_without_verb(std::string_view name);

struct Member {
  DType dtype = DType::float32;
  Shape shape;

  std::int64_t bytes() const { return count_of(shape) * static_cast<std::int64_t>(size_of(dtype)); }
  bool operator==(const Member&) const = default;
};

// A call of one rank. A request with several members is grouped: the members are agreed, executed and failed as
// one.
struct Request {
  Verb verb = Verb::allreduce;
  std::string name;  // unique among the requests in flight in a process set
  std::string call;  // the call's name in the caller's framework, such as "reduce to rank 0"; empty: the verb's name
  std::vector<Member> members;
  // The members' names for texts, one line each; empty: their numbers. A tab and a text may follow a name; the text
  // then replaces this rank's dtype and shape.
  std::string member_names;
  ReduceOp op = ReduceOp::sum;
  Scale scale;
  std::int8_t wire_dtype = -1;  // the DType for the transfer; -1: the members' own
  int root = 0;
  bool on_host = true;              // false: accelerator memory
  bool checked = false;             // alltoall: each rank states how many rows it expects from each rank
  std::vector<std::int64_t> ranks;  // process set verbs: the ranks or the id

  std::int64_t bytes() const;

  // Returns the request's name for texts, such as "allreduce 'fc.weight'". If the name begins with the verb, as
  // adapters' names do, the text has the verb once.
  std::string label() const;

  // Returns the label with the name of the first member, if the members have names, and the number of the others.
  std::string label_with_members() const;

  // Returns true if two ranks may execute these requests together. The first dimension of the members of an allgather
  // or alltoall may differ.
  bool agrees_with(const Request& other) const;
};

}  // namespace perseus
