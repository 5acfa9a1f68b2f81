#include "transport/shm/memory/mapped_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace perseus::shm {

namespace {

// A mapping as /proc/self/maps lists it.
struct Mapping {
  std::uintptr_t begin = 0, end = 0;
  std::uint64_t offset = 0, inode = 0;
  dev_t device = 0;
  std::string rights;  // such as "rw-s": readable, writable, not executable, shared
  std::string path;
};

// Parses a line such as "7f10a000-7f10b000 rw-s 00001000 00:19 2051   /dev/shm/psm_1f2e (deleted)".
std::optional<Mapping> mapping_in(const std::string& line) {
  std::istringstream words(line);
  Mapping mapping;
  unsigned major_number = 0, minor_number = 0;
  char dash = 0, colon = 0;
  words >> std::hex >> mapping.begin >> dash >> mapping.end >> mapping.rights >> mapping.offset >> major_number >>
      colon >> minor_number >> std::dec >> mapping.inode;
  if (words.fail()) return std::nullopt;
  mapping.device = makedev(major_number, minor_number);
  std::getline(words >> std::ws, mapping.path);
  return mapping;
}

std::optional<Mapping> mapping_at(std::uintptr_t address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    auto mapping = mapping_in(line);
    if (mapping && mapping->begin <= address && address < mapping->end) return mapping;
  }
  return std::nullopt;
}

bool is_file_of(const struct stat& status, const Mapping& mapping) {
  return status.st_ino == mapping.inode && status.st_dev == mapping.device && S_ISREG(status.st_mode);
}

// Returns true if `fd` can be read and written, and is the mapping's file.
bool is_file_of(int fd, const Mapping& mapping) {
  struct stat status{};
  return fstat(fd, &status) == 0 && is_file_of(status, mapping) && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR;
}

UniqueFd open_by_path(const Mapping& mapping) {
  struct stat status{};
  if (lstat(mapping.path.c_str(), &status) != 0 || !is_file_of(status, mapping)) return {};
  UniqueFd fd(open(mapping.path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  return fd && is_file_of(fd.get(), mapping) ? std::move(fd) : UniqueFd();
}

// Returns a duplicate of the descriptor that this process has of the mapping's file, or none.
UniqueFd find_descriptor(const Mapping& mapping) {
  std::error_code failed;
  std::filesystem::directory_iterator entry("/proc/self/fd", failed);
  for (; !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
    const auto name = entry->path().filename().string();
    int number = -1;
    std::from_chars(name.data(), name.data() + name.size(), number);
    if (number < 0 || !is_file_of(number, mapping)) continue;
    UniqueFd fd(fcntl(number, F_DUPFD_CLOEXEC, 0));
    // Another thread may have closed the descriptor and opened another file meanwhile.
    if (fd && is_file_of(fd.get(), mapping)) return fd;
  }
  return {};
}

bool is_in_memory(int fd) {
  struct statfs system{};
  if (fstatfs(fd, &system) != 0) return false;
  const auto type = static_cast<std::uint32_t>(system.f_type);
  return type == TMPFS_MAGIC || type == HUGETLBFS_MAGIC;
}

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorKind::unavailable, why); }

}  // namespace

MappedFile find_mapped_file(const void* data, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const auto mapping = mapping_at(address);
  if (!mapping) refuse("/proc/self/maps does not list the memory");
  if (mapping->rights.size() != 4 || mapping->rights[1] != 'w' || mapping->rights[3] != 's') {
    refuse("the memory is not a writable mapping that processes can share");
  }
  if (bytes > mapping->end - address) refuse("the memory consists of several mappings");
  MappedFile file;
  file.fd = open_by_path(*mapping);
  if (!file.fd) file.fd = find_descriptor(*mapping);
  if (!file.fd) refuse("the process has no descriptor of the file " + mapping->path);
  if (!is_in_memory(file.fd.get())) refuse(mapping->path + " is not a file in memory");
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = address / page * page;
  file.offset = mapping->offset + (begin - mapping->begin);
  file.begin = reinterpret_cast<std::byte*>(begin);
  file.bytes = address - begin + bytes;
  return file;
}

}  // namespace perseus::shm
