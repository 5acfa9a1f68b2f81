// A file that holds a JSON array and is complete after every append, however the process ends.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace perseus {

// The closing bracket is written with the elements, and the next append begins on it, in one system call: what a killed
// process leaves behind can be parsed. (Not after a power cut: nothing is synced.)
class JsonArrayFile {
 public:
  // Throws Error(invalid_argument) where the file cannot be made, and leaves none. `elements`: at least one, joined by
  // ",\n".
  JsonArrayFile(const std::string& path, std::string_view elements);
  ~JsonArrayFile();
  JsonArrayFile(const JsonArrayFile&) = delete;
  JsonArrayFile& operator=(const JsonArrayFile&) = delete;

  // False once the file takes no more (a full disk): what was there before is kept whole.
  bool append(std::string_view elements);

  const std::string& path() const { return path_; }

 private:
  bool write_at(std::int64_t offset, std::string_view text);

  std::string path_;
  int file_;
  std::int64_t end_ = 0;  // where the closing bracket stands
};

}  // namespace perseus
