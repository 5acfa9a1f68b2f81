#include "control/agreement.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <sstream>

namespace perseus {

namespace {

// As short as tells it from every other number: 0.1, 1e-07.
std::string number(double value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

std::string op_of(const Request& request) {
  return request.scale.divisor > 1 ? "average" : std::string(name_of(request.op));
}

std::string wire_of(const Request& request) {
  return request.wire < 0 ? "none" : std::string(name_of(static_cast<DType>(request.wire)));
}

std::string list_of(const std::vector<std::int64_t>& values) { return to_string(Shape(values)); }

// One way in which two requests may differ, and how a rank's side of it is told.
struct Aspect {
  std::string verb;  // "has", "asks for"
  std::function<std::string(const Request&)> value;
};

const std::vector<Aspect>& aspects() {
  static const std::vector<Aspect> kAspects = {
      {"calls", [](const Request& r) { return r.call.empty() ? std::string(name_of(r.verb)) : r.call; }},
      {"does it by", [](const Request& r) { return std::string(name_of(r.verb)); }},
      // Of members that have names, the first that differs is told.
      {"has a group of",
       [](const Request& r) {
         return (r.member_names.empty() ? std::to_string(r.members.size()) : "named") + " tensors";
       }},
      {"asks for op", op_of},
      {"asks for", [](const Request& r) { return "root " + std::to_string(r.root); }},
      {"asks for prescale", [](const Request& r) { return number(r.scale.pre); }},
      {"asks for postscale", [](const Request& r) { return number(r.scale.post); }},
      {"asks for compression", wire_of},
      {"has it on", [](const Request& r) { return std::string(r.on_host ? "the host" : "an accelerator"); }},
      {"asks for", [](const Request& r) { return "ranks " + list_of(r.ranks); }},
  };
  return kAspects;
}

std::string tell(const std::vector<Claim>& claims, const std::vector<int>& world_ranks, const std::string& verb,
                 const std::function<std::string(const Request&)>& value) {
  std::string text;
  for (const auto& claim : claims) {
    std::vector<int> ranks;
    for (const int rank : claim.ranks) ranks.push_back(world_ranks[static_cast<std::size_t>(rank)]);
    if (!text.empty()) text += ", ";
    std::string its_verb = verb;
    if (ranks.size() > 1) {
      if (its_verb.starts_with("has"))
        its_verb.replace(0, 3, "have");
      else if (its_verb.starts_with("asks"))
        its_verb.replace(0, 4, "ask");
      else if (its_verb == "calls")
        its_verb = "call";
    }
    text += describe_ranks(ranks) + " " + its_verb + " " + value(claim.request);
  }
  return text;
}

bool differ(const std::vector<Claim>& claims, const std::function<std::string(const Request&)>& value) {
  const auto first = value(claims.front().request);
  return std::any_of(claims.begin(), claims.end(), [&](const Claim& claim) { return value(claim.request) != first; });
}

// The first member on which the claims differ in dtype or shape.
std::size_t differing_member(const std::vector<Claim>& claims) {
  const auto& first = claims.front().request;
  for (std::size_t i = 0; i < first.members.size(); ++i) {
    Request mine = first;
    mine.members = {first.members[i]};
    for (const auto& claim : claims) {
      Request other = claim.request;
      if (i >= other.members.size()) return i;
      other.members = {claim.request.members[i]};
      if (!mine.agrees_with(other)) return i;
    }
  }
  return first.members.size();  // others have more
}

// What a member is called and, where dtype and shape do not tell it, what a rank has; see Request::member_names.
struct Words {
  std::string name;
  std::string has;
};

Words words_of(const Request& request, std::size_t member) {
  std::istringstream lines(request.member_names);
  std::string line;
  for (std::size_t i = 0; i <= member; ++i) {
    if (!std::getline(lines, line)) return {};
  }
  const auto tab = line.find('\t');
  if (tab == std::string::npos) return {line, ""};
  return {line.substr(0, tab), line.substr(tab + 1)};
}

std::string describe_member(const std::vector<Claim>& claims, const std::vector<int>& world_ranks, std::size_t i) {
  const auto& first = claims.front().request;
  const auto name = words_of(first, i).name;
  const auto any = [&](const auto& holds) {
    return std::any_of(claims.begin(), claims.end(),
                       [&](const Claim& claim) { return holds(words_of(claim.request, i)); });
  };
  const bool is_another = any([&](const Words& words) { return words.name != name; });  // or some have none
  const bool is_stand_in = any([](const Words& words) { return !words.has.empty(); });
  const bool is_free = first.verb == Verb::allgather || first.verb == Verb::alltoall;
  const auto value = [&](const Request& r) {
    if (i >= r.members.size()) return std::string("no more of them");
    const auto words = words_of(r, i);
    const auto has =
        words.has.empty() ? std::string(name_of(r.members[i].dtype)) + to_string(r.members[i].shape) : words.has;
    return is_another && !words.name.empty() ? words.name + ", " + has : has;
  };
  std::string where = first.members.size() > 1 ? " (member " + std::to_string(i) + " of the group)" : "";
  if (!name.empty() && !is_another) where = ", " + name;
  return first.label() + where + ": " + tell(claims, world_ranks, "has", value) +
         (is_another || is_stand_in ? "; all ranks must have the same"
          : is_free                 ? "; dtype and all but the first dimension must be the same on all ranks"
                                    : "; dtype and shape must be the same on all ranks");
}

}  // namespace

std::string describe_ranks(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
    if (last > i) text += (last == i + 1 ? ", " : "-") + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

std::string describe_disagreement(std::vector<Claim> claims, const std::vector<int>& world_ranks) {
  // Reports arrive in any order; the text has one.
  const auto lowest = [](const Claim& claim) { return *std::min_element(claim.ranks.begin(), claim.ranks.end()); };
  std::sort(claims.begin(), claims.end(), [&](const Claim& a, const Claim& b) { return lowest(a) < lowest(b); });
  // A root is told as its user gave it: by its rank in the job.
  for (auto& claim : claims) {
    const auto root = static_cast<std::size_t>(claim.request.root);
    if (claim.request.verb == Verb::broadcast && root < world_ranks.size()) claim.request.root = world_ranks[root];
  }
  for (const auto& aspect : aspects()) {
    if (differ(claims, aspect.value)) {
      return claims.front().request.label() + ": " + tell(claims, world_ranks, aspect.verb, aspect.value) +
             "; all ranks must pass the same";
    }
  }
  return describe_member(claims, world_ranks, differing_member(claims));
}

}  // namespace perseus
