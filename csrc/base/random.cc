#include "base/random.h"

#include <sys/random.h>

#include <cerrno>

#include "base/error.h"

namespace perseus {

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  if (getrandom(bytes.data(), count, 0) != static_cast<ssize_t>(count)) {
    throw Error(ErrorKind::transport, std::string("start: the kernel provides no random bytes (getrandom: ") +
                                          system_error_text(errno) + "); check the sandbox's system call filter");
  }
  return bytes;
}

std::string hex_text(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char each : bytes) {
    const auto byte = static_cast<unsigned char>(each);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace perseus
