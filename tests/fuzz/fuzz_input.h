// Splits the bytes of a fuzzer into numbers and strings that a target feeds to a parser.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace perseus {

class FuzzInput {
 public:
  FuzzInput(const std::uint8_t* data, std::size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return rest_.empty(); }

  // Returns a number below `end`; 0 if no bytes are left.
  int below(int end) { return rest_.empty() ? 0 : static_cast<unsigned char>(take(1)[0]) % end; }

  // Returns a string whose length is in two bytes before it; shorter if the bytes end.
  std::string text() {
    const auto low = static_cast<std::size_t>(below(256));
    const auto high = static_cast<std::size_t>(below(256));
    return std::string(take(high << 8 | low));
  }

  // Returns all remaining bytes.
  std::string_view rest() { return take(rest_.size()); }

 private:
  std::string_view take(std::size_t count) {
    const auto taken = rest_.substr(0, std::min(count, rest_.size()));
    rest_.remove_prefix(taken.size());
    return taken;
  }

  std::string_view rest_;
};

}  // namespace perseus
