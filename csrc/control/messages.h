// The two messages of a negotiation: a report goes up the tree, a plan comes down.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "control/agreement.h"
#include "control/request.h"

namespace perseus {

// A name that waits here for ranks that have not asked for it.
struct StallNote {
  std::string name;
  std::string label;         // see Request::label
  std::vector<int> present;  // group ranks that asked
  std::int64_t waited_ms = 0;

  bool operator==(const StallNote&) const = default;
};

// What all ranks below a node have asked for since its last report.
struct Report {
  bool urgent = false;                     // somebody is blocked on it
  std::vector<std::uint32_t> cached;       // all ranks below ask again for what was agreed under this id
  std::vector<std::vector<Claim>> claims;  // all ranks below asked for this name, in these ways
  std::vector<int> joined;                 // in the order in which they joined
  std::vector<int> left;                   // shutting down
  std::vector<StallNote> stalls;

  bool empty() const {
    return cached.empty() && claims.empty() && joined.empty() && left.empty() && stalls.empty() && !urgent;
  }
};

// One decision, the same for all ranks, carried out in the order of the plan.
struct Decision {
  enum class Kind : std::uint8_t { run, fail, joined, warn, close, tune };
  static constexpr std::uint32_t kNoId = 0xffffffffU;

  Kind kind = Kind::run;
  std::uint32_t id = kNoId;                   // run: the cache id, also the one given from now on
  bool cached = false;                        // run: the request is the one known under `id`
  Request request;                            // run, fail (name and verb)
  ErrorKind error = ErrorKind::disagreement;  // fail, close
  std::string text;                           // fail, warn, close
  int rank = -1;                              // joined: the last rank that joined; close: who left
  std::vector<std::int64_t> values;           // tune: what to use from here on
};

struct Plan {
  std::vector<Decision> decisions;
  bool empty() const { return decisions.empty(); }
};

std::string encode(const Report& report);
std::string encode(const Plan& plan);

// Throw Error(transport) on malformed bytes.
Report decode_report(std::string_view bytes);
Plan decode_plan(std::string_view bytes);

}  // namespace perseus
