// Bytes of control messages: small numbers are short, and everything read is checked.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "control/request.h"

namespace perseus {

class Writer {
 public:
  void number(std::uint64_t value);  // LEB128
  void signed_number(std::int64_t value);
  void real(double value);
  void text(std::string_view value);
  void numbers(std::span<const int> values);
  // Ascending stretches cost two numbers each, however long: ids agreed before mostly come that way.
  void runs(std::span<const std::uint32_t> ids);
  void request(const Request& request);

  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Throws Error(transport) where the bytes end early or make no sense.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  std::uint64_t number();
  std::int64_t signed_number();
  int small_number();  // of an int's size
  double real();
  std::string text();
  std::vector<int> numbers();
  std::vector<std::uint32_t> runs();
  Request request();
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view take(std::size_t count);
  std::size_t length();  // a count of things that follow: never more than the bytes left

  std::string_view rest_;
  // A few bytes can stand for many ids. A message with more ids than this, far beyond any cache, is malformed: it could
  // otherwise make its receiver allocate gigabytes.
  std::size_t ids_left_ = 1U << 18;
};

}  // namespace perseus
