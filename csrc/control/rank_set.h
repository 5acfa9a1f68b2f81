// A set of ranks. Its cost depends on the number of its gaps, not on that of its ranks.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <vector>

namespace perseus {

class RankSet {
 public:
  // The ranks from `first` to `end` − 1.
  struct Run {
    int first = 0;
    int end = 0;
    bool operator==(const Run&) const = default;
  };

  RankSet() = default;
  RankSet(std::initializer_list<int> ranks) {
    for (const int rank : ranks) add(rank);
  }

  void add(int rank) { add_run({rank, rank + 1}); }
  void add(const RankSet& other);
  // Takes constant time if the set has no run above this one.
  void add_run(Run run);
  void remove(const RankSet& other);

  bool contains(int rank) const;
  bool empty() const { return runs_.empty(); }
  std::size_t size() const;
  int lowest() const { return runs_.front().first; }
  std::vector<int> ranks() const;                         // ascending
  const std::vector<Run>& runs() const { return runs_; }  // ascending, with gaps between them

  bool operator==(const RankSet&) const = default;

 private:
  void append(Run run);  // no run of the set begins after it

  std::vector<Run> runs_;
};

}  // namespace perseus
