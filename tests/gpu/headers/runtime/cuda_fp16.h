// nccl.h includes this header, and uses nothing of it in a program for the host.
