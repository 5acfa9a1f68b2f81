// Connects the ranks of a new communicator.
#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "base/error.h"
#include "transport/xccl/transport.h"

namespace perseus::xccl {
namespace {

// The information that a member sends to the others before they connect.
struct MemberInfo {
  int rank = 0;         // world rank
  std::string library;  // "NCCL 2.32.3"
  std::string why_not;  // why it cannot connect; empty if it can
  std::string id;       // the communicator's id; only from the first member
  bool waited = false;  // it could not connect because other members did not come
};

// Returns each member of the struct as text with its length.
std::string to_bytes(const MemberInfo& info) {
  std::string bytes;
  for (const auto& text :
       {std::to_string(info.rank), info.library, info.why_not, info.id, std::string(info.waited ? "1" : "")}) {
    bytes += std::to_string(text.size()) + ' ' + text;
  }
  return bytes;
}

std::optional<MemberInfo> note_from(std::string_view bytes) {
  std::vector<std::string> texts;
  while (!bytes.empty()) {
    std::size_t length = 0, at = 0;
    for (; at < bytes.size() && bytes[at] >= '0' && bytes[at] <= '9'; ++at) {
      length = length * 10 + static_cast<std::size_t>(bytes[at] - '0');
    }
    if (at == bytes.size() || bytes.size() - at - 1 < length) return std::nullopt;
    texts.emplace_back(bytes.substr(at + 1, length));
    bytes.remove_prefix(at + 1 + length);
  }
  if (texts.size() != 5) return std::nullopt;
  return MemberInfo{std::stoi(texts[0]), texts[1], texts[2], texts[3], !texts[4].empty()};
}

// Returns the information of all members, in their order.
std::vector<MemberInfo> exchange_infos(const MemberInfo& mine, std::span<const int> members,
                                       const BootstrapAllgather& exchange) {
  std::vector<MemberInfo> infos(members.size());
  std::vector<bool> has_sent(members.size(), false);
  for (const auto& bytes : exchange(to_bytes(mine))) {
    const auto info = bytes.empty() ? std::nullopt : note_from(bytes);
    if (!info) continue;
    const auto place = std::find(members.begin(), members.end(), info->rank) - members.begin();
    if (place == std::ssize(members)) continue;
    infos[static_cast<std::size_t>(place)] = *info;
    has_sent[static_cast<std::size_t>(place)] = true;
  }
  const auto silent = std::find(has_sent.begin(), has_sent.end(), false);
  if (silent == has_sent.end()) return infos;
  throw Error(ErrorKind::transport,
              "rank " + std::to_string(members[static_cast<std::size_t>(silent - has_sent.begin())]) +
                  " sent no description of its library; check that all ranks run the same version of "
                  "perseus_like");
}

// Returns the same text on all members; empty if all can connect.
std::string first_failure(const std::vector<MemberInfo>& infos) {
  // A member that did not come knows more than one that waited in vain.
  for (const bool waited : {false, true}) {
    for (const auto& info : infos) {
      if (info.why_not.empty() || info.waited != waited) continue;
      return "rank " + std::to_string(info.rank) + ": " + info.why_not;
    }
  }
  const auto& first = infos.front();
  for (const auto& info : infos) {
    if (info.library == first.library) continue;
    return "rank " + std::to_string(first.rank) + " has " + first.library + " and rank " + std::to_string(info.rank) +
           " has " + info.library + ", which do not connect; install the same version for all ranks";
  }
  return "";
}

// Shortens the timeout, because all members start at about the same time.
Options shortened(Options options) {
  options.start_timeout = options.start_timeout * 3 / 4;
  return options;
}

}  // namespace

std::unique_ptr<XcclTransport> connect(const Participant& participant, std::span<const int> members, int rank,
                                       const BootstrapAllgather& exchange, Liveness& liveness, const Options& options) {
  const auto place = std::find(members.begin(), members.end(), rank);
  if (place == members.end()) {
    exchange("");
    exchange("");
    return nullptr;
  }
  const auto& library = participant.library;
  MemberInfo mine{.rank = rank,
                  .library = library ? library->title() : "",
                  .why_not = library ? "" : participant.why_not,
                  .id = {},
                  .waited = false};
  UniqueId id{};
  if (library && place == members.begin()) {
    try {
      participant.device->activate();
      library->check(library->call.get_unique_id(&id), "GetUniqueId");
      mine.id.assign(id.bytes, sizeof id.bytes);
    } catch (const Error& error) {
      mine.why_not = error.what();
    }
  }
  const auto infos = exchange_infos(mine, members, exchange);
  const auto failure = first_failure(infos);
  std::unique_ptr<Communicator> communicator;
  mine.why_not = failure;
  if (failure.empty()) {
    try {
      std::memcpy(id.bytes, infos.front().id.data(), std::min(sizeof id.bytes, infos.front().id.size()));
      communicator =
          std::make_unique<Communicator>(library, participant.device, id, static_cast<int>(place - members.begin()),
                                         static_cast<int>(members.size()), liveness, shortened(options));
    } catch (const Error& error) {
      mine.why_not = error.what();
      mine.waited = error.kind() == ErrorKind::timed_out;
    }
  }
  const auto results = exchange_infos(mine, members, exchange);
  liveness.status().throw_if_failed();
  const auto text = failure.empty() ? first_failure(results) : failure;
  if (!text.empty()) throw Error(ErrorKind::unavailable, text);
  return std::make_unique<XcclTransport>(std::move(communicator));
}

}  // namespace perseus::xccl
