// A libnccl.so.2 of NCCL 2.11, which lacks functions of later versions.
extern "C" __attribute__((visibility("default"))) int ncclGetVersion(int* version) {
  *version = 21104;
  return 0;
}
