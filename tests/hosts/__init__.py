"""Worlds on several hosts: network namespaces of this machine (lab.py), with links as slow as wanted."""
