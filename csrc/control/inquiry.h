// Who keeps a collective from going on: a question of a rank that is in the middle of it, answered by all that run.
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

// A step of a lane's work, alike on all its ranks.
struct WorkPlace {
  std::uint64_t lane = 0;    // a number of the lane that its ranks agree on
  std::int64_t number = -1;  // of what it carries out, which only grows; -1: before all of it

  auto operator<=>(const WorkPlace&) const = default;
};

// How far a rank has come, seen from such a step.
enum class Progress : std::uint8_t { reached, behind };

// A question goes from its asker to all ranks, and answers come back, over wires that are heard whatever their process
// is in the middle of. These form a tree, so a rank that is stopped hides those behind it: of them nothing is known,
// and only the nearest is blamed. What the asker learns it tells all ranks. Pure logic; one thread at a time.
class Inquiry {
 public:
  using Clock = std::chrono::steady_clock;
  using HowFar = std::function<Progress(const WorkPlace&)>;

  struct Outgoing {
    int to = 0;
    std::string bytes;
  };
  struct Verdict {
    WorkPlace place;
    int asker = 0;
    std::vector<int> silent;  // do not answer
    std::vector<int> behind;  // answer that they have not come there
    int more = 0;             // that are one or the other, beyond those named
    bool last = false;        // the asker's patience with them is over
  };

  // `parents`: each rank's neighbour on the way to rank 0, -1 for that. `how_far`: this rank has come. `patience`: how
  // long answers are waited for.
  Inquiry(int rank, std::vector<int> parents, HowFar how_far, std::chrono::milliseconds patience)
      : rank_(rank), parents_(std::move(parents)), how_far_(std::move(how_far)), patience_(patience) {}

  // Only wires that are there are used: without them nothing can be known of those at the other end.
  void set_neighbours(std::vector<int> ranks) { neighbours_ = std::move(ranks); }

  // `members`: the lane's ranks. `last`: see Verdict. Nothing where somebody's question about this step is under way.
  void ask(const WorkPlace& place, const std::vector<int>& members, Clock::time_point now, bool last = false);

  // Throws Error(transport) for what makes no sense.
  void hear(int from, std::string_view bytes, Clock::time_point now);

  // Ends what has been waited for long enough. Whether answers are still waited for:
  bool open() const { return !polls_.empty(); }
  void look(Clock::time_point now);

  std::vector<Outgoing> take_messages() { return std::exchange(outgoing_, {}); }
  // Of this rank's questions and of others'.
  bool has_verdicts() const { return !verdicts_.empty(); }
  std::vector<Verdict> take_verdicts() { return std::exchange(verdicts_, {}); }

 private:
  enum class Kind : std::uint8_t { question, answer, verdict };

  // A question of this rank's.
  struct Poll {
    std::vector<int> members;
    std::map<int, Progress> answers;
    std::vector<int> unreachable;  // of somebody's neighbours
    Clock::time_point until;
    bool last;
  };

  void spread(const std::string& bytes, int from);
  void send_towards(int rank, std::string bytes);
  int next_hop(int from, int to) const;
  std::vector<int> missing_neighbours() const;
  void note(const WorkPlace& place, int rank, Progress progress, const std::vector<int>& unreachable);
  void end(const WorkPlace& place, const Poll& poll);
  bool hides(int rank, const std::vector<int>& members) const;

  int rank_;
  std::vector<int> parents_, neighbours_;
  HowFar how_far_;
  std::chrono::milliseconds patience_;
  std::map<WorkPlace, Poll> polls_;
  std::map<WorkPlace, Clock::time_point> others_;  // asked about by others, until when
  std::vector<Outgoing> outgoing_;
  std::vector<Verdict> verdicts_;
};

}  // namespace perseus
