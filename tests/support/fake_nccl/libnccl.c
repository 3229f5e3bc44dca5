/* libnccl.so.2 as far as distcore calls it through nccl4py: it moves nothing, writes down what it is
   asked (to $FAKE_NCCL_LOG), and keeps NCCL's rules for communicators that do not block: a call
   answers that it is in progress, the next one is refused until it was asked whether it still is, a
   split's communicator is filled in late, and what is pointed to is not copied. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { Success = 0, InvalidArgument = 4, InvalidUsage = 5, InProgress = 7 };

typedef struct comm {
  int rank, size, polls, finalized, in_group;
  struct comm **child;
  struct comm *made;
} comm;

static __thread int depth;
static __thread comm *grouped;

static void say(const char *text) {
  FILE *log = fopen(getenv("FAKE_NCCL_LOG"), "a");
  fprintf(log, "%s\n", text);
  fclose(log);
}
#define SAY(...)                                 \
  do {                                           \
    char text[200];                              \
    snprintf(text, sizeof text, __VA_ARGS__);    \
    say(text);                                   \
  } while (0)

static int taken(comm *c) {
  if (depth) {
    grouped = c;
    return Success;
  }
  c->polls = 2;
  return InProgress;
}

static int call(comm *c, const char *name, size_t count, int type, int op, int peer, void *stream) {
  if (c->polls) return InvalidArgument;
  SAY("%s count=%zu type=%d op=%d peer=%d stream=%zu", name, count, type, op, peer, (size_t)stream);
  return taken(c);
}

int ncclGetVersion(int *version) { *version = 22803; return Success; }
int ncclGetUniqueId(char *id) { memset(id, 7, 128); return Success; }
const char *ncclGetErrorString(int result) { return result == InvalidUsage ? "invalid usage" : "?"; }
const char *ncclGetLastError(comm *c) { (void)c; return "the last error"; }

int ncclCommInitRankScalable(comm **out, int size, int rank, int ids, char *id, int32_t *config) {
  /* size_t size; unsigned magic, version; int blocking; ... */
  if (ids != 1 || id[0] != 7 || (uint32_t)config[2] != 0xcafebeef) return InvalidArgument;
  SAY("init size=%d rank=%d blocking=%d", size, rank, config[4]);
  comm *c = calloc(1, sizeof *c);
  c->rank = rank, c->size = size, c->polls = 3;
  *out = c;
  return InProgress;
}
int ncclCommGetAsyncError(comm *c, int *result) {
  *result = c->polls ? InProgress : Success;
  if (c->polls && --c->polls == 0 && c->child) *c->child = c->made, c->child = NULL;
  return Success;
}
int ncclCommSplit(comm *c, int color, int key, comm **out, int32_t *config) {
  if (c->polls) return InvalidArgument;
  SAY("split color=%d key=%d blocking=%d", color, key, config[4]);
  *out = NULL;
  if (color >= 0) {
    c->made = calloc(1, sizeof *c->made);
    c->made->rank = key, c->made->size = c->size;
    c->child = out;
  }
  c->polls = 2;
  return Success;
}
int ncclCommCount(comm *c, int *out) { *out = c->size; return c->polls ? InvalidArgument : Success; }
int ncclCommUserRank(comm *c, int *out) { *out = c->rank; return c->polls ? InvalidArgument : Success; }
int ncclCommCuDevice(comm *c, int *out) { *out = 0; return c->polls ? InvalidArgument : Success; }

int ncclGroupStart(void) { depth++; say("group"); return Success; }
int ncclGroupEnd(void) {
  depth--;
  say("end");
  if (!grouped) return Success;
  comm *c = grouped;
  grouped = NULL;
  return taken(c);
}

int ncclAllReduce(void *in, void *out, size_t n, int type, int op, comm *c, void *s) {
  return in && out ? call(c, "all_reduce", n, type, op, -1, s) : InvalidArgument;
}
int ncclReduce(void *in, void *out, size_t n, int type, int op, int root, comm *c, void *s) {
  return in && (out || root != c->rank) ? call(c, "reduce", n, type, op, root, s) : InvalidArgument;
}
int ncclReduceScatter(void *in, void *out, size_t n, int type, int op, comm *c, void *s) {
  return in && out ? call(c, "reduce_scatter", n, type, op, -1, s) : InvalidArgument;
}
int ncclAllGather(void *in, void *out, size_t n, int type, comm *c, void *s) {
  return in && out ? call(c, "all_gather", n, type, -1, -1, s) : InvalidArgument;
}
int ncclBroadcast(void *in, void *out, size_t n, int type, int root, comm *c, void *s) {
  return out && (in || root != c->rank) ? call(c, "broadcast", n, type, -1, root, s)
                                        : InvalidArgument;
}
int ncclSend(void *in, size_t n, int type, int peer, comm *c, void *s) {
  return in ? call(c, "send", n, type, -1, peer, s) : InvalidArgument;
}
int ncclRecv(void *out, size_t n, int type, int peer, comm *c, void *s) {
  return out ? call(c, "recv", n, type, -1, peer, s) : InvalidArgument;
}
int ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int residence, comm *c) {
  if (c->polls) return InvalidArgument;
  uint64_t bits = 0;
  memcpy(&bits, scalar, type == 9 ? 2 : 4);
  SAY("op of %llx type=%d residence=%d", (unsigned long long)bits, type, residence);
  *op = 1000;
  return Success;
}
int ncclRedOpDestroy(int op, comm *c) {
  SAY("no op %d", op);
  return c->polls ? InvalidArgument : Success;
}
int ncclCommFinalize(comm *c) {
  if (c->polls || c->finalized) return InvalidArgument;
  say("finalize");
  c->finalized = 1, c->polls = 2;
  return InProgress;
}
int ncclCommDestroy(comm *c) {
  if (c->polls) return InvalidArgument;
  say("destroy");
  return Success;
}
int ncclCommAbort(comm *c) { (void)c; say("abort"); return Success; }
