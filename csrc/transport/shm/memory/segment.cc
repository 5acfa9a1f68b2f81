#include "transport/shm/memory/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "base/error.h"

namespace perseus::shm {

namespace {

constexpr const char* kName = "perseus-arena";
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

#ifndef MFD_NOEXEC_SEAL
constexpr unsigned MFD_NOEXEC_SEAL = 0x0008U;
#endif

Error unavailable(const std::string& what, int error) {
  const std::string limit = error == EFBIG ? "ulimit -f" : "ulimit -v";
  return {ErrorKind::unavailable, what + ": " + system_error_text(error) +
                                      ". Set PERSEUS_ARENA_BYTES to less, or raise the limit (" + limit + ")"};
}

UniqueFd new_memory() {
  // Older kernels do not have the flag that prevents the memory from being executed.
  UniqueFd fd(memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL));
  if (!fd && errno == EINVAL) fd.reset(memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd && (errno == EPERM || errno == EACCES || errno == ENOSYS)) {
    throw Error(ErrorKind::unavailable, std::string("cannot make shared memory: memfd_create: ") +
                                            system_error_text(errno) +
                                            ". Allow this system call (the seccomp profile of the container), or start "
                                            "the job by mpirun with PERSEUS_CPU_TRANSPORT=mpi");
  }
  if (!fd) throw unavailable("cannot make shared memory", errno);
  return fd;
}

}  // namespace

std::string size_text(std::size_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

Segment::Segment(UniqueFd fd, std::size_t bytes) : fd_(std::move(fd)), bytes_(bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_.get(), 0);
  if (memory == MAP_FAILED) throw unavailable("cannot map " + size_text(bytes) + " of shared memory", errno);
  base_ = static_cast<std::byte*>(memory);
  madvise(memory, bytes, MADV_HUGEPAGE);  // where the system allows it
  madvise(memory, bytes, MADV_DONTDUMP);
}

Segment::Segment(Segment&& other) noexcept
    : fd_(std::move(other.fd_)), base_(std::exchange(other.base_, nullptr)), bytes_(other.bytes_) {}

Segment::~Segment() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

Segment Segment::create(std::size_t bytes) {
  auto fd = new_memory();
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    throw unavailable("cannot size shared memory to " + size_text(bytes), errno);
  }
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) throw unavailable("cannot seal shared memory", errno);
  return {std::move(fd), bytes};
}

Segment Segment::adopt(UniqueFd fd, std::size_t bytes) {
  struct stat status{};
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (fstat(fd.get(), &status) != 0 || static_cast<std::size_t>(status.st_size) != bytes || seals < 0 ||
      (seals & F_SEAL_SHRINK) == 0) {
    throw Error(
        ErrorKind::transport,
        "shared memory: a rank of this host sent memory that does not have the agreed size or seals; check that "
        "all ranks run the same version of perseus_like");
  }
  Segment segment(std::move(fd), bytes);
  segment.fd_.reset();  // the mapping stays
  return segment;
}

bool Segment::commit(std::size_t offset, std::size_t bytes) {
  int result = 0;
  do {
    result = fallocate(fd_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  // Some sandboxes do not have fallocate(). Then pages are allocated when they are used.
  return result == 0 || errno == ENOSYS || errno == EOPNOTSUPP;
}

void Segment::decommit(std::size_t offset, std::size_t bytes) {
  // If this fails, the pages stay allocated, which only costs memory.
  [[maybe_unused]] const int result = fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                                static_cast<off_t>(offset), static_cast<off_t>(bytes));
}

void Segment::make_private() const {
  // mmap() over the mapping could fail after removing it. If mremap() fails, the old mapping stays.
  void* const copy = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd_.get(), 0);
  if (copy == MAP_FAILED) return;
  if (mremap(copy, bytes_, bytes_, MREMAP_MAYMOVE | MREMAP_FIXED, base_) == MAP_FAILED) munmap(copy, bytes_);
}

}  // namespace perseus::shm
