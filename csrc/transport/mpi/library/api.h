// Defines one interface to the functions of libmpi that are used here, for all ABI families.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "transport/messages/network.h"

namespace perseus::mpi {

enum class Family {
  openmpi,   // handles are addresses of the library's own objects
  mpich,     // handles are fixed integers: MPICH, MVAPICH, Cray
  intel,     // MPICH's ABI, but its own launcher and network settings
  standard,  // the ABI of MPI 5 (libmpi_abi) of any implementation
};

std::string_view name_of(Family family);

// Wide enough for every family's handles.
using Comm = std::uintptr_t;
using Request = messages::Request;

// A message that has arrived.
struct Envelope {
  int from = 0, tag = 0, bytes = 0;
};

// One opened libmpi. Failures of MPI are thrown as Error(transport) with MPI's own text. Communicators made here return
// their errors instead of ending the process. After initialize(), any thread may call any function.
class Api {
 public:
  virtual ~Api() = default;

  virtual Family family() const = 0;
  virtual std::string version() = 0;  // such as "Open MPI v5.0.11"; works before initialize()
  virtual std::string device() = 0;   // MPICH's device, such as "ch4:ucx ofi"; empty for others
  virtual bool initialized() = 0;
  virtual bool finalized() = 0;

  // Initializes MPI unless it is initialized, for several threads if `for_threads`. If MPI does not support several
  // threads, this class makes one call at a time. Returns false if the user's own MPI calls are then unprotected.
  virtual bool initialize(bool for_threads) = 0;
  // Returns true if MPI itself allows calls by several threads at once. Call it after initialize().
  virtual bool is_multithreaded() const = 0;
  virtual void finalize() = 0;
  // Ends this process and, through the launcher, all others.
  virtual void abort(int exit_code) = 0;

  virtual Comm world() = 0;
  virtual int rank(Comm comm) = 0;
  virtual int size(Comm comm) = 0;
  // Collective over `comm`.
  virtual Comm duplicate(Comm comm) = 0;
  // Collective over `ranks` of `parent`. Calls with different tags may overlap.
  virtual Comm create(Comm parent, std::span<const int> ranks, int tag) = 0;
  // Makes a communicator of the same ranks with its own connection, if MPI has several. Connections are numbered from
  // 0. Collective over `comm`.
  virtual Comm duplicate_as_stream(Comm comm, int number) = 0;
  virtual void free(Comm comm) = 0;
  // The largest tag of a message, the same on all ranks. Call it after initialize().
  virtual int last_tag() = 0;

  virtual Request send(Comm comm, const void* data, int bytes, int to, int tag) = 0;
  // The request is done once the message is received.
  virtual Request send_until_received(Comm comm, const void* data, int bytes, int to, int tag) = 0;
  virtual Request receive(Comm comm, void* data, int bytes, int from, int tag) = 0;
  virtual bool test(Request& request) = 0;
  // Abandons an unfinished request. Returns true if MPI no longer uses its memory. Otherwise MPI may use the memory
  // until it is finalized, because a receive with a matched message cannot be cancelled.
  virtual bool abandon(Request& request, bool receiving) = 0;
  // Returns true if a message has arrived from any rank, with any tag.
  virtual bool probe(Comm comm, Envelope& envelope) = 0;
};

// `library` is a handle of dlopen(). It stays open for the life of the process, because MPI's exit handlers need it.
// Throws Error(unavailable) that names the first missing function.
std::unique_ptr<Api> make_api(void* library, const std::string& path);

}  // namespace perseus::mpi
