/* The core for native code inside a framework: a table of functions, whose address perseus_like._core.c_api() gives.
 *
 * Such code includes this header and links nothing of ours, so that it is built once and serves every release of its
 * framework. All functions may be called from any thread, with or without Python's lock. None of them throws.
 */
#ifndef PERSEUS_CAPI_PERSEUS_H
#define PERSEUS_CAPI_PERSEUS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Grows with each change that is not an addition at the end of a struct. */
#define PERSEUS_API_VERSION 1

/* Numbers of element types, reductions and errors: those of DType, ReduceOp and ErrorKind in perseus_like/_core.pyi. */

enum PerseusVerb {
  PERSEUS_ALLREDUCE = 0,
  PERSEUS_ADASUM = 1, /* floating types only */
  PERSEUS_BROADCAST = 2,
  PERSEUS_ALLGATHER = 3, /* along the first dimension, in which ranks may differ */
  PERSEUS_ALLTOALL = 4,  /* one tensor */
  PERSEUS_REDUCE_SCATTER = 5,
  PERSEUS_BARRIER = 6, /* no tensor */
  PERSEUS_JOIN = 7     /* no tensor, no name; `number` of the outcome is the last rank to join */
};

#define PERSEUS_OK (-1)         /* in the place of an ErrorKind */
#define PERSEUS_SAME_DTYPE (-1) /* wire_dtype: values travel as they are */

/* Host memory, contiguous, row-major. */
typedef struct PerseusTensor {
  void* data;
  int32_t dtype;
  int32_t dimensions;
  const int64_t* shape;
} PerseusTensor;

/* How a request ended. Everything in it is readable until the callback returns; results too, unless `retain`ed. */
typedef struct PerseusOutcome {
  int32_t error;       /* PERSEUS_OK or an ErrorKind */
  const char* message; /* "" when ok */
  int32_t result_count;
  const PerseusTensor* results;   /* of the core's: allgather, alltoall, reduce-scatter */
  const int64_t* received_splits; /* alltoall: rows from each rank */
  int32_t split_count;
  int64_t number;
  void* work; /* for retain() */
} PerseusOutcome;

/* Called once for each request that was taken, on a thread of the core or of whoever waits: be short, never wait for
 * another collective in it. */
typedef void (*PerseusDone)(void* context, const PerseusOutcome* outcome);

typedef struct PerseusRequest {
  int32_t verb;
  int32_t process_set; /* 0: all ranks */
  const char* name;    /* the same on all ranks, and of nothing else in flight in the set */
  int32_t tensor_count;
  const PerseusTensor* inputs; /* their memory stays until the callback; the descriptions need not */
  void* const* outputs;        /* as many; NULL: in place. Unused where the core allocates the results */
  int32_t op;
  int32_t average; /* not 0: divide the sum by the number of ranks */
  double prescale;
  double postscale;
  int32_t wire_dtype;
  int32_t root;          /* broadcast: the rank in the set */
  const int64_t* splits; /* alltoall: rows for each rank of the set; NULL: equally */
  PerseusDone done;
  void* context;
  const char* tensor_names; /* what error texts call them, a line each; NULL: their numbers. After a tab: what this rank
                             * has, where dtype and shape do not tell it */
} PerseusRequest;

typedef struct PerseusApi {
  int32_t version;

  /* Queues the request and returns at once. PERSEUS_OK: `done` will be called. Otherwise the ErrorKind of why it was
   * refused, with the text in `message`, and `done` is not called. */
  int32_t (*submit)(const PerseusRequest* request, char* message, size_t capacity);

  /* The same, and returns after `done` was called on this thread. For callers that have nothing else to do. */
  int32_t (*run)(const PerseusRequest* request, char* message, size_t capacity);

  /* This rank in a process set and the set's size; -1 where there is no such set, where this rank is not in it, or
   * before init. */
  int32_t (*rank)(int32_t process_set);
  int32_t (*size)(int32_t process_set);

  /* Within the host, and among hosts; -1 before init. */
  int32_t (*local_rank)(void);
  int32_t (*local_size)(void);
  int32_t (*cross_rank)(void);
  int32_t (*cross_size)(void);

  /* In a callback: keeps the results beyond it. Each needs one release, from any thread. NULL: no memory. */
  void* (*retain)(void* work);
  void (*release)(void* kept);

  /* Memory that the ranks of this host reduce in place, where collectives are fastest: its address in `data`. Gives
   * what release() takes, or NULL with the reason in `message`: use other memory then, which the other ranks need not.
   */
  void* (*allocate)(size_t bytes, void** data, char* message, size_t capacity);
} PerseusApi;

#ifdef __cplusplus
}
#endif

#endif
