/* The core for native code inside a framework: a table of functions, whose address perseus_like._core.c_api() gives.
 *
 * Such code includes this header and links nothing of ours, so that it is built once and serves every release of its
 * framework. All functions may be called from any thread, with or without Python's lock. None of them throws.
 */
#ifndef PERSEUS_CAPI_PERSEUS_H
#define PERSEUS_CAPI_PERSEUS_H

#include <stddef.h>
#include <stdint.h>

#include "base/tables.h" /* the verbs, element types, reductions and errors, with their numbers */

#ifdef __cplusplus
extern "C" {
#endif

/* Incremented with each change that is not an addition at the end of a struct. */
#define PERSEUS_API_VERSION 2

#define PERSEUS_ROW(NAME, ...) PERSEUS_##NAME,
enum PerseusVerb { PERSEUS_VERBS(PERSEUS_ROW) };
#undef PERSEUS_ROW
#define PERSEUS_ROW(NAME, ...) PERSEUS_DTYPE_##NAME,
enum PerseusDType { PERSEUS_DTYPES(PERSEUS_ROW) PERSEUS_DTYPE_COUNT };
#undef PERSEUS_ROW
#define PERSEUS_ROW(NAME, ...) PERSEUS_OP_##NAME,
enum PerseusReduceOp { PERSEUS_REDUCE_OPS(PERSEUS_ROW) PERSEUS_OP_COUNT };
#undef PERSEUS_ROW
#define PERSEUS_ROW(NAME, ...) PERSEUS_ERROR_##NAME,
enum PerseusErrorKind { PERSEUS_ERROR_KINDS(PERSEUS_ROW) PERSEUS_ERROR_COUNT };
#undef PERSEUS_ROW

#define PERSEUS_OK (-1)         /* no error; in the place of a PerseusErrorKind */
#define PERSEUS_PENDING (-2)    /* the outcome is not there yet; in the place of a PerseusErrorKind */
#define PERSEUS_SAME_DTYPE (-1) /* wire_dtype: no conversion for the transfer */

/* A tensor in host memory, contiguous and row-major. */
typedef struct PerseusTensor {
  void* data;
  int32_t dtype;
  int32_t dimensions;
  const int64_t* shape;
} PerseusTensor;

/* The outcome of a request. It is valid until the callback returns; `retain` keeps the results longer. */
typedef struct PerseusOutcome {
  int32_t error;       /* PERSEUS_OK or a PerseusErrorKind */
  const char* message; /* "" if there is no error */
  int32_t result_count;
  const PerseusTensor* results;   /* results in the core's memory: allgather, alltoall, reduce-scatter */
  const int64_t* received_splits; /* alltoall: rows from each rank */
  int32_t split_count;
  int64_t number;
  void* work; /* for retain() */
  /* If not 0, the request has failed and a peer or a library may still read or write its inputs and outputs. Their
   * memory must not be freed or used again; keep a reference to it forever. */
  int32_t memory_is_lent;
} PerseusOutcome;

/* Called once for each accepted request, on a thread of the core or of a waiting caller. It must be short and must not
 * wait for another collective. */
typedef void (*PerseusDone)(void* context, const PerseusOutcome* outcome);

/* How allreduce, Adasum and reduce-scatter combine values. ReduceOptions of perseus_like/tensor.py has the same fields.
 */
typedef struct PerseusReduceOptions {
  int32_t op;      /* a PerseusReduceOp */
  int32_t average; /* not 0: divide the sum by the number of ranks */
  double prescale;
  double postscale;
  int32_t wire_dtype; /* a PerseusDType of 16 bits to which values are converted on the way, or PERSEUS_SAME_DTYPE */
} PerseusReduceOptions;

typedef struct PerseusRequest {
  int32_t verb;        /* a PerseusVerb, none of process sets */
  int32_t process_set; /* 0: all ranks */
  const char* name;    /* the same on all ranks, and unique among the requests in flight in the set */
  int32_t tensor_count;
  const PerseusTensor* inputs; /* the data must stay valid until the callback; the structs need not */
  void* const* outputs;        /* one per input; NULL: in place. Unused if the core allocates the results */
  PerseusReduceOptions reduce;
  int32_t root;          /* broadcast: the rank in the set */
  const int64_t* splits; /* alltoall: rows for each rank of the set; NULL: equally */
  PerseusDone done;
  void* context;
  const char* tensor_names; /* the tensors' names for error texts, one line each; NULL: their numbers. A tab and a text
                             * after a name replace this rank's dtype and shape in error texts */
} PerseusRequest;

/* The time at which the execution of a request of `start` begins, unless its caller waits before. */
enum PerseusBegin {
  PERSEUS_BEGIN_NOW,    /* the engine's thread is woken */
  PERSEUS_BEGIN_AT_WAIT /* when the caller waits or asks, which must be its next call */
};

typedef struct PerseusApi {
  int32_t version;

  /* Queues the request and returns at once. Returns PERSEUS_OK if `done` will be called. Otherwise returns the
   * PerseusErrorKind of the rejection with its text in `message`, and `done` is not called. */
  int32_t (*submit)(const PerseusRequest* request, char* message, size_t capacity);

  /* The same, but returns after `done` was called on this thread. For callers that have nothing else to do. */
  int32_t (*run)(const PerseusRequest* request, char* message, size_t capacity);

  /* Return this rank in a process set and the set's size; -1 if there is no such set, if this rank is not in it, or
   * before init. */
  int32_t (*rank)(int32_t process_set);
  int32_t (*size)(int32_t process_set);

  /* Return the rank and size within the host and across hosts; -1 before init. */
  int32_t (*local_rank)(void);
  int32_t (*local_size)(void);
  int32_t (*cross_rank)(void);
  int32_t (*cross_size)(void);

  /* Call `retain` in a callback to keep the results beyond it. Each needs one `release` from any thread. Returns NULL
   * if there is no memory. */
  void* (*retain)(void* work);
  void (*release)(void* kept);

  /* Allocates memory that the ranks of this host reduce in place, which is fastest, and stores its address in `data`.
   * Returns a handle for release(), or NULL with the reason in `message`. Then use other memory; the other ranks need
   * not do so. */
  void* (*allocate)(size_t bytes, void** data, char* message, size_t capacity);

  /* The functions from here on are for callers that wait for a handle. Earlier cores do not have them. */

  /* Queues the request, without its `done`, and stores a handle. `call` is the caller's name of the collective, on
   * which the ranks must agree; NULL: the verb's. `begin` is a PerseusBegin. Returns as `submit`. */
  int32_t (*start)(const PerseusRequest* request, const char* call, int32_t begin, void** handle, char* message,
                   size_t capacity);

  /* Blocks until the request is done, at most for this time, and executes work meanwhile. Returns PERSEUS_OK, the
   * PerseusErrorKind of its failure, or PERSEUS_PENDING. */
  int32_t (*wait)(void* handle, int64_t limit_nanoseconds);

  /* Returns not 0 if the request is done, successfully or not. */
  int32_t (*is_done)(void* handle);

  /* Ends the use of a handle. Calls `done` once if it is not NULL: here if the request is done, otherwise later on a
   * thread of the core. The memory of the tensors must stay valid until then. */
  void (*drop)(void* handle, PerseusDone done, void* context);

  /* Makes the request of this name that is in flight on this rank fail on all ranks, unless they have agreed on it.
   * `call` follows "rank 0 calls" in the error text. */
  void (*contradict)(int32_t process_set, const char* name, const char* call);
} PerseusApi;

#ifdef __cplusplus
}
#endif

#endif
