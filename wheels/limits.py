"""The promises of the published wheels: their Pythons, processors, glibc and size."""

# RHEL 8 has this glibc, and Debian 10, Ubuntu 20.04 and later systems have a newer one. manylinux names wheels by it.
GLIBC = "2.28"
PROCESSORS = ("x86_64", "aarch64")
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
LARGEST_BYTES = 3_000_000
