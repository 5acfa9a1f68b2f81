// Answers the requests of MPICH and Intel MPI to their launcher, in the protocol PMI-1, which has one line per message.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace perseus::mpi {

// Returns which ranks share a host in MPICH's format: blocks of (first host, hosts, ranks on each). `hosts` has the
// host of every rank. Returns an empty text if it would be too long for one value; MPI then compares the names of
// hosts.
std::string process_mapping(const std::vector<int>& hosts);

// Computes the answers for one rank.
class PmiAnswers {
 public:
  // Gathers the bytes of every rank, by rank. Collective over the ranks. Returns nothing once MPI has started, whose
  // last barrier needs no exchange.
  using Exchange = std::function<std::vector<std::string>(std::string_view mine)>;

  // `name` identifies this job on this host. MPICH names the shared memory of a host by it, so no other job, also none
  // that was killed, may have the same name.
  PmiAnswers(const std::vector<int>& hosts, std::string name, Exchange exchange);

  // Returns the answer to a line, both without line ends, or nothing if no answer is expected. Throws what the exchange
  // throws.
  std::optional<std::string> answer(std::string_view line);

 private:
  std::string put(std::string_view line);
  std::string get(std::string_view line) const;
  std::string barrier(std::string_view line);

  int size_;
  std::string name_;
  Exchange exchange_;
  std::map<std::string, std::string, std::less<>> values_;
  std::vector<std::pair<std::string, std::string>> news_;  // this rank's values since the last barrier
  bool in_lines_ = false;                                  // inside a command of several lines
};

}  // namespace perseus::mpi
