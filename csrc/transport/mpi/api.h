// The few functions of libmpi that are used here, in terms of bytes: one face for all ABI families.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace perseus::mpi {

enum class Family {
  openmpi,   // handles are addresses of the library's own objects
  mpich,     // handles are fixed integers: MPICH, MVAPICH, Cray
  intel,     // MPICH's ABI, but its own launcher and network settings
  standard,  // MPI-5's ABI (libmpi_abi), whoever made it
};

std::string_view name_of(Family family);

// Wide enough for every family's handles.
using Comm = std::uintptr_t;
using Request = std::uintptr_t;

struct Arrival {
  int from = 0;
  int bytes = 0;
};

// Failures of MPI are thrown as Error(transport) with MPI's own text. Communicators made here return their errors
// instead of ending the process. Functions after `initialize` may be called by any thread.
class Api {
 public:
  virtual ~Api() = default;

  virtual Family family() const = 0;
  virtual std::string version() = 0;  // "Open MPI v5.0.11"; before initialize too
  virtual std::string device() = 0;   // of MPICH: "ch4:ucx ofi"; empty for others
  virtual bool initialized() = 0;
  virtual bool finalized() = 0;

  // Initialises for several threads if wanted, unless that has happened. Otherwise, and where MPI gives less, calls are
  // made one at a time.
  // False when that leaves the user's own calls unprotected.
  virtual bool initialize(bool for_threads) = 0;
  // Whether MPI itself allows calls by several threads at once. After `initialize`.
  virtual bool is_multithreaded() const = 0;
  virtual void finalize() = 0;
  // Ends this process, and through the launcher all others.
  virtual void abort(int exit_code) = 0;

  virtual Comm world() = 0;
  virtual int rank(Comm comm) = 0;
  virtual int size(Comm comm) = 0;
  // Collective over `comm`.
  virtual Comm duplicate(Comm comm) = 0;
  // Collective over `ranks` of `parent`; calls with different tags may overlap.
  virtual Comm create(Comm parent, std::span<const int> ranks, int tag) = 0;
  // The same ranks again, by a connection of their own where MPI has several; connections are numbered from 0.
  // Collective over `comm`.
  virtual Comm duplicate_as_stream(Comm comm, int number) = 0;
  virtual void free(Comm comm) = 0;

  virtual Request send(Comm comm, const void* data, int bytes, int to, int tag) = 0;
  virtual Request receive(Comm comm, void* data, int bytes, int from, int tag) = 0;
  virtual bool test(Request& request) = 0;
  // Gives an unfinished request up; the memory it used may be touched until its peer has gone on.
  virtual void abandon(Request& request, bool receiving) = 0;
  // Has a message with this tag arrived from anybody?
  virtual bool probe(Comm comm, int tag, Arrival& arrival) = 0;
};

// `library` is dlopen's; it stays open for the life of the process, as MPI's exit handlers need it.
// Throws Error(unavailable) naming the first function that is missing.
std::unique_ptr<Api> make_api(void* library, const std::string& path);

}  // namespace perseus::mpi
