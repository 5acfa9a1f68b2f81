#include "trace/json_array.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"

namespace perseus {

namespace {

constexpr std::string_view kClosing = "\n]\n";

// Removes the file unless it is a device.
void close_and_remove(int file, const std::string& path) {
  struct stat what{};
  const bool is_file = fstat(file, &what) == 0 && S_ISREG(what.st_mode);
  close(file);
  if (is_file) unlink(path.c_str());
}

}  // namespace

JsonArrayFile::JsonArrayFile(const std::string& path, std::string_view elements)
    : path_(path), file_(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
  std::string text = "[\n";
  text += elements;
  end_ = static_cast<std::int64_t>(text.size());
  text += kClosing;
  if (file_ >= 0 && write_at(0, text)) return;
  const std::string why = system_error_text(errno);
  if (file_ >= 0) close_and_remove(file_, path);
  throw Error(ErrorKind::invalid_argument, "the timeline cannot be written to " + path + ": " + why);
}

JsonArrayFile::~JsonArrayFile() { close(file_); }

bool JsonArrayFile::append(std::string_view elements) {
  std::string text = ",\n";
  text += elements;
  const auto grown = static_cast<std::int64_t>(text.size());
  text += kClosing;
  if (!write_at(end_, text)) {
    // Restores the complete array.
    [[maybe_unused]] const bool closed = write_at(end_, kClosing);
    [[maybe_unused]] const auto cut = ftruncate(file_, end_ + static_cast<std::int64_t>(kClosing.size()));
    return false;
  }
  end_ += grown;
  return true;
}

bool JsonArrayFile::write_at(std::int64_t offset, std::string_view text) {
  while (!text.empty()) {
    const auto written = pwrite(file_, text.data(), text.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    offset += written;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace perseus
