// Finds the ranks that have not submitted a request, and ranks that call different verbs with one name.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "control/messages.h"
#include "control/rank_set.h"
#include "control/tree.h"

namespace perseus {

struct StallTimes {
  std::chrono::milliseconds warning{60000};    // 0: no warnings
  std::chrono::milliseconds shutdown{0};       // 0: no shutdown
  std::chrono::milliseconds first_warning{0};  // 0: as late as later ones
};

// Returns for example "60.5".
std::string in_seconds(std::chrono::milliseconds time);

// Gives StalledRequests the requests of the node of the tree that owns it.
class OpenRequests {
 public:
  using Clock = std::chrono::steady_clock;
  using Visitor = std::function<void(const Request& request, Clock::time_point since, Clock::time_point& warned)>;

  virtual ~OpenRequests() = default;
  // Visits the requests that not all ranks below this node have submitted: `since` is the time of the first submission,
  // and `warned` that of the last report.
  virtual void visit_open(const Visitor& visitor) = 0;
  // Returns the ranks of which this node knows that they have submitted an open request.
  virtual RankSet submitters_of(const std::string& name) const = 0;
  virtual const RankSet& joined() const = 0;
};

// One node's part in the stall check of a process set. A node reports a request that waits for too long to its parent,
// with the ranks that have submitted it. The root unites the reports, and decides on a warning, or on an error after
// the shutdown time. Pure logic without I/O or a clock.
//
// Adapters put the verb in front of a name, so that one rank may have an allreduce and a broadcast called "x" in flight
// at once. Ranks that call different verbs therefore submit different names, and each would wait for the others. Ranks
// may also submit both verbs, each in an order of its own, and the second much later than the first. So the root fails
// a name only if all ranks are blocked in it:
//
// - The root sees that each rank has submitted exactly one of the verbs. It suspects the name: a decision tells all
//   ranks.
// - A rank is blocked if one of its threads waits for a request of the name: the thread submits nothing until then. A
//   node of the tree reports the name once all ranks below it are blocked, as it reports a request.
// - A decision about a request of the name ends the suspicion. If all ranks are blocked first, the root fails the name.
class StalledRequests {
 public:
  using Clock = OpenRequests::Clock;

  // `report` goes to the parent, and the root's next plan has `decisions`. All objects must outlive this one.
  StalledRequests(const Tree& tree, const StallTimes& times, OpenRequests& open, Report& report,
                  std::vector<Decision>& decisions);

  // Looks for requests that wait too long. Adds to the report, or to the decisions.
  void check(Clock::time_point now);
  // Handles the report of a node below.
  void receive(StallReport report, Clock::time_point now);
  // Removes a request that no longer waits, also from the report.
  void remove(const std::string& name);
  // Returns true if the root knows of a stalled request.
  bool any() const { return !stalls_.empty(); }
  // Removes everything, because the root has closed the group.
  void clear();
  // Adds what has waited longest to the root's last plan, so that a person who ends a job sees why it stood still.
  void describe_longest_wait(Plan& plan, Clock::time_point now);

  // Returns true if ranks may wait for each other with different verbs.
  bool suspects() const { return !suspicions_.empty(); }
  // Applies a decision that suspects a name, or one about a request, which ends the suspicion. `changes` is this rank's
  // number of changes after it; see Report.
  void apply(const Decision& decision, std::uint64_t changes);
  // Records that a thread of this rank waits for the request of this name, which is not decided.
  void record_waiter(const std::string& name);
  // Records that all ranks below a child are blocked in these names. Ignores a report that was sent before its sender
  // knew of the suspicion, because it is about an earlier one.
  void receive_blocked(const Report& report, const RankSet& ranks);
  // Fails the names at the root in which all ranks are blocked. A request of the name may have become complete with the
  // same reports: the plan then has a decision about it.
  void fail_blocked(const std::vector<std::string>& blocked, const Plan& plan);

 private:
  struct Stall {
    StallReport report;
    Clock::time_point since;
    Clock::time_point warned;
    bool due = false;    // a report came since the last warning
    bool fresh = false;  // a report came since the last check; reports of other nodes may follow
  };
  // A name under which every rank may wait for another verb, from the root's decision until a request of the name is
  // decided.
  struct Suspicion {
    std::uint64_t changes = 0;
    RankSet blocked = {};          // ranks below this node that wait for a request of the name
    bool reported = false;         // all ranks below this node are blocked
    Clock::time_point since = {};  // root: the first check
  };
  // The name with each verb in front → ranks that submitted it.
  using Names = std::map<std::string, RankSet>;

  void report_if_late(const Request& request, Clock::time_point since, Clock::time_point& warned,
                      Clock::time_point now);
  void warn(const Stall& stall, Clock::time_point now);
  RankSet known_submitters(const std::string& name) const;
  RankSet missing(const RankSet& present) const;
  std::string describe(const RankSet& ranks) const;

  std::map<std::string, Names> names_of_several_verbs(Clock::time_point since);
  void check_verbs(Clock::time_point now);
  void check_names(const std::string& plain, const Names& names, Clock::time_point now);
  void report_if_blocked(const std::string& plain, Suspicion& suspicion);
  void fail(const std::string& plain, const Names& names);

  const Tree& tree_;
  const StallTimes& times_;
  OpenRequests& open_;
  Report& report_;
  std::vector<Decision>& decisions_;
  RankSet all_;                            // ranks of the group
  RankSet below_;                          // this rank, and the ranks that report through it
  std::map<std::string, Stall> stalls_;    // root: stalled names
  RankSet described_, described_missing_;  // root: the ranks of description_, a part of the last warning
  std::string description_;
  // Other nodes: names of several verbs that were reported to the root, and the number of ranks in the report.
  std::map<std::string, std::size_t> reported_verbs_;
  std::map<std::string, Suspicion> suspicions_;  // by the name without a verb
};

}  // namespace perseus
