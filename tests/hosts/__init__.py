"""Tests of jobs on several hosts, which are network namespaces of this machine (network_test_bed.py)."""
