#include "bootstrap/selection.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>

#include "base/error.h"

namespace perseus {
namespace {

std::string call_text(const std::vector<int>& selection) {
  std::string text = "init(comm=[";
  for (std::size_t i = 0; i < selection.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(selection[i]);
  return text + "])";
}

}  // namespace

bool selects_all(const std::vector<int>& selection, int size) {
  if (!selection.empty() && selection.size() != static_cast<std::size_t>(size)) return false;
  for (std::size_t i = 0; i < selection.size(); ++i) {
    if (selection[i] != static_cast<int>(i)) return false;
  }
  return true;
}

int rank_in_selection(const std::vector<int>& selection, int rank, int size) {
  const auto [lowest, highest] = std::minmax_element(selection.begin(), selection.end());
  if (*lowest < 0 || *highest >= size) {
    throw Error(ErrorKind::invalid_argument, call_text(selection) + " names rank " +
                                                 std::to_string(*lowest < 0 ? *lowest : *highest) +
                                                 ", but those that were started are 0 to " + std::to_string(size - 1));
  }
  if (std::set<int>(selection.begin(), selection.end()).size() != selection.size()) {
    throw Error(ErrorKind::invalid_argument, call_text(selection) + " names a rank twice");
  }
  const auto found = std::find(selection.begin(), selection.end(), rank);
  if (found == selection.end()) {
    throw Error(ErrorKind::invalid_argument, call_text(selection) + " was called by rank " + std::to_string(rank) +
                                                 ", which is not among them; that rank must leave init() out, or "
                                                 "name a group of its own");
  }
  return static_cast<int>(found - selection.begin());
}

}  // namespace perseus
