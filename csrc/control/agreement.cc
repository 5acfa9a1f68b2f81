#include "control/agreement.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <span>
#include <sstream>

namespace perseus {

namespace {

// Returns the shortest text that identifies the number, such as 0.1 or 1e-07.
std::string number(double value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

std::string op_of(const Request& request) {
  return request.scale.divisor > 1 ? "average" : std::string(name_of(request.op));
}

std::string wire_of(const Request& request) {
  return request.wire_dtype < 0 ? "none" : std::string(name_of(static_cast<DType>(request.wire_dtype)));
}

std::string list_of(const std::vector<std::int64_t>& values) { return to_string(Shape(values)); }

// One property in which two requests may differ, and how the text states its value for a rank.
struct Aspect {
  std::string verb;  // "has", "asks for"
  std::function<std::string(const Request&)> value;
};

const std::vector<Aspect>& aspects() {
  static const std::vector<Aspect> kAspects = {
      {"calls", [](const Request& r) { return r.call.empty() ? std::string(name_of(r.verb)) : r.call; }},
      {"does it by", [](const Request& r) { return std::string(name_of(r.verb)); }},
      // If the members have names, describe_member() names the first one that differs.
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

std::string list_values(const std::vector<Submission>& submissions, const std::vector<int>& world_ranks,
                        const std::string& verb, const std::function<std::string(const Request&)>& value) {
  std::string text;
  for (const auto& submission : submissions) {
    const auto ranks = world_ranks_of(submission.ranks, world_ranks);
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
    text += describe_ranks(ranks) + " " + its_verb + " " + value(submission.request);
  }
  return text;
}

bool differ(const std::vector<Submission>& submissions, const std::function<std::string(const Request&)>& value) {
  const auto first = value(submissions.front().request);
  return std::any_of(submissions.begin(), submissions.end(),
                     [&](const Submission& submission) { return value(submission.request) != first; });
}

// Returns the index of the first member whose dtype or shape differs between the submissions.
std::size_t differing_member(const std::vector<Submission>& submissions) {
  const auto& first = submissions.front().request;
  for (std::size_t i = 0; i < first.members.size(); ++i) {
    Request mine = first;
    mine.members = {first.members[i]};
    for (const auto& submission : submissions) {
      Request other = submission.request;
      if (i >= other.members.size()) return i;
      other.members = {submission.request.members[i]};
      if (!mine.agrees_with(other)) return i;
    }
  }
  return first.members.size();  // others have more
}

// A line of Request::member_names: the member's name and, after a tab, what replaces its dtype and shape in texts.
struct MemberText {
  std::string name;
  std::string has;
};

MemberText member_text_of(const Request& request, std::size_t member) {
  std::istringstream lines(request.member_names);
  std::string line;
  for (std::size_t i = 0; i <= member; ++i) {
    if (!std::getline(lines, line)) return {};
  }
  const auto tab = line.find('\t');
  if (tab == std::string::npos) return {line, ""};
  return {line.substr(0, tab), line.substr(tab + 1)};
}

std::string describe_member(const std::vector<Submission>& submissions, const std::vector<int>& world_ranks,
                            std::size_t i) {
  const auto& first = submissions.front().request;
  const auto name = member_text_of(first, i).name;
  const auto any = [&](const auto& holds) {
    return std::any_of(submissions.begin(), submissions.end(),
                       [&](const Submission& submission) { return holds(member_text_of(submission.request, i)); });
  };
  const bool is_another = any([&](const MemberText& text) { return text.name != name; });  // or is unnamed on some rank
  const bool is_stand_in = any([](const MemberText& text) { return !text.has.empty(); });
  const bool is_free = first.verb == Verb::allgather || first.verb == Verb::alltoall;
  const auto value = [&](const Request& r) {
    if (i >= r.members.size()) return std::string("no more of them");
    const auto text = member_text_of(r, i);
    const auto has =
        text.has.empty() ? std::string(name_of(r.members[i].dtype)) + to_string(r.members[i].shape) : text.has;
    return is_another && !text.name.empty() ? text.name + ", " + has : has;
  };
  std::string where = first.members.size() > 1 ? " (member " + std::to_string(i) + " of the group)" : "";
  if (!name.empty() && !is_another) where = ", " + name;
  return first.label() + where + ": " + list_values(submissions, world_ranks, "has", value) +
         (is_another || is_stand_in ? "; all ranks must have the same"
          : is_free                 ? "; dtype and all but the first dimension must be the same on all ranks"
                                    : "; dtype and shape must be the same on all ranks");
}

}  // namespace

RankSet world_ranks_of(const RankSet& ranks, const std::vector<int>& world_ranks) {
  RankSet found;
  for (const auto& [first, end] : ranks.runs()) {
    // Groups of consecutive ranks are the usual case.
    const auto run =
        std::span(world_ranks).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(end - first));
    std::size_t count = 1;
    for (std::size_t i = 0; i < run.size(); i += count) {
      for (count = 1; i + count < run.size() && run[i + count] == run[i] + static_cast<int>(count);) ++count;
      found.add_run({run[i], run[i] + static_cast<int>(count)});
    }
  }
  return found;
}

std::string describe_ranks(const RankSet& ranks) {
  std::string text;
  for (const auto& [first, end] : ranks.runs()) {
    text += (text.empty() ? "" : ", ") + std::to_string(first);
    if (end > first + 1) text += (end == first + 2 ? ", " : "-") + std::to_string(end - 1);
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

std::string describe_disagreement(std::vector<Submission> submissions, const std::vector<int>& world_ranks) {
  // Reports arrive in any order, but the text must not depend on it.
  std::sort(submissions.begin(), submissions.end(),
            [](const Submission& a, const Submission& b) { return a.ranks.lowest() < b.ranks.lowest(); });
  // Users give the root as a world rank, so the text has the world rank.
  for (auto& submission : submissions) {
    const auto root = static_cast<std::size_t>(submission.request.root);
    if (submission.request.verb == Verb::broadcast && root < world_ranks.size())
      submission.request.root = world_ranks[root];
  }
  for (const auto& aspect : aspects()) {
    if (differ(submissions, aspect.value)) {
      // A call's own name is a part of the list, and may be a sentence.
      const auto plain = std::find_if(submissions.begin(), submissions.end(),
                                      [](const auto& each) { return each.request.call.empty(); });
      return (plain == submissions.end() ? submissions.begin() : plain)->request.label() + ": " +
             list_values(submissions, world_ranks, aspect.verb, aspect.value) + "; all ranks must pass the same";
    }
  }
  return describe_member(submissions, world_ranks, differing_member(submissions));
}

}  // namespace perseus
