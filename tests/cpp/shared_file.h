// Memory in a file that processes share, as torch and multiprocessing make it.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <new>

namespace perseus::testing {

class SharedFile {
 public:
  explicit SharedFile(std::size_t bytes) : bytes_(bytes), fd_(memfd_create("a-framework", MFD_CLOEXEC)) {
    void* memory = ftruncate(fd_, static_cast<off_t>(bytes)) == 0
                       ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0)
                       : MAP_FAILED;
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<std::byte*>(memory);
  }
  ~SharedFile() {
    munmap(memory_, bytes_);
    close(fd_);
  }
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  std::byte* data() const { return memory_; }
  std::size_t bytes() const { return bytes_; }
  int fd() const { return fd_; }

 private:
  std::size_t bytes_;
  int fd_;
  std::byte* memory_ = nullptr;
};

}  // namespace perseus::testing
