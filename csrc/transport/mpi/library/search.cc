#include "transport/mpi/library/search.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

namespace perseus::mpi {
namespace {

namespace fs = std::filesystem;

// Maps a file's bytes.
class Mapped {
 public:
  explicit Mapped(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    struct stat about{};
    if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size > 0) {
      size_ = static_cast<std::size_t>(about.st_size);
      data_ = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
      if (data_ == MAP_FAILED) data_ = nullptr;
    }
    close(fd);
  }
  ~Mapped() {
    if (data_ != nullptr) munmap(data_, size_);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  bool starts_with(std::string_view text) const { return bytes().starts_with(text); }
  bool contains(std::string_view text) const {
    return data_ != nullptr && memmem(data_, size_, text.data(), text.size()) != nullptr;
  }

 private:
  std::string_view bytes() const {
    return data_ == nullptr ? std::string_view() : std::string_view(static_cast<const char*>(data_), size_);
  }

  void* data_ = nullptr;
  std::size_t size_ = 0;
};

std::string base_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

// The first name is that which mpi4py tries first. Another copy of the same library would be opened a second time,
// because wheels contain copies instead of links.
constexpr std::string_view kNames[] = {"libmpi.so", "libmpi.so.12", "libmpi.so.40", "libmpich.so.12", "libmpich.so"};

bool is_libmpi(const std::string& path) {
  const auto name = base_name(path);
  for (const std::string_view stem : {"libmpi.so", "libmpich.so", "libmpi_abi.so"}) {
    if (name == stem || name.starts_with(std::string(stem) + ".")) return true;
  }
  return false;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ':');) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

class Finder {
 public:
  // Searches the library folders of a folder of programs: lib, Intel's lib/release, and Debian's multiarch folders.
  void look_beside(const fs::path& programs) {
    const auto prefix = programs.parent_path();
    if (prefix == "/" || prefix == "/usr") return;  // the system's libraries come last
    look_under(prefix);
  }

  void look_under(const fs::path& prefix) {
    for (const char* folder : {"lib", "lib/release", "lib64"}) look_in(prefix / folder);
  }

  void look_in(const fs::path& folder) {
    for (const auto name : kNames) consider((folder / name).string());
  }

  void consider(const std::string& path) {
    std::error_code error;
    const auto real = fs::canonical(path, error);
    if (error || !seen_.insert(real.string()).second) return;
    if (const auto family = identify(path)) found.push_back({path, *family});
  }

  std::vector<Candidate> found;

 private:
  std::set<std::string> seen_;
};

std::optional<fs::path> mpirun_on_path(const std::string& path) {
  for (const auto& folder : split(path)) {
    for (const char* name : {"mpirun", "mpiexec"}) {
      std::error_code error;
      auto program = fs::canonical(fs::path(folder) / name, error);
      if (!error && access(program.c_str(), X_OK) == 0) return program;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Family> identify(const std::string& path) {
  const Mapped file(path);
  if (!file.starts_with("\x7f"
                        "ELF")) {
    return std::nullopt;
  }
  if (base_name(path).starts_with("libmpi_abi.")) return Family::standard;
  if (file.contains("ompi_mpi_comm_world")) return Family::openmpi;
  if (file.contains("Intel(R) MPI Library")) return Family::intel;
  if (file.contains("MPIR_CVAR_")) return Family::mpich;
  return std::nullopt;
}

bool fits(Family family, LauncherKind launcher) {
  switch (launcher) {
    case LauncherKind::openmpi: return family == Family::openmpi || family == Family::standard;
    case LauncherKind::mpich:
    case LauncherKind::intel: return family != Family::openmpi;
    case LauncherKind::slurm:
    case LauncherKind::none:
    case LauncherKind::perseusrun: return true;
  }
  return false;
}

std::vector<Candidate> find_libraries(const LauncherEnvironment& environment,
                                      const std::vector<std::string>& ancestors) {
  Finder finder;
  for (const auto& folder : ancestors) finder.look_beside(folder);
  if (!environment.python_prefix.empty()) finder.look_under(environment.python_prefix);
  for (const char* root : {"I_MPI_ROOT", "OPAL_PREFIX", "MPI_HOME", "MPI_ROOT"}) {
    if (const auto prefix = environment.get(root); prefix && !prefix->empty()) finder.look_under(*prefix);
  }
  if (const auto program = mpirun_on_path(environment.get("PATH").value_or(""))) {
    finder.look_beside(program->parent_path());
  }
  for (const auto& folder : split(environment.get("LD_LIBRARY_PATH").value_or(""))) finder.look_in(folder);
  for (const char* folder : {"/usr/local/lib", "/usr/lib64/openmpi/lib", "/usr/lib64/mpich/lib",
                             "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"}) {
    finder.look_in(folder);
  }
  return finder.found;
}

std::vector<std::string> ancestor_folders() {
  std::vector<std::string> folders;
  auto process = getppid();
  for (int depth = 0; depth < 8 && process > 1; ++depth) {
    const auto about = fs::path("/proc") / std::to_string(process);
    std::error_code error;
    const auto program = fs::read_symlink(about / "exe", error);
    if (!error) folders.push_back(program.parent_path().string());
    // The format is "pid (name) state parent …". The name may contain parentheses, so search for the last one.
    std::ifstream file(about / "stat");
    std::string line;
    if (!std::getline(file, line)) break;
    std::istringstream rest(line.substr(line.find_last_of(')') + 1));
    std::string state;
    process = 0;
    rest >> state >> process;
  }
  return folders;
}

std::optional<Candidate> best_for(LauncherKind launcher, const std::vector<Candidate>& candidates) {
  const auto own = [launcher](const Candidate& candidate) {
    return (launcher == LauncherKind::openmpi && candidate.family == Family::openmpi) ||
           (launcher == LauncherKind::mpich && candidate.family == Family::mpich) ||
           (launcher == LauncherKind::intel && candidate.family == Family::intel);
  };
  auto found = std::find_if(candidates.begin(), candidates.end(), own);
  if (found == candidates.end()) {
    found = std::find_if(candidates.begin(), candidates.end(),
                         [launcher](const Candidate& candidate) { return fits(candidate.family, launcher); });
  }
  if (found == candidates.end()) return std::nullopt;
  return *found;
}

std::string loaded_library() {
  std::string found;
  const auto visit = [](dl_phdr_info* info, std::size_t, void* data) {
    const std::string path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
    if (!is_libmpi(path)) return 0;
    *static_cast<std::string*>(data) = path;
    return 1;
  };
  dl_iterate_phdr(visit, &found);
  return found;
}

}  // namespace perseus::mpi
