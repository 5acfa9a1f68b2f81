// Where on this machine a libmpi may lie, and whose each is, without opening it: a wrong one opened cannot be closed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bootstrap/launcher.h"
#include "transport/mpi/api.h"

namespace perseus::mpi {

struct Candidate {
  std::string path;
  Family family = Family::mpich;
};

// Whose library a file is, by the words in it; nothing if it is no libmpi (wheels hold linker scripts of that name
// too).
std::optional<Family> identify(const std::string& path);

// Can a library of this family join the ranks that this launcher has started? Hydra's two dialects understand each
// other.
bool fits(Family family, LauncherKind launcher);

// Every libmpi found, the best first: near the mpirun that started us (the folders of `ancestors`, our parent's first),
// in Python's prefix, near the mpirun on PATH, on LD_LIBRARY_PATH, among the system's libraries.
std::vector<Candidate> find_libraries(const LauncherEnvironment& environment,
                                      const std::vector<std::string>& ancestors);

// The folders of the programs of this process's ancestors, as far as they may be read.
std::vector<std::string> ancestor_folders();

// The first that is of the launcher's own family, else the first that fits.
std::optional<Candidate> best_for(LauncherKind launcher, const std::vector<Candidate>& candidates);

// A libmpi that is in this process already, opened by mpi4py or the user; empty: none.
std::string loaded_library();

}  // namespace perseus::mpi
