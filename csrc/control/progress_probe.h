// Finds the ranks that keep a running collective from completing.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace perseus {

// A step in the work of an engine. A step has the same number on all ranks.
struct ProgressPoint {
  std::uint64_t engine = 0;  // identifies the engine; the same on all of its ranks
  std::int64_t number = -1;  // counts what the engine executes; -1: before the first

  auto operator<=>(const ProgressPoint&) const = default;
};

// Says whether a rank has reached a given step.
enum class Progress : std::uint8_t { reached, behind };

// Runs progress probes: a question goes from one rank to all ranks, and their answers come back. Messages use the
// watch connections, which a process serves even while a collective blocks its other threads. These connections form a
// tree, so a stopped rank cuts off the ranks behind it. A verdict then names only the stopped rank, because nothing is
// known about the others. The rank that asked sends its verdict to all ranks. Pure logic; one thread at a time.
class ProgressProbe {
 public:
  using Clock = std::chrono::steady_clock;
  using HowFar = std::function<Progress(const ProgressPoint&)>;

  struct Outgoing {
    int to = 0;
    std::string bytes;
  };
  struct Verdict {
    ProgressPoint place;
    int asker = 0;
    std::vector<int> silent;  // ranks that do not answer
    std::vector<int> behind;  // ranks that answer that they have not reached the step
    int more = 0;             // number of such ranks beyond those listed
    bool last = false;        // the rank that asked fails the collective now
  };

  // `parents[r]` is rank r's neighbour on the way to rank 0, and −1 for rank 0. `how_far(place)` returns whether this
  // rank has reached a step. A probe waits for answers until `timeout`.
  ProgressProbe(int rank, std::vector<int> parents, HowFar how_far, std::chrono::milliseconds timeout)
      : rank_(rank), parents_(std::move(parents)), how_far_(std::move(how_far)), timeout_(timeout) {}

  // Sets the neighbours to which a connection exists. Ranks without a connection are unreachable and never blamed.
  void set_neighbours(std::vector<int> ranks) { neighbours_ = std::move(ranks); }

  // Starts a probe. Does nothing while a probe for the same step is in progress, of this rank or of another rank.
  // `members` are the engine's ranks. `last`: see Verdict.
  void ask(const ProgressPoint& place, const std::vector<int>& members, Clock::time_point now, bool last = false);

  // Handles a message of a neighbour. Throws Error(transport) if it is malformed.
  void hear(int from, std::string_view bytes, Clock::time_point now);

  // Returns true while this rank waits for answers. look() ends the probes that have timed out.
  bool open() const { return !polls_.empty(); }
  void look(Clock::time_point now);

  std::vector<Outgoing> take_messages() { return std::exchange(outgoing_, {}); }
  // Verdicts of this rank's probes and of other ranks' probes.
  bool has_verdicts() const { return !verdicts_.empty(); }
  std::vector<Verdict> take_verdicts() { return std::exchange(verdicts_, {}); }

 private:
  enum class Kind : std::uint8_t { question, answer, verdict };

  // A probe of this rank that waits for answers.
  struct Poll {
    std::vector<int> members;
    std::map<int, Progress> answers;
    std::vector<int> unreachable;  // ranks to which a neighbour has no connection
    Clock::time_point until;
    bool last;
  };

  void forward(const std::string& bytes, int from);
  void send_towards(int rank, std::string bytes);
  int next_hop(int from, int to) const;
  std::vector<int> missing_neighbours() const;
  void record_answer(const ProgressPoint& place, int rank, Progress progress, const std::vector<int>& unreachable);
  void finish(const ProgressPoint& place, const Poll& poll);
  bool is_on_route(int rank, const std::vector<int>& members) const;

  int rank_;
  std::vector<int> parents_, neighbours_;
  HowFar how_far_;
  std::chrono::milliseconds timeout_;
  std::map<ProgressPoint, Poll> polls_;
  std::map<ProgressPoint, Clock::time_point> other_probes_;  // probes of other ranks, and when they expire
  std::vector<Outgoing> outgoing_;
  std::vector<Verdict> verdicts_;
};

}  // namespace perseus
