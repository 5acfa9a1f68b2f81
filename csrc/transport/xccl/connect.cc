// How the ranks of a new communicator find each other.
#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "base/error.h"
#include "transport/xccl/transport.h"

namespace perseus::xccl {
namespace {

// What a member tells the others before they connect.
struct Note {
  int rank = 0;         // of the world
  std::string library;  // "NCCL 2.32.3"
  std::string why_not;  // why it cannot connect; empty: it can
  std::string id;       // from the first member only
  bool waited = false;  // it cannot connect because the others did not come
};

// Numbers and texts with their length, one after the other.
std::string to_bytes(const Note& note) {
  std::string bytes;
  for (const auto& text :
       {std::to_string(note.rank), note.library, note.why_not, note.id, std::string(note.waited ? "1" : "")}) {
    bytes += std::to_string(text.size()) + ' ' + text;
  }
  return bytes;
}

std::optional<Note> note_from(std::string_view bytes) {
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
  return Note{std::stoi(texts[0]), texts[1], texts[2], texts[3], !texts[4].empty()};
}

// The members' notes, in their order.
std::vector<Note> exchange_notes(const Note& mine, std::span<const int> members, const Exchange& exchange) {
  std::vector<Note> notes(members.size());
  std::vector<bool> heard(members.size(), false);
  for (const auto& bytes : exchange(to_bytes(mine))) {
    const auto note = bytes.empty() ? std::nullopt : note_from(bytes);
    if (!note) continue;
    const auto place = std::find(members.begin(), members.end(), note->rank) - members.begin();
    if (place == std::ssize(members)) continue;
    notes[static_cast<std::size_t>(place)] = *note;
    heard[static_cast<std::size_t>(place)] = true;
  }
  const auto silent = std::find(heard.begin(), heard.end(), false);
  if (silent == heard.end()) return notes;
  throw Error(ErrorKind::transport, "rank " +
                                        std::to_string(members[static_cast<std::size_t>(silent - heard.begin())]) +
                                        " said nothing about its library; do all ranks run the same version?");
}

// The same text on all members; empty where all can connect.
std::string first_failure(const std::vector<Note>& notes) {
  // Who has waited in vain knows less than who did not come.
  for (const bool waited : {false, true}) {
    for (const auto& note : notes) {
      if (note.why_not.empty() || note.waited != waited) continue;
      return "rank " + std::to_string(note.rank) + ": " + note.why_not;
    }
  }
  const auto& first = notes.front();
  for (const auto& note : notes) {
    if (note.library == first.library) continue;
    return "rank " + std::to_string(first.rank) + " has " + first.library + " and rank " + std::to_string(note.rank) +
           " has " + note.library + ", which do not connect; install the same version for all ranks";
  }
  return "";
}

// All members come here at about the same time, and this takes no longer than they wait for each other.
Options shortened(Options options) {
  options.start_timeout = options.start_timeout * 3 / 4;
  return options;
}

}  // namespace

std::unique_ptr<XcclTransport> connect(const Joining& joining, std::span<const int> members, int rank,
                                       const Exchange& exchange, Liveness& liveness, const Options& options) {
  const auto place = std::find(members.begin(), members.end(), rank);
  if (place == members.end()) {
    exchange("");
    exchange("");
    return nullptr;
  }
  const auto& library = joining.library;
  Note mine{.rank = rank,
            .library = library ? library->title() : "",
            .why_not = library ? "" : joining.why_not,
            .id = {},
            .waited = false};
  UniqueId id{};
  if (library && place == members.begin()) {
    try {
      joining.device->activate();
      library->check(library->call.get_unique_id(&id), "GetUniqueId");
      mine.id.assign(id.bytes, sizeof id.bytes);
    } catch (const Error& error) {
      mine.why_not = error.what();
    }
  }
  const auto notes = exchange_notes(mine, members, exchange);
  const auto failure = first_failure(notes);
  std::unique_ptr<Communicator> communicator;
  mine.why_not = failure;
  if (failure.empty()) {
    try {
      std::memcpy(id.bytes, notes.front().id.data(), std::min(sizeof id.bytes, notes.front().id.size()));
      communicator =
          std::make_unique<Communicator>(library, joining.device, id, static_cast<int>(place - members.begin()),
                                         static_cast<int>(members.size()), liveness, shortened(options));
    } catch (const Error& error) {
      mine.why_not = error.what();
      mine.waited = error.kind() == ErrorKind::timed_out;
    }
  }
  const auto results = exchange_notes(mine, members, exchange);
  liveness.status().throw_if_failed();
  const auto text = failure.empty() ? first_failure(results) : failure;
  if (!text.empty()) throw Error(ErrorKind::unavailable, text);
  return std::make_unique<XcclTransport>(std::move(communicator));
}

}  // namespace perseus::xccl
