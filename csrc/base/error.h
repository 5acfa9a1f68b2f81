// Defines the two forms of a failure: Error is thrown to a caller, Status is the outcome of a piece of work.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "base/tables.h"

namespace perseus {

enum class ErrorKind : std::uint8_t { PERSEUS_ERROR_KINDS(PERSEUS_ENUMERATOR) };

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& text) : std::runtime_error(text), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// The outcome of a piece of work: ok, or a kind of failure and its text. Communication threads return it and never
// throw.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(ErrorKind kind, std::string text) : failed_(true), kind_(kind), text_(std::move(text)) {}
  static Status from(const Error& error) { return {error.kind(), error.what()}; }

  bool ok() const { return !failed_; }
  ErrorKind kind() const { return kind_; }
  const std::string& text() const { return text_; }
  void throw_if_failed() const {
    if (failed_) throw Error(kind_, text_);
  }

 private:
  bool failed_ = false;
  ErrorKind kind_ = ErrorKind::transport;
  std::string text_;
};

// Returns the system's text for a value of errno. Thread-safe, unlike std::strerror.
inline std::string system_error_text(int error) { return std::system_category().message(error); }

}  // namespace perseus
