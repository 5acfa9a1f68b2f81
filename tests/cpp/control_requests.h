// Helpers that make requests in tests of csrc/control.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "control/agreement.h"
#include "control/request.h"

namespace perseus::testing {

inline Request request(Verb verb, std::string name, std::vector<Member> members) {
  Request made;
  made.verb = verb;
  made.name = std::move(name);
  made.members = std::move(members);
  return made;
}

inline Request allreduce(std::string name, Shape shape = {3}, DType dtype = DType::float32) {
  return request(Verb::allreduce, std::move(name), {{dtype, std::move(shape)}});
}

// Compares every field, unlike agrees_with().
inline bool same(const Request& a, const Request& b) {
  return a.name == b.name && a.verb == b.verb && a.members == b.members && a.op == b.op && a.scale == b.scale &&
         a.wire_dtype == b.wire_dtype && a.root == b.root && a.on_host == b.on_host && a.ranks == b.ranks &&
         a.call == b.call && a.checked == b.checked && a.member_names == b.member_names;
}

}  // namespace perseus::testing
