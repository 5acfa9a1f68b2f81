#include "trace/chrome.h"

#include <array>
#include <charconv>
#include <utility>

namespace perseus {

namespace {

// Further names and names with a counter share tracks.
constexpr std::size_t kMostTracks = 2000;

bool is_automatic(const std::string& name) { return name.find(".noname.") != std::string::npos; }

void add_number(std::string& text, std::int64_t value) {
  std::array<char, 24> digits{};
  text.append(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr);
}

void add_quoted(std::string& text, std::string_view value) {
  constexpr std::string_view kHex = "0123456789abcdef";
  text += '"';
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      text += '\\';
      text += c;
    } else if (byte < 0x20) {
      text += "\\u00";
      text += kHex[byte >> 4];
      text += kHex[byte & 15];
    } else {
      text += c;
    }
  }
  text += '"';
}

void add_capitals(std::string& text, std::string_view value) {
  for (const char c : value) text += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
}

void add_name(std::string& text, const TraceEvent& event) {
  text += ",\"name\":\"";
  if (event.what.empty()) {
    add_number(text, event.number);
  } else {
    add_capitals(text, event.prefix);
    if (!event.prefix.empty()) text += '_';
    add_capitals(text, event.what);
  }
  text += '"';
}

// Adds the key of a further argument.
void add_key(std::string& arguments, std::string_view key) {
  arguments += arguments.empty() ? "" : ",";
  add_quoted(arguments, key);
  arguments += ':';
}

std::string arguments_of(const TraceEvent& event, bool names_tensor) {
  std::string arguments;
  const auto number = [&](std::string_view key, std::int64_t value) {
    if (value < 0) return;
    add_key(arguments, key);
    add_number(arguments, value);
  };
  const auto word = [&](std::string_view key, std::string_view value) {
    if (value.empty()) return;
    add_key(arguments, key);
    add_quoted(arguments, value);
  };
  if (names_tensor) word("tensor", event.track);
  number("seq", event.sequence);
  number("bytes", event.bytes);
  word("dtype", event.dtype);
  word(event.kind == TraceEvent::Kind::end ? "error" : "shape", event.note);
  return arguments;
}

}  // namespace

ChromeFormat::ChromeFormat(TraceIdentity identity, TraceEvent::Clock::time_point start)
    : identity_(std::move(identity)), start_(start) {}

std::string ChromeFormat::head(std::int64_t epoch_us) const {
  const auto pid = "{\"ph\":\"M\",\"pid\":" + std::to_string(identity_.rank);
  std::string label;
  add_quoted(label, "rank " + std::to_string(identity_.rank) + " on " + identity_.host);
  std::string host;
  add_quoted(host, identity_.host);
  return pid + ",\"name\":\"process_name\",\"args\":{\"name\":" + label + "}},\n" + pid +
         ",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":" + std::to_string(identity_.rank) + "}},\n" + pid +
         ",\"name\":\"perseus_like\",\"args\":{\"rank\":" + std::to_string(identity_.rank) +
         ",\"size\":" + std::to_string(identity_.size) + ",\"host\":" + host +
         ",\"start_time_since_epoch_in_micros\":" + std::to_string(epoch_us) + "}}";
}

void ChromeFormat::add(const TraceEvent& event, std::string& elements) {
  const bool begins = event.kind == TraceEvent::Kind::begin, ends = event.kind == TraceEvent::Kind::end;
  auto& track = track_of(event.track, elements);
  // The begin of this event was before the timeline.
  if (ends && track.depth == 0) return;
  constexpr std::array<char, 3> kPhases = {'B', 'E', 'i'};
  elements += elements.empty() ? "{\"ph\":\"" : ",\n{\"ph\":\"";
  elements += kPhases[static_cast<std::size_t>(event.kind)];
  elements += "\",\"pid\":";
  add_number(elements, identity_.rank);
  elements += ",\"tid\":";
  add_number(elements, track.id);
  elements += ",\"ts\":";
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(event.at - start_).count();
  add_number(elements, ns / 1000);
  elements += '.';
  const auto rest = std::to_string(1000 + ns % 1000);
  elements.append(rest, 1, 3);
  if (!ends) add_name(elements, event);
  if (event.kind == TraceEvent::Kind::instant) elements += ",\"s\":\"t\"";
  const auto arguments = arguments_of(event, track.shared && !ends && (!begins || track.depth == 0));
  if (!arguments.empty()) elements += ",\"args\":{" + arguments + "}";
  elements += '}';
  track.depth += begins ? 1 : ends ? -1 : 0;
  if (track.shared && track.depth == 0) {
    free_.push_back(track.id);
    tracks_.erase(event.track);
  }
}

std::string ChromeFormat::dropped(std::int64_t count) const {
  return "{\"ph\":\"M\",\"pid\":" + std::to_string(identity_.rank) +
         ",\"name\":\"dropped_events\",\"args\":{\"count\":" + std::to_string(count) + "}}";
}

ChromeFormat::Track& ChromeFormat::track_of(const std::string& name, std::string& elements) {
  const auto [found, fresh] = tracks_.try_emplace(name);
  auto& track = found->second;
  if (!fresh) return track;
  track.shared = is_automatic(name) || tracks_.size() > kMostTracks;
  if (!track.shared) {
    track.id = new_track(name, elements);
  } else if (free_.empty()) {
    track.id = new_track(name.substr(0, name.find(".noname.")) + " …", elements);
  } else {
    track.id = free_.back();
    free_.pop_back();
  }
  return track;
}

int ChromeFormat::new_track(const std::string& label, std::string& elements) {
  const int id = next_++;
  elements += elements.empty() ? "" : ",\n";
  elements += "{\"ph\":\"M\",\"pid\":" + std::to_string(identity_.rank) + ",\"tid\":" + std::to_string(id) +
              ",\"name\":\"thread_name\",\"args\":{\"name\":";
  add_quoted(elements, label);
  elements += "}}";
  return id;
}

}  // namespace perseus
