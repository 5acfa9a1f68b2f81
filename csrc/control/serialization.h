// Writes and reads the bytes of control messages.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "control/rank_set.h"
#include "control/request.h"

namespace perseus {

// Appends values to the bytes of a message. Small numbers take one byte.
class Writer {
 public:
  void number(std::uint64_t value);  // LEB128
  void signed_number(std::int64_t value);
  void real(double value);
  void text(std::string_view value);
  void numbers(std::span<const int> values);
  void ranks(const RankSet& ranks);
  // Writes runs of ascending ids as two numbers each. Ids of cached requests mostly come in such runs.
  void runs(std::span<const std::uint32_t> ids);
  void request(const Request& request);

  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads values from the bytes of a message. Throws Error(transport) if the bytes end early or are out of range.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  std::uint64_t number();
  std::int64_t signed_number();
  int small_number();  // fits into an int
  double real();
  std::string text();
  std::vector<int> numbers();
  RankSet ranks();
  std::vector<std::uint32_t> runs();
  Request request();
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view take(std::size_t count);
  std::size_t length();  // a count of items that follow; at most the number of bytes left

  std::string_view rest_;
  // Limits the ids in one message, far above any cache's size. Without a limit a few bytes could make the receiver
  // allocate gigabytes.
  std::size_t ids_left_ = 1U << 18;
};

}  // namespace perseus
