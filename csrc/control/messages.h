// Defines the two messages of the negotiation: reports go up the tree, plans go down.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "control/agreement.h"
#include "control/request.h"

namespace perseus {

// A request that waits at a node of the tree for ranks that have not submitted it.
struct StallReport {
  std::string name;
  std::string label;  // see Request::label
  RankSet present;    // group ranks that have submitted it
  std::int64_t waited_ms = 0;

  bool operator==(const StallReport&) const = default;
};

// The requests that all ranks below a node have submitted since the node's last report.
struct Report {
  bool urgent = false;                               // a caller is blocked; nodes forward the report at once
  std::vector<std::uint32_t> cached;                 // ids of cached requests that all ranks below have submitted
  std::vector<std::vector<Submission>> submissions;  // one element per name: all requests submitted under this name
  std::vector<int> joined;                           // in the order in which they joined
  std::vector<int> left;                             // ranks that shut down
  std::vector<StallReport> stalls;
  // Requests that disagree with what their ranks have submitted under the same names; see Negotiator::contradict.
  std::vector<Submission> contradictions;
  std::vector<std::string> blocked;  // suspected names in which all ranks below are blocked
  std::uint64_t changes = 0;  // decisions that change the meaning of a name or an id, and that the sender has applied

  bool empty() const {
    return cached.empty() && submissions.empty() && joined.empty() && left.empty() && stalls.empty() &&
           contradictions.empty() && blocked.empty() && !urgent;
  }
};

// One decision of the root. All ranks execute the same decisions in the order of the plan.
struct Decision {
  enum class Kind : std::uint8_t { run, fail, joined, warn, close, tune, suspect };
  static constexpr std::uint32_t kNoId = 0xffffffffU;

  Kind kind = Kind::run;
  std::uint32_t id = kNoId;                   // run: the request's cache id; a new id is valid from here on
  bool cached = false;                        // run: the request is the cached one with this id, and is not sent
  std::shared_ptr<const Request> request;     // run; fail, warn (name); suspect (name without a verb)
  ErrorKind error = ErrorKind::disagreement;  // fail, close
  std::string text;                           // fail, warn, close
  int rank = -1;                              // joined: the last rank that joined; close: the rank that left
  std::vector<std::int64_t> values;           // tune: the settings to use from here on

  // Returns the request's name; empty if there is none.
  const std::string& name() const;
};

struct Plan {
  std::vector<Decision> decisions;
  bool empty() const { return decisions.empty(); }
};

std::string encode(const Report& report);
std::string encode(const Plan& plan);

// These functions throw Error(transport) if the bytes are malformed.
Report decode_report(std::string_view bytes);
Plan decode_plan(std::string_view bytes);

}  // namespace perseus
