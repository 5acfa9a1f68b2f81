// Writes a JSON array to a file that is valid after every append.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace perseus {

// A JSON array in a file. One system call writes elements and the closing bracket, and the next append overwrites the
// bracket, so the file of a process that is killed between two appends can be parsed. A process that is killed within
// one leaves complete elements, a cut one and no bracket. (Nothing is synced, so a power cut may leave less.)
class JsonArrayFile {
 public:
  // Makes the file with at least one element; `elements` are joined by ",\n". Throws Error(invalid_argument) and leaves
  // no file if it cannot be made.
  JsonArrayFile(const std::string& path, std::string_view elements);
  ~JsonArrayFile();
  JsonArrayFile(const JsonArrayFile&) = delete;
  JsonArrayFile& operator=(const JsonArrayFile&) = delete;

  // Appends elements. Returns false if writing fails, for example on a full disk; the file then keeps its earlier
  // elements.
  bool append(std::string_view elements);

  const std::string& path() const { return path_; }

 private:
  bool write_at(std::int64_t offset, std::string_view text);

  std::string path_;
  int file_;
  std::int64_t end_ = 0;  // the place of the closing bracket
};

}  // namespace perseus
