// Defines the messages of watch connections: a rank leaves in order, some rank of the job has left, a rank is lost, or
// bytes of another protocol, such as missing-rank queries.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "bootstrap/watch/liveness.h"

namespace perseus {

inline constexpr std::string_view kEnded =
    "ended without shutting down (it was killed, crashed, or left because of an error)";

struct WatchNote {
  enum class Word : std::int32_t {
    goodbye = 1,
    lost = 2,
    cut_off = 3,
    stalled = 4,
    words = 5,
    gave_up = 6,
    departure = 7
  };

  static constexpr std::size_t kText = 248;

  Word word = Word::goodbye;
  std::int32_t number = 0;         // the lost rank, or the length of the bytes
  std::array<char, kText> text{};  // the bytes, or the text of a loss, which ends with a zero

  static WatchNote goodbye() { return {}; }
  static WatchNote departure() { return {Word::departure, 0, {}}; }
  static WatchNote of(const Loss& loss) {
    WatchNote note{loss.cut_off   ? Word::cut_off
                   : loss.stalled ? Word::stalled
                   : loss.gave_up ? Word::gave_up
                                  : Word::lost,
                   loss.rank,
                   {}};
    std::copy_n(loss.text.data(), std::min(loss.text.size(), note.text.size() - 1), note.text.data());
    return note;
  }
  // `words` has at most kText bytes.
  static WatchNote of(std::string_view words) {
    WatchNote note{Word::words, static_cast<std::int32_t>(words.size()), {}};
    std::copy(words.begin(), words.end(), note.text.begin());
    return note;
  }

  // Returns the loss. The text ends at its zero or at its limit, so a malformed message is harmless.
  Loss loss() const {
    return {number,
            {text.begin(), std::find(text.begin(), text.end(), '\0')},
            word == Word::cut_off,
            word == Word::stalled,
            word == Word::gave_up};
  }
  std::string_view words() const {
    return {text.data(), static_cast<std::size_t>(std::clamp<std::int32_t>(number, 0, kText))};
  }
};

}  // namespace perseus
