#include "control/request.h"

#include <algorithm>
#include <array>

namespace perseus {

namespace {

struct Row {
  std::string_view name;
  bool reduces;
  Results results;
};

// Indexed by Verb.
#define PERSEUS_ROW(NAME, name, text, reduces, results) Row{text, reduces, Results::results},
constexpr auto kVerbs = std::to_array<Row>({PERSEUS_REQUEST_VERBS(PERSEUS_ROW)});
#undef PERSEUS_ROW

const Row& row_of(Verb verb) { return kVerbs[static_cast<std::size_t>(verb)]; }

bool first_dimension_is_free(Verb verb) { return verb == Verb::allgather || verb == Verb::alltoall; }

bool members_agree(const Member& a, const Member& b, bool first_is_free) {
  if (a.dtype != b.dtype || a.shape.size() != b.shape.size()) return false;
  const auto skip = first_is_free && !a.shape.empty() ? 1 : 0;
  return std::equal(a.shape.begin() + skip, a.shape.end(), b.shape.begin() + skip);
}

}  // namespace

std::string_view name_of(Verb verb) { return row_of(verb).name; }
Results results_of(Verb verb) { return row_of(verb).results; }
bool reduces(Verb verb) { return row_of(verb).reduces; }

std::string_view name_without_verb(std::string_view name) {
  constexpr std::string_view kGrouped = "grouped_";
  const auto dot = name.find('.');
  if (dot == std::string_view::npos) return name;
  auto word = name.substr(0, dot);
  if (word.starts_with(kGrouped)) word.remove_prefix(kGrouped.size());
  const bool is_verb = std::any_of(kVerbs.begin(), kVerbs.end(), [&](const Row& row) { return row.name == word; });
  return is_verb ? name.substr(dot + 1) : name;
}

std::int64_t Request::bytes() const {
  std::int64_t total = 0;
  for (const auto& member : members) total += member.bytes();
  return total;
}

std::string Request::label() const {
  if (!call.empty()) return call + " '" + name + "'";
  const std::string plain(name_of(verb)), shown = verb == Verb::adasum ? "allreduce" : plain;
  for (const auto& word : {shown, "grouped_" + shown}) {
    if (name.starts_with(word + "."))
      return (verb == Verb::adasum ? plain : word) + " '" + name.substr(word.size() + 1) + "'";
  }
  return plain + " '" + name + "'";
}

std::string Request::label_with_members() const {
  if (member_names.empty()) return label();
  const auto others = members.size() > 1 ? " and " + std::to_string(members.size() - 1) + " more" : "";
  return label() + " (" + member_names.substr(0, member_names.find_first_of("\t\n")) + others + ")";
}

bool Request::agrees_with(const Request& other) const {
  const bool free = first_dimension_is_free(verb);
  return verb == other.verb && call == other.call && checked == other.checked && op == other.op &&
         scale == other.scale && wire_dtype == other.wire_dtype && root == other.root && on_host == other.on_host &&
         ranks == other.ranks && members.size() == other.members.size() &&
         std::equal(members.begin(), members.end(), other.members.begin(),
                    [free](const Member& a, const Member& b) { return members_agree(a, b, free); });
}

}  // namespace perseus
