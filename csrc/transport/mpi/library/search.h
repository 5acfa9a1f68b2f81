// Finds each libmpi on this machine and its family without opening it, because an opened library cannot be closed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bootstrap/local/launcher.h"
#include "transport/mpi/library/api.h"

namespace perseus::mpi {

struct Candidate {
  std::string path;
  Family family = Family::mpich;
};

// Returns the family of a library file by words in it, or nothing if the file is no libmpi. (Wheels also contain linker
// scripts of that name.)
std::optional<Family> identify(const std::string& path);

// Returns true if a library of this family can join ranks that this launcher has started. Hydra of MPICH and of Intel
// MPI are compatible.
bool fits(Family family, LauncherKind launcher);

// Returns every libmpi found, in this order: near the mpirun that started this process (the folders of `ancestors`, the
// parent's first), in Python's prefix, near the mpirun on PATH, on LD_LIBRARY_PATH, among the system's libraries.
std::vector<Candidate> find_libraries(const LauncherEnvironment& environment,
                                      const std::vector<std::string>& ancestors);

// Returns the folders of the programs of this process's ancestors, if they are readable.
std::vector<std::string> ancestor_folders();

// Returns the first candidate of the launcher's own family, else the first that fits.
std::optional<Candidate> best_for(LauncherKind launcher, const std::vector<Candidate>& candidates);

// Returns the path of a libmpi that mpi4py or the user has already loaded in this process; empty if there is none.
std::string loaded_library();

}  // namespace perseus::mpi
