/* The numbers of element types, reductions, errors, verbs and starts. The enums of C++, of C (capi/perseus.h) and of
 * Python (perseus_like/tables.py) are made of these lists, and nothing else numbers them.
 *
 * A row's number is its place in the list. perseus_like/tables.py is generated: `python csrc/generate_tables.py` writes
 * it after a change here. This header is plain C, because code inside frameworks includes it.
 */
#ifndef PERSEUS_BASE_TABLES_H
#define PERSEUS_BASE_TABLES_H

/* Makes an enumerator of a row: enum class DType { PERSEUS_DTYPES(PERSEUS_ENUMERATOR) }. */
#define PERSEUS_ENUMERATOR(NAME, name, ...) name,
/* Counts rows: PERSEUS_DTYPES(PERSEUS_COUNT). */
#define PERSEUS_COUNT(...) +1

/* X(NAME, name, text, bytes, is_floating). `text` is the word in error texts. */
#define PERSEUS_DTYPES(X)                    \
  X(UINT8, uint8, "uint8", 1, false)         \
  X(INT8, int8, "int8", 1, false)            \
  X(INT16, int16, "int16", 2, false)         \
  X(INT32, int32, "int32", 4, false)         \
  X(INT64, int64, "int64", 8, false)         \
  X(FLOAT16, float16, "float16", 2, true)    \
  X(BFLOAT16, bfloat16, "bfloat16", 2, true) \
  X(FLOAT32, float32, "float32", 4, true)    \
  X(FLOAT64, float64, "float64", 8, true)    \
  X(BOOLEAN, boolean, "bool", 1, false)      \
  X(UINT16, uint16, "uint16", 2, false)

/* X(NAME, name). An average is a sum that is divided, so that transports need no average. */
#define PERSEUS_REDUCE_OPS(X) \
  X(SUM, sum)                 \
  X(MIN, min)                 \
  X(MAX, max)                 \
  X(PRODUCT, product)         \
  X(BAND, band)               \
  X(BOR, bor)                 \
  X(BXOR, bxor)

/* X(NAME, name). Each kind is one class in perseus_like/errors.py; no code parses the text of an error. */
#define PERSEUS_ERROR_KINDS(X)                                                                                   \
  X(INVALID_ARGUMENT, invalid_argument) /* a mistake of the caller on this rank: ValueError */                   \
  X(NOT_INITIALIZED, not_initialized)   /* a call before init or after shutdown */                               \
  X(DISAGREEMENT, disagreement)         /* ranks submitted different requests under one name; the job goes on */ \
  X(PEER_LOST, peer_lost)               /* a rank died or left; the session has ended */                         \
  X(TIMED_OUT, timed_out)               /* a rank did not submit its part in time */                             \
  X(TRANSPORT, transport)               /* MPI, oneCCL, NCCL or the system reported a failure */                 \
  X(UNAVAILABLE, unavailable)           /* a library, memory or a device is missing */                           \
  X(SHUT_DOWN, shut_down)               /* this session was shut down before the work was complete */

/* What ranks agree on: Verb of control/request.h. X(NAME, name, text, reduces, results). `text` begins the names of
 * requests. `reduces`: the verb has an operation and factors. `results` are Results of control/request.h. */
#define PERSEUS_REQUEST_VERBS(X)                                                                                     \
  X(ALLREDUCE, allreduce, "allreduce", true, same_shapes)                                                            \
  X(ADASUM, adasum, "adasum", true, same_shapes) /* an allreduce by adaptive summation; floating types only */       \
  X(BROADCAST, broadcast, "broadcast", false, same_shapes)                                                           \
  X(ALLGATHER, allgather, "allgather", false, other_rows) /* along the first dimension, in which ranks may differ */ \
  X(ALLTOALL, alltoall, "alltoall", false, other_rows)    /* one tensor */                                           \
  X(REDUCE_SCATTER, reduce_scatter, "reducescatter", true, other_rows)                                               \
  X(BARRIER, barrier, "barrier", false, none) /* no tensor */                                                        \
  X(ADD_PROCESS_SET, add_process_set, "add_process_set", false, none)                                                \
  X(REMOVE_PROCESS_SET, remove_process_set, "remove_process_set", false, none)

/* All verbs. Join has no tensor and no name: it is a state of a rank, and the engine has no request for it. */
#define PERSEUS_VERBS(X) PERSEUS_REQUEST_VERBS(X) X(JOIN, join, "join", false, none)

/* X(NAME, name). The thread that executes an allreduce of Python. */
#define PERSEUS_STARTS(X)                                                         \
  X(ENGINE, engine) /* the engine's thread, which is woken */                     \
  X(CALL, call)     /* the calling thread: the allreduce is complete on return */ \
  X(WAITER, waiter) /* the calling thread, in its next call, which waits for the handle; no thread is woken */

#endif
