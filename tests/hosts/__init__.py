"""Jobs on several hosts, which are network namespaces of this machine (network_test_bed.py) with shaped links."""
