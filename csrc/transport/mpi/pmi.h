// What an MPI asks whoever has started it, and the answers: PMI-1, as MPICH and Intel MPI speak it. A line each.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace perseus::mpi {

// Which ranks share a host, as MPICH reads it: blocks of (first host, hosts, ranks on each). Empty where that is too
// long for one value; MPI then compares the names of hosts. `hosts`: every rank's.
std::string process_mapping(const std::vector<int>& hosts);

class PmiAnswers {
 public:
  // Collective over the ranks: every rank's bytes, by rank; nothing once MPI has started, whose last barrier needs
  // none.
  using Exchange = std::function<std::vector<std::string>(std::string_view mine)>;

  // `name`: of this job on this host. MPICH names the memory by it that ranks of a host share, so that ranks with the
  // same one share theirs, be they of another job or of one that was killed.
  PmiAnswers(const std::vector<int>& hosts, std::string name, Exchange exchange);

  // The answer to a line, both without their ends; nothing where none is expected. Throws what the exchange throws.
  std::optional<std::string> answer(std::string_view line);

 private:
  std::string put(std::string_view line);
  std::string get(std::string_view line) const;
  std::string barrier(std::string_view line);

  int size_;
  std::string name_;
  Exchange exchange_;
  std::map<std::string, std::string, std::less<>> values_;
  std::vector<std::pair<std::string, std::string>> news_;  // of this rank, since the last barrier
  bool in_lines_ = false;                                  // of a command that has several
};

}  // namespace perseus::mpi
