// Tests the choice of libmpi in simulated trees of files that only look like libraries.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "base/error.h"
#include "bootstrap/mpi.h"
#include "transport/mpi/library/search.h"

namespace perseus::testing {
namespace {

namespace fs = std::filesystem;
using mpi::Family;

constexpr const char* kOpenMpi =
    "\x7f"
    "ELF ... ompi_mpi_comm_world ...";
constexpr const char* kMpichVersion =
    "\x7f"
    "ELF ... MPIR_CVAR_NOLOCAL ...";
constexpr const char* kIntel =
    "\x7f"
    "ELF ... MPIR_CVAR_X Intel(R) MPI Library 2021 ...";
constexpr const char* kScript = "INPUT(libmpi.so.12)";

class Search : public ::testing::Test {
 protected:
  Search() {
    std::string pattern = (fs::temp_directory_path() / "perseus-search-XXXXXX").string();
    root_ = mkdtemp(pattern.data());
    environment_.lookup = [this](std::string_view name) -> std::optional<std::string> {
      const auto found = variables_.find(name);
      return found == variables_.end() ? std::nullopt : std::optional(found->second);
    };
  }
  ~Search() override { fs::remove_all(root_); }

  std::string file(const std::string& path, const char* content) {
    const auto full = root_ / path;
    fs::create_directories(full.parent_path());
    std::ofstream(full) << content;
    return full.string();
  }

  void program(const std::string& path) { chmod(file(path, "#!/bin/sh\n").c_str(), 0755); }
  std::string folder(const std::string& path) { return (root_ / path).string(); }

  // Returns the libraries in the simulated tree; this machine may have others.
  std::vector<std::string> found(const std::vector<std::string>& ancestors = {}) {
    std::vector<std::string> paths;
    for (const auto& candidate : mpi::find_libraries(environment_, ancestors)) {
      if (candidate.path.starts_with(root_.string()))
        paths.push_back(fs::path(candidate.path).lexically_relative(root_).string());
    }
    return paths;
  }

  fs::path root_;
  std::map<std::string, std::string, std::less<>> variables_;
  LauncherEnvironment environment_;
};

TEST_F(Search, DistinguishesFamiliesWithoutOpening) {
  EXPECT_EQ(mpi::identify(file("a/libmpi.so.40", kOpenMpi)), Family::openmpi);
  EXPECT_EQ(mpi::identify(file("b/libmpi.so.12", kMpichVersion)), Family::mpich);
  EXPECT_EQ(mpi::identify(file("c/libmpi.so.12", kIntel)), Family::intel);
  EXPECT_EQ(mpi::identify(file("d/libmpi_abi.so.1", kMpichVersion)), Family::standard);
  EXPECT_EQ(mpi::identify(file("e/libmpi.so", kScript)), std::nullopt);
  EXPECT_EQ(mpi::identify(file("f/libmpi.so", "")), std::nullopt);
  EXPECT_EQ(mpi::identify(folder("nothing")), std::nullopt);
}

TEST_F(Search, WheelsAreFoundDespiteTheirLinkerScripts) {
  file("venv/lib/libmpi.so", kScript);
  file("venv/lib/libmpi.so.12", kMpichVersion);
  environment_.python_prefix = folder("venv");
  EXPECT_EQ(found(), (std::vector<std::string>{"venv/lib/libmpi.so.12"}));
}

TEST_F(Search, TheMpirunThatStartedTheProcessComesFirst) {
  file("cluster/lib/libmpi.so.40", kOpenMpi);
  file("venv/lib/libmpi.so.12", kMpichVersion);
  file("other/lib/libmpi.so.40", kOpenMpi);
  program("other/bin/mpirun");
  environment_.python_prefix = folder("venv");
  variables_["PATH"] = folder("other/bin");
  variables_["LD_LIBRARY_PATH"] = folder("cluster/lib");
  EXPECT_EQ(found({folder("cluster/bin")}),
            (std::vector<std::string>{"cluster/lib/libmpi.so.40", "venv/lib/libmpi.so.12", "other/lib/libmpi.so.40"}));
}

TEST_F(Search, IntelKeepsItsLibraryUnderRelease) {
  file("oneapi/lib/release/libmpi.so.12", kIntel);
  variables_["I_MPI_ROOT"] = folder("oneapi");
  EXPECT_EQ(found(), (std::vector<std::string>{"oneapi/lib/release/libmpi.so.12"}));
}

TEST_F(Search, LinksToOneFileCountOnce) {
  file("venv/lib/libmpi.so.40.1", kOpenMpi);
  fs::create_symlink("libmpi.so.40.1", root_ / "venv/lib/libmpi.so.40");
  fs::create_symlink("libmpi.so.40", root_ / "venv/lib/libmpi.so");
  environment_.python_prefix = folder("venv");
  EXPECT_EQ(found(), (std::vector<std::string>{"venv/lib/libmpi.so"}));
}

TEST(BestLibrary, IsOfTheLaunchersFamilyElseOneThatFits) {
  const mpi::Candidate openmpi{"o", Family::openmpi}, mpich{"m", Family::mpich}, intel{"i", Family::intel};
  EXPECT_EQ(mpi::best_for(LauncherKind::intel, {openmpi, mpich, intel}).value().path, "i");
  EXPECT_EQ(mpi::best_for(LauncherKind::mpich, {openmpi, intel}).value().path, "i");
  EXPECT_EQ(mpi::best_for(LauncherKind::openmpi, {mpich, openmpi}).value().path, "o");
  EXPECT_EQ(mpi::best_for(LauncherKind::slurm, {mpich, openmpi}).value().path, "m");
  EXPECT_FALSE(mpi::best_for(LauncherKind::openmpi, {mpich, intel}));
  EXPECT_FALSE(mpi::best_for(LauncherKind::mpich, {openmpi}));
}

TEST_F(Search, AFileThatCannotBeOpenedIsNamed) {
  MpiJob job;
  job.launcher = {LauncherKind::mpich, 0, 2, "PMI_SIZE=2", ""};
  job.environment = environment_;
  job.library = file("lib/libmpi.so.12", kMpichVersion);
  try {
    make_mpi_bootstrap(job);
    FAIL() << "a file that is not a library was opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unavailable);
    EXPECT_NE(std::string(error.what()).find(job.library), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace perseus::testing
